// Copy buttons: what to type next for a free GPU, a host, or a dead process.
"use strict";

const copyStatus = document.createElement("p");
copyStatus.className = "said";
copyStatus.setAttribute("role", "status");
document.body.append(copyStatus);
let clearTimer = 0;

// Copy a text, and return the sentence that says whether it worked.
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text); // works over https, or on localhost
  } catch {
    const field = document.createElement("textarea");
    field.value = text;
    field.className = "aside";
    (document.querySelector("dialog[open]") ?? document.body).append(field); // outside an open dialog nothing can be selected
    const focus = document.activeElement;
    field.select();
    const isCopied = document.execCommand("copy");
    field.remove();
    focus?.focus({ preventScroll: true });
    if (!isCopied) return `Not copied: ${text}`;
  }
  return `Copied: ${text}`;
}

// Create a button that copies a text.
function createCopyButton(text, label) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.title = `Copy ${text}`;
  button.setAttribute("aria-label", `Copy ${text}`);
  button.textContent = label;
  button.addEventListener("click", async () => {
    copyStatus.textContent = await copyText(text);
    clearTimeout(clearTimer);
    clearTimer = setTimeout(() => { copyStatus.textContent = ""; }, 4000);
  });
  return button;
}

// Add copy buttons to a card that comes near: adding 9,000 of them to a thousand cards at once would be slow.
function addCopyButtons(part) {
  if (part.querySelector("button.copy")) return;
  if (part.matches(".host")) part.querySelector("header > .book")?.before(createCopyButton(`ssh ${part.id}`, "ssh"));
  for (const row of part.querySelectorAll(".gpus > tbody > tr.free")) {
    if (row.querySelector(".avoid")) continue;
    const index = row.dataset.cuda ?? row.cells[0].textContent;
    const cuda = /^\d+$/.test(index) || row.dataset.cuda ? `CUDA_VISIBLE_DEVICES=${index}` : "";
    const text = row.dataset.see ?? cuda; // programs of another vendor read another variable
    if (text) row.cells[1].append(" ", createCopyButton(text, "copy"));
  }
  for (const code of part.querySelectorAll("strong > code")) code.after(" ", createCopyButton(code.textContent, "copy"));
}

// Show the full text of a command, or one line of it again.
document.addEventListener("click", ({ target }) => {
  if (target.matches?.(".gpus li > code") && getSelection().isCollapsed) target.closest(".host").classList.toggle("full");
});

cardUpdates.push(addCopyButtons);
near.forEach(addCopyButtons);
document.querySelectorAll("main > .part").forEach(addCopyButtons); // on the page of a single host
