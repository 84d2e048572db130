// Open the booking dialog and the watch dialog; each is loaded when it is first needed.
"use strict";

// Load and open the booking dialog for a host, with these GPUs chosen.
async function openBookingDialog(host, gpus) {
  try {
    const { open } = await import(`./booking-dialog.js${version}`);
    open(host, gpus);
  } catch {
    location.assign(`${base}bookings.html#${host}`); // where the link leads without JavaScript
  }
}

document.addEventListener("click", (event) => {
  const card = event.target.closest?.("a.book")?.closest(".host");
  if (!card || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  openBookingDialog(card.id);
});

// The button beside the free GPUs opens the watch dialog.
document.addEventListener("click", async (event) => {
  const button = event.target.closest?.("button.watch");
  if (!button) return;
  try {
    const { open } = await import(`./watch-dialog.js${version}`);
    open();
  } catch {
    button.textContent = "This cannot be loaded now: try again.";
  }
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

// Open the dialog that the address asks for: index.html?book=atlas:0,1.
function openFromAddress() {
  const [, host, gpus = ""] = /^([^:]+)(?::([\w:,]+))?$/.exec(new URLSearchParams(location.search).get("book") ?? "") ?? [];
  if (host && findCard(host)?.matches(".host")) openBookingDialog(host, gpus.split(","));
}

openFromAddress();
