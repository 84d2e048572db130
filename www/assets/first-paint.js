// Keep what is in sight from moving: hosts are hidden until search.js has applied the address, and one's own bookings have their room.
"use strict";

{
  const MAX_WAIT_MS = 4000;
  const { classList } = document.documentElement;
  if (/[?&](?:q|sort|group|density|folded|open)=/.test(location.search)) classList.add("waiting");
  try {
    const rows = localStorage.getItem("gpuboard.own"); // what own-bookings.js has shown last: it gets the same room
    if (rows) document.documentElement.dataset.own = rows;
  } catch {
    // without storage nobody is known
  }
  addEventListener("DOMContentLoaded", () => classList.add("ready")); // search.js has done so, or has failed
  setTimeout(() => classList.remove("waiting"), MAX_WAIT_MS);
}
