// Finding: one search box, totals to click, order, groups, and cards to fold. What is chosen stands in the address, to be kept as a bookmark.
"use strict";

const form = document.querySelector("form.find");
const main = document.querySelector("main");
const wall = new URLSearchParams(location.search).has("wall");
const folded = { all: false, but: new Set() }; // which cards are folded: all or none, but for these
const TERM = /([a-z]+)([:<>])("[^"]*"|\S*)|"([^"]*)"|(\S+)/gi;
const FIELDS = new Set(["state", "tag", "host", "user", "model", "command", "booking"]);
const AT_ONCE = 40; // cards
const later = new Set(); // cards that fit, but are not in view, and still show all their rows
let terms = [];

// The words of a search: `state:free`, `mem>20`, or any text.
function termsOf(text) {
  return [...text.toLowerCase().matchAll(TERM)].map(([whole, key, sign, value, quoted, plain]) => {
    if (key === "mem" && sign !== ":" && !Number.isNaN(Number(value))) return { key, sign, word: value, number: Number(value) };
    if (sign === ":" && FIELDS.has(key)) return { key, word: value.replaceAll('"', "") };
    return { key: "any", word: quoted ?? (plain ?? whole).replace(/^"/, "") };
  }).filter(({ word }) => word !== ""); // one that is not yet typed to its end
}

// All that somebody wrote there: times pass, and the words on buttons are ours.
function wordsIn(part) {
  let words = "";
  for (const node of part.childNodes) {
    if (node.nodeType === Node.TEXT_NODE) words += node.data;
    else if (!node.matches("time, button, svg")) words += wordsIn(node);
  }
  return words;
}

// Of a card and of each of its rows, what can be searched; made when it is first needed, and anew with the card.
function indexOf(card) {
  if (card.kept) return card.kept;
  const header = card.querySelector("header");
  const texts = (part, selector) => [...part.querySelectorAll(selector)].map((one) => one.textContent.toLowerCase()).join("\n");
  const host = {
    host: card.id.toLowerCase(),
    tag: texts(header, ".tag"),
    model: texts(header, ".models"),
    booking: texts(card, ":scope > .booking"),
    any: [card.id, ...[...card.querySelectorAll(":scope > header > span:not(:has(time)), :scope > .note, :scope > .booking")].map(wordsIn)].join("\n").toLowerCase(),
    state: card.classList[1],
  };
  const rows = [...card.querySelectorAll(".gpus > tbody > tr:not(.mig)")].map((row) => ({
    row,
    state: row.className,
    user: texts(row, "li > b"),
    command: texts(row, "li > code"),
    booking: texts(row, ".booking"),
    any: [...row.cells].filter((_, column) => column === 1 || column > (row.cells.length < 8 ? 1 : 5)).map(wordsIn).join("\n").toLowerCase(),
    memory: row.cells.length < 8 ? Number.NaN : Number.parseFloat(row.cells[3].textContent.split("/")[1]),
  }));
  // a GPU that is cut into instances is shown with those of them that are
  const heads = [...card.querySelectorAll(".gpus > tbody > tr.mig")].map((row) => ({ row, parts: rows.filter((one) => one.row.dataset.of === row.cells[0].textContent) }));
  card.kept = { host, rows, heads };
  return card.kept;
}

function fits(host, row, { key, sign, number, word }) {
  if (key === "mem") return row !== null && (sign === ">" ? row.memory > number : row.memory < number);
  if (key === "any") return host.any.includes(word) || Boolean(row?.any.includes(word));
  if (key === "state") return row ? row.state.startsWith(word) || (host.state !== "fresh" && host.state.startsWith(word)) : host.state.startsWith(word);
  if (key === "tag") return host.tag.split("\n").includes(word);
  return Boolean(host[key]?.includes(word) || row?.[key]?.includes(word));
}

function hideRows(card) {
  for (const { row, hide } of card.kept?.rows ?? []) if (row.hidden !== hide) row.hidden = hide;
  for (const { row, parts } of card.kept?.heads ?? []) row.hidden = parts.every((one) => one.hide);
}

// What can wait is done by some cards at a time, and typing goes before it.
function inTurns(cards, work) {
  clearTimeout(cards.turn);
  if (!cards.size) return;
  cards.turn = setTimeout(() => {
    for (const card of [...cards].slice(0, AT_ONCE)) {
      cards.delete(card);
      work(card);
    }
    inTurns(cards, work);
  });
}

// Shows the hosts and GPUs that fit, and says how many they are.
function show() {
  let gpus = 0;
  let hosts = 0;
  for (const card of main.querySelectorAll(":scope > .host")) {
    if (!terms.length && !card.filtered) continue;
    const { host, rows } = indexOf(card);
    let fitting = 0;
    for (const row of rows) {
      row.hide = !terms.every((term) => fits(host, row, term));
      if (!row.hide) fitting += 1;
    }
    const hide = terms.length > 0 && !fitting && !(rows.length === 0 && terms.every((term) => fits(host, null, term)));
    if (card.hidden !== hide) card.hidden = hide;
    card.filtered = terms.length > 0;
    gpus += fitting;
    later.delete(card);
    if (hide) continue;
    hosts += 1;
    if (hosts <= AT_ONCE || near.has(card)) hideRows(card);
    else later.add(card);
  }
  inTurns(later, hideRows);
  showHeads();
  tell(form.querySelector("output"), !terms.length ? "" : !hosts ? "nothing fits" : `${gpus} GPU${gpus === 1 ? "" : "s"} on ${hosts} host${hosts === 1 ? "" : "s"}`);
  pressTotals();
}

// The head of a group of which nothing is shown says nothing.
function showHeads() {
  let head = null;
  for (const part of main.querySelectorAll(":scope > .group, :scope > .host")) {
    if (part.matches(".group")) [head, part.hidden] = [part, true];
    else if (head && !part.hidden) head.hidden = false;
  }
}

function pressTotals() {
  for (const button of document.querySelectorAll(".totals button")) {
    button.setAttribute("aria-pressed", String(terms.some((term) => term.key === "state" && term.word === button.value)));
  }
}

// How many of a host's GPUs are free, and how busy they are, by its last numbers.
function ranks(name) {
  const gpus = told.get(name)?.[7] ?? [...(cardOf(name)?.querySelectorAll(".gpus > tbody > tr") ?? [])].map((row) => [row.className, row.cells[2].textContent]);
  const use = gpus.map(([, percent]) => Number.parseInt(percent, 10)).filter((percent) => !Number.isNaN(percent));
  return { free: gpus.filter(([state]) => state === "free").length, use: use.length ? use.reduce((a, b) => a + b, 0) / use.length : -1 };
}

function groupOf(card, by) {
  if (by === "tag") return card.querySelector("header .tag")?.textContent ?? "without a tag";
  return card.querySelector("header .models")?.textContent.replace(/(^|, )\d+ × /g, "$1") ?? "unknown model";
}

const compareWords = new Intl.Collator("en", { numeric: true }).compare;

// As the builder sorts them: gpu2 before gpu10.
function compareNames(a, b) {
  const [mine, others] = [a, b].map((name) => name.toLowerCase().match(/\d+|\D+/g) ?? []);
  for (const [number, part] of mine.entries()) {
    const other = others[number];
    if (part === other) continue;
    if (other === undefined) return 1;
    const [left, right] = [part, other].map((one) => (/^\d/.test(one) ? Number(one) : -1));
    if (left !== right) return left - right;
    if (left < 0) return part < other ? -1 : 1;
  }
  return mine.length - others.length;
}

// Puts the cards in their order, under the heads of their groups.
function arrange() {
  const { sort, group } = form.elements;
  const heads = main.querySelectorAll(":scope > .group");
  if (sort.value === "name" && !group.value && !heads.length && !main.arranged) return;
  main.arranged = sort.value !== "name" || group.value !== "";
  const cards = [...main.querySelectorAll(":scope > .host")].map((card) => ({ card, name: card.id, ...ranks(card.id), group: group.value ? groupOf(card, group.value) : "" }));
  const by = { name: () => 0, free: (a, b) => b.free - a.free, use: (a, b) => b.use - a.use }[sort.value];
  cards.sort((a, b) => compareWords(a.group, b.group) || by(a, b) || compareNames(a.name, b.name));
  const wanted = [];
  cards.forEach(({ card, group: head }, number) => {
    if (head && head !== cards[number - 1]?.group) {
      const title = document.createElement("h2");
      title.className = "group";
      title.textContent = head;
      wanted.push(title);
    }
    wanted.push(card);
  });
  const now = [...main.children].filter((part) => part.matches(".host, .group"));
  const same = now.length === wanted.length && now.every((part, number) => (part.matches(".group") ? part.textContent === wanted[number].textContent : part === wanted[number]));
  if (same) return;
  const focus = document.activeElement;
  heads.forEach((head) => head.remove());
  let place = main.querySelector(":scope > .host");
  for (const part of wanted) {
    if (part === place) place = place.nextElementSibling;
    else main.insertBefore(part, place);
  }
  showHeads();
  if (document.activeElement !== focus) focus.focus({ preventScroll: true }); // a part that is moved loses it
}

// A card with nothing but a sentence is not folded: it says why.
function isFolded(card) {
  return folded.all !== folded.but.has(card.id) && card.querySelector(".gpus") !== null;
}

function fold(card) {
  const closed = isFolded(card);
  card.classList.toggle("closed", closed);
  const button = card.querySelector("button.fold");
  if (!button) return;
  const counts = {};
  for (const row of card.querySelectorAll(".gpus > tbody > tr:not(.mig)")) counts[row.className] = (counts[row.className] ?? 0) + 1;
  button.dataset.sum = Object.entries(counts).map(([state, count]) => `${count} ${state}`).join(", ");
  button.setAttribute("aria-expanded", String(!closed));
  button.setAttribute("aria-label", `GPUs of ${card.id}${closed ? `: ${button.dataset.sum}` : ""}`);
}

function foldEach() {
  main.querySelectorAll(":scope > .host").forEach(fold);
}

function foldAll(all) {
  folded.all = all;
  folded.but.clear();
  foldEach();
  remember();
}

// The choice, as it stands in the address; what is as it is by default is left out.
function remember() {
  const { q, sort, group } = form.elements;
  const words = new URLSearchParams();
  if (wall) words.set("wall", "");
  if (q.value.trim()) words.set("q", q.value.trim());
  if (sort.value !== "name") words.set("sort", sort.value);
  if (group.value) words.set("group", group.value);
  if (folded.all) words.set("folded", "*"); // which no host is called
  if (folded.but.size) words.set(folded.all ? "open" : "folded", [...folded.but].join(" "));
  const search = words.toString();
  const wanted = `${location.pathname}${search ? `?${search}` : ""}${location.hash}`;
  if (wanted !== location.pathname + location.search + location.hash) history.replaceState(null, "", wanted);
}

function recall() {
  const words = new URLSearchParams(location.search);
  const { q, sort, group } = form.elements;
  q.value = words.get("q") ?? "";
  sort.value = ["free", "use"].includes(words.get("sort")) ? words.get("sort") : "name";
  group.value = ["model", "tag"].includes(words.get("group")) ? words.get("group") : "";
  folded.all = words.get("folded") === "*";
  const names = (folded.all ? words.get("open") : words.get("folded")) ?? "";
  folded.but = new Set(names.split(" ").filter(Boolean));
  terms = termsOf(q.value);
}

function search() {
  terms = termsOf(form.elements.q.value);
  show();
  remember();
}

// A total becomes a button that looks for its state.
function enhanceTotals() {
  if (wall) return;
  for (const item of document.querySelectorAll(".totals li:not(:has(button))")) {
    const button = document.createElement("button");
    button.type = "button";
    button.value = button.className = item.className; // by its class the focus finds it again
    button.append(...item.childNodes);
    button.addEventListener("click", () => {
      const rest = form.elements.q.value.split(/\s+/).filter((one) => one && !/^state:/i.test(one));
      if (button.getAttribute("aria-pressed") === "false") rest.push(`state:${button.value}`);
      form.elements.q.value = rest.join(" ");
      search();
    });
    item.append(button);
  }
  pressTotals();
}

function enhanceCard(card) {
  if (card.id === "_top") enhanceTotals();
  if (!card.matches(".host")) return;
  if (later.delete(card)) hideRows(card);
  if (!card.querySelector("button.fold") && card.querySelector(".gpus")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "fold";
    button.addEventListener("click", () => {
      if (!folded.but.delete(card.id)) folded.but.add(card.id);
      fold(card);
      remember();
    });
    card.querySelector("header").prepend(button);
  }
  fold(card);
}

// A wall screen that is too small shows one part after the other.
function scrollWall() {
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const rest = 15; // seconds at each end, and for each part where nothing shall move
  let wait = rest * 10;
  setInterval(() => {
    const end = document.documentElement.scrollHeight - innerHeight;
    if (end <= 4 || (wait -= 1) > 0) return;
    const step = still ? innerHeight * 0.8 : 3;
    if (scrollY >= end - 2) {
      scrollTo({ top: 0, behavior: "instant" });
      wait = rest * 10;
      return;
    }
    scrollBy({ top: step, behavior: "instant" });
    if (still || scrollY >= end - 2) wait = rest * 10;
  }, 100);
}

// A link leads to a card, also where a search hides it.
function showTarget() {
  const card = cardOf(decodeURIComponent(location.hash.slice(1)));
  if (!card?.hidden) return;
  form.elements.q.value = "";
  search();
  card.scrollIntoView();
}

recall();
upkeep.push(enhanceCard);
near.forEach(enhanceCard);
enhanceTotals();
foldEach();
arrange();
if (terms.length) show();
document.addEventListener("board", () => {
  const keepPlace = placeKeeper();
  if (!isSelectedIn(main)) arrange();
  if (terms.length) show();
  if (!wall) keepPlace();
});
form.hidden = wall;
form.addEventListener("input", (event) => { if (event.target.name === "q") search(); });
form.addEventListener("change", () => { arrange(); remember(); });
form.elements.q.addEventListener("focus", () => inTurns(new Set(main.querySelectorAll(":scope > .host")), indexOf));
form.addEventListener("submit", (event) => event.preventDefault());
form.querySelector("[name=fold]").addEventListener("click", () => foldAll(true));
form.querySelector("[name=open]").addEventListener("click", () => foldAll(false));
addEventListener("popstate", () => { recall(); foldEach(); arrange(); show(); });
addEventListener("hashchange", showTarget);
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, select, textarea, dialog");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey && !wall) {
    event.preventDefault();
    form.elements.q.focus();
  } else if (event.key === "Escape" && event.target === form.elements.q) {
    form.elements.q.value = "";
    search();
  }
});
document.documentElement.classList.toggle("wall", wall);
if (wall) scrollWall();
