// Copying: what one types next, from a free GPU, a host, or a process that is dead.
"use strict";

const said = document.createElement("p");
said.className = "said";
said.setAttribute("role", "status");
document.body.append(said);
let silence = 0;

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text); // only over https, or on one's own machine
  } catch {
    const field = document.createElement("textarea");
    field.value = text;
    field.className = "aside";
    (document.querySelector("dialog[open]") ?? document.body).append(field); // beside a dialog nothing can be selected
    const focus = document.activeElement;
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    focus?.focus({ preventScroll: true });
    if (!done) return `Not copied: ${text}`;
  }
  return `Copied: ${text}`;
}

function copyButton(text, label) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.title = `Copy ${text}`;
  button.setAttribute("aria-label", `Copy ${text}`);
  button.textContent = label;
  button.addEventListener("click", async () => {
    said.textContent = await copy(text);
    clearTimeout(silence);
    silence = setTimeout(() => { said.textContent = ""; }, 4000);
  });
  return button;
}

// A card that comes near gets its buttons: a thousand cards are not worth 9,000 of them.
function enhanceCopy(part) {
  if (part.querySelector("button.copy")) return;
  if (part.matches(".host")) part.querySelector(".right").prepend(copyButton(`ssh ${part.id}`, "ssh"));
  for (const row of part.querySelectorAll(".gpus > tbody > tr.free")) {
    if (row.querySelector(".avoid")) continue;
    const index = row.dataset.cuda ?? row.cells[0].textContent;
    const cuda = /^\d+$/.test(index) || row.dataset.cuda ? `CUDA_VISIBLE_DEVICES=${index}` : "";
    const text = row.dataset.see ?? cuda; // another maker's programs read another variable
    if (text) row.cells[1].append(" ", copyButton(text, "copy"));
  }
  for (const code of part.querySelectorAll("strong > code")) code.after(" ", copyButton(code.textContent, "copy"));
}

upkeep.push(enhanceCopy);
near.forEach(enhanceCopy);
document.querySelectorAll("main > .part").forEach(enhanceCopy); // those of a host's own page
