// The calendar: what is yours stands out. It and the pages of the past are loaded again now and then.
"use strict";

const page = document.documentElement.dataset;
const AGAIN = Number(page.again ?? 300); // seconds between loads
const QUIET = Math.min(60, AGAIN / 2); // seconds in which nobody must have touched it
const OLD = Number(page.old ?? 65 * 60); // seconds after which a builder that lives would have written it anew

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

// Where somebody is: what has focus, by its words and how many before it have the same, and how far tables are scrolled.
function alike(words) {
  return [...document.querySelectorAll("a, summary, [tabindex]")].filter((one) => (one.ariaLabel ?? one.textContent) === words);
}

function keepPlace() {
  const at = document.activeElement;
  const words = at?.ariaLabel ?? at?.textContent ?? "";
  const across = [...document.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  sessionStorage.setItem("gpuboard.place", JSON.stringify([location.pathname, words, alike(words).indexOf(at), across]));
}

function findPlace() {
  try {
    const [path, words, number, across] = JSON.parse(sessionStorage.getItem("gpuboard.place"));
    sessionStorage.removeItem("gpuboard.place");
    if (path !== location.pathname) return;
    document.querySelectorAll(".scroll").forEach((one, place) => { one.scrollLeft = across[place] ?? 0; });
    alike(words)[number]?.focus({ preventScroll: true });
  } catch {
    // nothing was kept, or may be
  }
}

// Only where the server answers: a page that is old is better than none.
async function loadAgain() {
  try {
    const answer = await fetch(location.pathname, { method: "HEAD", cache: "no-store" });
    if (!answer.ok) return;
    try {
      keepPlace();
    } catch {
      // a browser that keeps nothing begins at the top
    }
    location.reload();
  } catch {
    // it is tried again later
  }
}

let tried = Date.now();
setInterval(() => {
  const now = Date.now();
  const age = document.querySelector(".age");
  const old = now - Number(page.built) > OLD * 1000;
  age.classList.toggle("old", old);
  age.firstElementChild.hidden = !old;
  if (old) age.firstElementChild.textContent = "Old:";
  const busy = now - touched < QUIET * 1000 || !getSelection().isCollapsed || document.querySelector("details[open]");
  if (document.visibilityState !== "visible" || now - tried < AGAIN * 1000 || busy) return;
  tried = now;
  loadAgain();
}, 10_000);

mark();
findPlace();
