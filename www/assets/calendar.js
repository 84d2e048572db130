// The calendar: what is yours stands out, and the page is loaded again now and then.
"use strict";

const AGAIN = 300; // seconds between loads
const QUIET = 60; // seconds in which nobody must have touched it
const OLD = 65 * 60; // seconds after which a builder that lives would have written it anew

function mark() {
  let me = "";
  try {
    me = (localStorage.getItem("gpuboard.me") ?? "").trim().toLowerCase();
  } catch {
    // a browser that keeps nothing knows nobody
  }
  for (const one of document.querySelectorAll(".mine")) one.classList.remove("mine");
  if (!me) return;
  for (const person of document.querySelectorAll(".people li")) {
    if (!person.dataset.names.split("\n").includes(me)) continue;
    const who = [...person.classList].find((name) => name.startsWith("who"));
    for (const one of document.querySelectorAll(`.${who}`)) one.classList.add("mine");
  }
}

let touched = Date.now();
for (const name of ["scroll", "pointermove", "pointerdown", "keydown"]) {
  addEventListener(name, () => { touched = Date.now(); }, { capture: true, passive: true });
}
addEventListener("storage", mark);

// Only where the server answers: a page that is old is better than none.
async function loadAgain() {
  try {
    const answer = await fetch(location.pathname, { method: "HEAD", cache: "no-store" });
    if (answer.ok) location.reload();
  } catch {
    // in 5 minutes it is tried again
  }
}

let tried = Date.now();
setInterval(() => {
  const now = Date.now();
  const age = document.querySelector(".age");
  const old = now - Number(document.documentElement.dataset.built) > OLD * 1000;
  age.classList.toggle("old", old);
  age.firstElementChild.hidden = !old;
  if (old) age.firstElementChild.textContent = "Old:";
  const busy = now - touched < QUIET * 1000 || !getSelection().isCollapsed || document.querySelector("details[open]");
  if (document.visibilityState !== "visible" || now - tried < AGAIN * 1000 || busy) return;
  tried = now;
  loadAgain();
}, 10_000);

mark();
