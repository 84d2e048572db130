// Reload bookings.html, fleet.html and users.html now and then, and keep the place of whoever reads them.
"use strict";

const page = document.documentElement.dataset;
const RELOAD_INTERVAL_S = Number(page.again ?? 300); // seconds between reloads
const QUIET_S = Math.min(60, RELOAD_INTERVAL_S / 2); // seconds without input before a reload
const MAX_PAGE_AGE_S = Number(page.old ?? 65 * 60); // seconds after which a running builder would have rebuilt it

let lastTouched = Date.now();
for (const name of ["scroll", "pointermove", "pointerdown", "keydown"]) {
  addEventListener(name, () => { lastTouched = Date.now(); }, { capture: true, passive: true });
}

// Find all focusable elements with this label.
function findAlike(label) {
  return [...document.querySelectorAll("a, button, select, summary, [tabindex]")].filter((element) => (element.ariaLabel ?? element.textContent) === label);
}

// Store where the reader is: the focused element, by its label and how many before it have the same, and how far tables are scrolled.
function savePlace() {
  const focused = document.activeElement;
  const label = focused?.ariaLabel ?? focused?.textContent ?? "";
  const scrolled = [...document.querySelectorAll(".scroll")].map((table) => table.scrollLeft);
  sessionStorage.setItem("gpuboard.place", JSON.stringify([location.pathname, label, findAlike(label).indexOf(focused), scrolled]));
}

// Restore focus and scroll position after a reload.
function restorePlace() {
  try {
    const [path, label, index, scrolled] = JSON.parse(sessionStorage.getItem("gpuboard.place"));
    sessionStorage.removeItem("gpuboard.place");
    if (path !== location.pathname) return;
    document.querySelectorAll(".scroll").forEach((table, number) => { table.scrollLeft = scrolled[number] ?? 0; });
    findAlike(label)[index]?.focus({ preventScroll: true });
  } catch {
    // nothing is stored, or storage is off
  }
}

// Reload if the server answers: an old page is better than none.
async function reloadPage() {
  try {
    const answer = await fetch(location.pathname, { method: "HEAD", cache: "no-store" });
    if (!answer.ok) return;
    try {
      savePlace();
    } catch {
      // without storage the page begins at the top
    }
    location.reload();
  } catch {
    // the next interval tries again
  }
}

let lastTried = Date.now();
setInterval(() => {
  const now = Date.now();
  const age = document.querySelector(".age");
  const isOld = now - Number(page.built) > MAX_PAGE_AGE_S * 1000;
  age.classList.toggle("old", isOld);
  age.firstElementChild.hidden = !isOld;
  if (isOld) age.firstElementChild.textContent = "Old:";
  const isBusy = now - lastTouched < QUIET_S * 1000 || !getSelection().isCollapsed || document.querySelector("details[open]");
  if (document.visibilityState !== "visible" || now - lastTried < RELOAD_INTERVAL_S * 1000 || isBusy) return;
  lastTried = now;
  reloadPage();
}, 10_000);

restorePlace();
