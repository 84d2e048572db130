// Sort the table of people, choose its month, and put the reader on top.
"use strict";

const table = document.querySelector("#_people table");
const STORED_VIEW = "gpuboard.people";

// Read a value that this browser stores; "" if there is none.
function readValue(storage, key) {
  try {
    return window[storage].getItem(key) ?? "";
  } catch {
    return ""; // storage is off
  }
}

// Store the sorting and the month until the browser is closed: the page reloads itself.
function storeView(view) {
  try {
    sessionStorage.setItem(STORED_VIEW, JSON.stringify(view));
  } catch {
    // storage is off
  }
}

// Mark the row of the reader, whose name the booking dialog stores.
function markReader() {
  const me = readValue("localStorage", "gpuboard.me").trim().toLowerCase();
  for (const row of table.tBodies[0].rows) row.classList.toggle("mine", me !== "" && row.dataset.names.split("\n").includes(me));
}

// Compare two rows by a column: numbers by their values, names by their text.
function compareRows(a, b, column) {
  const [left, right] = [a.cells[column], b.cells[column]];
  if (left.dataset.v !== undefined || right.dataset.v !== undefined) return Number(left.dataset.v ?? 0) - Number(right.dataset.v ?? 0);
  return left.textContent.localeCompare(right.textContent, undefined, { numeric: true, sensitivity: "base" });
}

// Sort the rows by a column; the reader stays on top.
function sortRows(column, isAscending) {
  const heads = [...table.tHead.rows[0].cells];
  for (const head of heads) head.removeAttribute("aria-sort");
  heads[column].setAttribute("aria-sort", isAscending ? "ascending" : "descending");
  const direction = isAscending ? 1 : -1;
  const isMine = (row) => Number(row.classList.contains("mine"));
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => isMine(b) - isMine(a) || direction * compareRows(a, b, column) || compareRows(a, b, 0));
  table.tBodies[0].append(...rows);
}

// Show the sums of a month, and people who were there only then.
function showMonth(id) {
  const source = document.querySelector(`.month[data-month="${id}"]`);
  if (!source) return;
  const body = table.tBodies[0];
  for (const row of body.querySelectorAll(".past")) row.remove();
  const rows = new Map([...source.querySelectorAll("tr[data-person]")].map((row) => [row.dataset.person, row]));
  const known = new Set([...body.rows].map((row) => row.dataset.person));
  for (const [person, row] of rows) {
    if (known.has(person) || !person) continue;
    const added = body.insertRow();
    added.className = "past";
    Object.assign(added.dataset, { person, names: person });
    added.append(row.cells[0].cloneNode(true));
    for (const cell of [...table.tHead.rows[0].cells].slice(1)) {
      const copy = added.insertCell();
      if (cell.dataset.c) copy.dataset.c = cell.dataset.c;
      if (cell.classList.contains("n")) copy.className = "n";
    }
  }
  for (const row of table.querySelectorAll("tr[data-person]")) {
    for (const cell of row.querySelectorAll("td[data-c]")) {
      const from = rows.get(row.dataset.person)?.querySelector(`[data-c="${cell.dataset.c}"]`);
      cell.textContent = from?.textContent ?? (cell.dataset.c === "change" ? "–" : "0.0");
      cell.dataset.v = from?.dataset.v ?? 0;
    }
  }
  const head = table.tHead.querySelector("[data-c=used]");
  (head.querySelector("button") ?? head).textContent = source.dataset.name;
}

// Turn headings into buttons, and add the picker of months.
function startTable() {
  const heads = [...table.tHead.rows[0].cells];
  const months = [...document.querySelectorAll(".month")];
  const start = Math.max(0, heads.findIndex((head) => head.ariaSort));
  let view = { column: start, isAscending: false, month: months[0]?.dataset.month };
  try {
    view = { ...view, ...JSON.parse(readValue("sessionStorage", STORED_VIEW) || "{}") };
  } catch {
    // what is stored is damaged
  }
  if (!heads[view.column]) view.column = start;
  if (!months.some((month) => month.dataset.month === view.month)) view.month = months[0]?.dataset.month;
  const render = () => {
    if (view.month) showMonth(view.month);
    markReader();
    sortRows(view.column, view.isAscending);
    storeView(view);
  };
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const isText = column === 0 || column === heads.length - 1;
      view = { ...view, column, isAscending: view.column === column ? !view.isAscending : isText };
      render();
    });
  });
  if (months.length > 1) {
    const picker = document.createElement("select");
    for (const month of months) picker.add(new Option(month.dataset.name, month.dataset.month));
    picker.value = view.month;
    picker.addEventListener("change", () => {
      view = { ...view, month: picker.value };
      render();
    });
    const label = document.createElement("label");
    label.append("Month ", picker);
    const place = document.querySelector(".pick");
    place.append(label);
    place.hidden = false;
  }
  addEventListener("storage", render);
  render();
}

if (table) startTable();
