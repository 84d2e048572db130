// Open the dialogs for bookings, notifications and what is one's own; each is loaded when it is first needed.
"use strict";

let loadAttempts = 0; // a browser may remember that a script could not be loaded under an address

// Load a dialog and open it; where it cannot be loaded, the board stays and says so.
async function openDialog(file, ...options) {
  try {
    const { open } = await import(`./${file}.js${version}${loadAttempts ? `&${loadAttempts}` : ""}`);
    showLoadFailure("");
    open(...options);
  } catch {
    loadAttempts += 1;
    showLoadFailure("Not loaded: the server does not reply. Try again.");
  }
}

// Show at the bottom of the page that a dialog could not be loaded; "" removes that.
function showLoadFailure(text) {
  copyStatus.textContent = text;
  clearTimeout(clearTimer);
}

// Open the booking dialog of a place such as atlas:0,1, for this many hours.
function openBookingDialog(place, hours, opener) {
  const [, host, gpus] = /^([^:]+)(?::([\w:,]+))?$/.exec(place) ?? [];
  if (host) openDialog("booking-dialog", host, gpus?.split(",") ?? [], Number(hours) || undefined, opener);
}

// A link or button with data-gpus="atlas:0,1" opens the booking dialog with these GPUs chosen, for data-hours hours (6 without);
// button.watch opens the notify dialog with data-when filled in.
document.addEventListener("click", (event) => {
  const opener = event.target.closest?.("a.book, [data-gpus], button.watch, button.me");
  if (!opener || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  const place = opener.dataset.gpus ?? (opener.matches("a.book") ? opener.closest(".host")?.id : "");
  if (opener.matches(".watch")) openDialog("watch-dialog", opener.dataset.when, opener);
  else if (opener.matches(".me")) openDialog("me-menu", opener);
  else if (place) openBookingDialog(place, opener.dataset.hours, opener);
  else return;
  event.preventDefault();
});

// Label the booking link of a card.
function enhanceBookLink(card) {
  const link = card.querySelector("a.book");
  if (!link) return;
  link.setAttribute("aria-label", `Book ${card.id}`);
  link.setAttribute("href", `${base}bookings.html#${card.id}`); // a fetched card has the link of the board page
}

cardUpdates.push(enhanceBookLink);
near.forEach(enhanceBookLink);

// Show on the button who one is, as far as this browser remembers.
try {
  const name = localStorage.getItem("gpuboard.me");
  if (name) document.querySelector("button.me")?.replaceChildren(name);
} catch {
  // without storage it stays as it is
}

// Show one's own bookings above the board, where this browser knows whose they are.
function showOwnBookings() {
  if (!document.querySelector(".own-bookings") || isWall) return;
  try {
    if (!page.own && !["me", "token"].some((key) => localStorage.getItem(`gpuboard.${key}`))) return;
  } catch {
    return; // without storage nobody is known
  }
  import(`./own-bookings.js${version}`).then(({ start }) => start()).catch(() => delete page.own);
}

document.addEventListener("close", showOwnBookings, { capture: true }); // of a dialog: what is one's own may have changed
showOwnBookings();

// Open the dialog that the address asks for: index.html?book=atlas:0,1.
const wantedPlace = new URLSearchParams(location.search).get("book") ?? "";
if (findCard(wantedPlace.split(":")[0])?.matches(".host")) openBookingDialog(wantedPlace);
