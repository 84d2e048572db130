// Highlight your own bookings in the calendar.
"use strict";

// Highlight the bookings of the person whom this browser knows.
function markOwnBookings() {
  let me = "";
  try {
    me = (localStorage.getItem("gpuboard.me") ?? "").trim().toLowerCase();
  } catch {
    // without storage nobody is known
  }
  for (const booking of document.querySelectorAll(".mine")) booking.classList.remove("mine");
  if (!me) return;
  for (const person of document.querySelectorAll(".people li")) {
    if (!person.dataset.names.split("\n").includes(me)) continue;
    const personClass = [...person.classList].find((name) => name.startsWith("who"));
    for (const booking of document.querySelectorAll(`.${personClass}`)) booking.classList.add("mine");
  }
}

addEventListener("storage", markOwnBookings);
markOwnBookings();
