// Move along the focused chart of a host's page with the arrow keys.
"use strict";

document.addEventListener("keydown", (event) => {
  const row = event.target.closest?.(".slots tbody tr");
  const rows = row?.parentElement.rows;
  const places = { ArrowLeft: row?.sectionRowIndex - 1, ArrowRight: row?.sectionRowIndex + 1, Home: 0, End: rows?.length - 1 };
  const next = rows?.[places[event.key]];
  if (!next || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
  event.preventDefault();
  row.tabIndex = -1;
  next.tabIndex = 0;
  next.focus({ preventScroll: true });
});
