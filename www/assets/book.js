// Booking: the link on each card opens a dialog, which is fetched when it is first wanted.
"use strict";

async function openDesk(host, gpus) {
  try {
    const { open } = await import(`./desk.js${version}`);
    open(host, gpus);
  } catch {
    location.assign(`${base}bookings.html#${host}`); // where the link leads without us
  }
}

document.addEventListener("click", (event) => {
  const card = event.target.closest?.("a.book")?.closest(".host");
  if (!card || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  openDesk(card.id);
});

// Beside the GPUs that are free: who waits for others says so in a dialog of its own.
document.addEventListener("click", async (event) => {
  const button = event.target.closest?.("button.watch");
  if (!button) return;
  try {
    const { open } = await import(`./watch.js${version}`);
    open();
  } catch {
    button.textContent = "This cannot be loaded now: try again.";
  }
});

function enhanceBook(card) {
  const link = card.querySelector("a.book");
  if (!link) return;
  link.setAttribute("aria-label", `Book ${card.id}`);
  link.setAttribute("href", `${base}bookings.html#${card.id}`); // that of a card that was fetched is the board's
}

upkeep.push(enhanceBook);
near.forEach(enhanceBook);

// index.html?book=atlas:0,1 opens it.
function openWanted() {
  const [, host, gpus = ""] = /^([^:]+)(?::([\w:,]+))?$/.exec(new URLSearchParams(location.search).get("book") ?? "") ?? [];
  if (host && cardOf(host)?.matches(".host")) openDesk(host, gpus.split(","));
}

openWanted();
