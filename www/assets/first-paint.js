// Keep the hosts hidden until search.js has applied what the address asks for: nothing that is in sight moves.
"use strict";

{
  const MAX_WAIT_MS = 4000;
  const { classList } = document.documentElement;
  if (/[?&](?:q|sort|group|density|folded|open)=/.test(location.search)) classList.add("waiting");
  addEventListener("DOMContentLoaded", () => classList.add("ready")); // search.js has done so, or has failed
  setTimeout(() => classList.remove("waiting"), MAX_WAIT_MS);
}
