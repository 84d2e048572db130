// Search, sort, group and fold the cards. All choices are in the address, which can be bookmarked.
"use strict";

const form = document.querySelector("form.find");
const main = document.querySelector("main");
const isWall = new URLSearchParams(location.search).has("wall");
const isPhone = matchMedia("(max-width: 720px)").matches;
const isFoldedAtFirst = document.documentElement.classList.contains("collapsed") || isPhone;
const folded = { all: isFoldedAtFirst, except: new Set() }; // all cards are folded or none, except for these
const TERM = /([a-z]+)(>=|<=|[:<>=])("[^"]*"|\S*)|"([^"]*)"|(\S+)/g;
const SIZE = /^([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)(?:gi?b?)?$/;
const FIELDS = ["host", "gpu", "model", "state", "user", "command", "pid", "booking", "tag"];
const STATES = ["free", "busy", "held", "booked", "conflict", "lost", "unknown", "maintenance", "stale", "down", "failed", "unseen"]; // as a bare word too
const MEMORY_HINT = "Memory is in GiB: mem>40, mem>=40, mem<40 or mem=40.";
const COMPARISONS = { ">": (a, b) => a > b, ">=": (a, b) => a >= b, "<": (a, b) => a < b, "<=": (a, b) => a <= b, "=": (a, b) => a === b };
const CARDS_PER_STEP = 40;
const cardsToUpdate = new Set(); // matching cards out of view, whose rows are not filtered yet
let terms = [];

// Parse a search into terms: `free`, `mem>=20`, `gpu:0`, or any text. A term that works nowhere has a hint at what does.
function parseTerms(text) {
  return [...text.toLowerCase().matchAll(TERM)].map(([whole, key, sign, value, quoted, plain]) => {
    if (key === "mem" && sign !== ":" && (value === "" || SIZE.test(value))) return { key, sign, word: value, number: Number(SIZE.exec(value)?.[1]) };
    if (sign === ":" && FIELDS.includes(key)) {
      const word = value.replaceAll('"', "");
      const isUnknownState = key === "state" && !STATES.some((state) => state.startsWith(word));
      return { key, word, hint: isUnknownState ? `The states are ${STATES.join(", ")}.` : "" };
    }
    if (STATES.includes(plain)) return { key: "state", word: plain };
    return { key: "any", word: quoted ?? (plain ?? whole).replace(/^"/, ""), hint: findHint(key ?? plain, sign) };
  }).filter(({ word }) => word !== ""); // a term that is still being typed
}

// Return a hint for text that looks like a field but is not one.
function findHint(key, sign) {
  if (key === "mem") return MEMORY_HINT;
  if (sign === ":") return `${key}: is not a search field. The fields are ${FIELDS.map((field) => `${field}:`).join(", ")} and mem>40.`;
  return sign && sign !== "=" ? `Only memory can be compared. ${MEMORY_HINT}` : "";
}

// Read the text of a part, without times and buttons.
function readWords(part) {
  let words = "";
  for (const node of part.childNodes) {
    if (node.nodeType === Node.TEXT_NODE) words += node.data;
    else if (!node.matches("time, button, svg")) words += readWords(node);
  }
  return words;
}

// Index what can be searched in a card and in each of its rows, when first needed and again when the card changes.
function indexCard(card) {
  if (card.searchIndex) return card.searchIndex;
  const header = card.querySelector("header");
  const texts = (part, selector) => [...part.querySelectorAll(selector)].map((element) => element.textContent.toLowerCase()).join("\n");
  const isMixed = card.querySelector("tr[data-model]") !== null; // then each row has its own model
  const host = {
    host: card.id.toLowerCase(),
    tag: texts(header, ".tag"),
    model: isMixed ? "" : texts(header, ".models"),
    booking: texts(card, ":scope > .booking"),
    any: [card.id, ...[...card.querySelectorAll(`:scope > header > .about > span${isMixed ? ":not(.models)" : ""}, :scope > header > .note, :scope > .booking`)].map(readWords)].join("\n").toLowerCase(),
    state: card.classList[1],
  };
  const rows = [...card.querySelectorAll(".gpus > tbody > tr:not(.mig)")].map((row) => ({
    row,
    gpu: [row.cells[0].textContent, row.dataset.of].filter(Boolean).join("\n").toLowerCase(),
    state: row.className,
    model: row.dataset.model?.toLowerCase() ?? "",
    user: texts(row, "li > b"),
    command: texts(row, "li > code"),
    pid: texts(row, "li > small").replaceAll("pid ", ""),
    booking: texts(row, ".booking"),
    any: [`${card.id}:${row.cells[0].textContent}`, row.dataset.model ?? "", ...[...row.cells].filter((_, column) => column === 1 || column > (row.cells.length < 8 ? 1 : 5)).map(readWords)].join("\n").toLowerCase(),
    memory: row.cells.length < 8 ? Number.NaN : readMemory(row.cells[3]),
  }));
  const squares = [...card.querySelectorAll(".squares > i")];
  if (!rows.length && isCut) rows.push(...squares.map(indexSquare));
  squares.forEach((square, number) => { if (rows[number]) rows[number].square = square; });
  // the row of a GPU with MIG instances is shown with its matching instances
  const migRows = [...card.querySelectorAll(".gpus > tbody > tr.mig")].map((row) => ({ row, instances: rows.filter((instance) => instance.row.dataset.of === row.cells[0].textContent) }));
  card.searchIndex = { host, rows, migRows };
  return card.searchIndex;
}

// Return the memory of a GPU in GiB; if it is shared with the host, what can be allocated now.
function readMemory(cell) {
  const [used, total] = cell.textContent.split("/").map(Number.parseFloat);
  return cell.children.length ? total - used : total;
}

// Index the square of a GPU whose details are on the page of its host: `0 A100 80 GB: busy, NAME`.
function indexSquare(square) {
  const any = square.title.toLowerCase();
  const [, gpu, model = "", user = ""] = /^(\S+) (.*): [^,]*(?:, (.*))?$/.exec(any) ?? [];
  const size = / (\d+) gb$/.exec(model);
  return { row: square, gpu: gpu ?? "", state: square.className, model, user, command: "", pid: "", booking: "", any, memory: size ? Number(size[1]) : Number.NaN };
}

// Return whether a term matches a row, or a host without rows.
function isMatch(host, row, { key, sign, number, word }) {
  if (key === "mem") return row !== null && COMPARISONS[sign](row.memory, number);
  if (key === "any") return host.any.includes(word) || Boolean(row?.any.includes(word));
  if (key === "state") return row ? row.state.startsWith(word) || (host.state !== "fresh" && host.state.startsWith(word)) : host.state.startsWith(word);
  if (key === "gpu" || key === "pid") return row !== null && word.split(",").some((number) => row[key].split("\n").includes(number));
  if (key === "tag") return host.tag.split("\n").includes(word);
  return Boolean(host[key]?.includes(word) || row?.[key]?.includes(word));
}

// Hide the rows of a card that do not match.
function hideRows(card) {
  for (const { row, square, hide } of card.searchIndex?.rows ?? []) {
    if (row.hidden !== hide) row.hidden = hide;
    if (square && square.hidden !== hide) square.hidden = hide;
  }
  for (const { row, instances } of card.searchIndex?.migRows ?? []) row.hidden = instances.every((instance) => instance.hide);
}

// Process cards a few at a time, so that typing is not delayed.
function runInSteps(cards, work) {
  clearTimeout(cards.timer);
  if (!cards.size) return;
  cards.timer = setTimeout(() => {
    for (const card of [...cards].slice(0, CARDS_PER_STEP)) {
      cards.delete(card);
      work(card);
    }
    runInSteps(cards, work);
  });
}

// Show the hosts and GPUs that match, and how many there are.
function applySearch() {
  let gpus = 0;
  let hosts = 0;
  for (const card of main.querySelectorAll(":scope > .host")) {
    if (!terms.length && !card.filtered) continue;
    const { host, rows } = indexCard(card);
    let matching = 0;
    for (const row of rows) {
      row.hide = !terms.every((term) => isMatch(host, row, term));
      if (!row.hide) matching += 1;
    }
    const hide = terms.length > 0 && !matching && !(rows.length === 0 && terms.every((term) => isMatch(host, null, term)));
    if (card.hidden !== hide) card.hidden = hide;
    card.filtered = terms.length > 0;
    gpus += matching;
    cardsToUpdate.delete(card);
    if (hide) continue;
    hosts += 1;
    if (hosts <= CARDS_PER_STEP || near.has(card)) hideRows(card);
    else cardsToUpdate.add(card);
  }
  runInSteps(cardsToUpdate, hideRows);
  updateHeadings();
  setText(form.querySelector("output"), !terms.length ? "" : !hosts ? "No match" : `${gpus} GPU${gpus === 1 ? "" : "s"} on ${hosts} host${hosts === 1 ? "" : "s"}`);
  showNoMatch(terms.length > 0 && !hosts);
  pressTotals();
}

// Say that nothing matches, what would work instead, and how to get back.
function showNoMatch(isShown) {
  let note = main.querySelector(":scope > .no-match");
  if (!isShown) return note?.remove();
  if (!note) {
    note = document.createElement("div");
    note.className = "no-match";
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Clear search";
    button.addEventListener("click", clearSearch);
    note.append(document.createElement("p"), button);
    const card = main.querySelector(":scope > .host, :scope > .group");
    if (card) card.before(note);
    else main.append(note);
  }
  const hint = terms.find((term) => term.hint)?.hint;
  setText(note.firstChild, `No GPU or host matches “${form.elements.q.value.trim()}”.${hint ? ` ${hint}` : terms.length > 1 ? " All words must match." : ""}`);
}

// Empty the search box and show all hosts.
function clearSearch() {
  form.elements.q.value = "";
  runSearch();
  form.elements.q.focus();
}

// Hide the headings of groups without visible cards.
function updateHeadings() {
  let heading = null;
  for (const part of main.querySelectorAll(":scope > .group, :scope > .host")) {
    if (part.matches(".group")) [heading, part.hidden] = [part, true];
    else if (heading && !part.hidden) heading.hidden = false;
  }
}

// Mark the totals whose state is searched for.
function pressTotals() {
  for (const button of document.querySelectorAll(".totals button")) {
    button.setAttribute("aria-pressed", String(terms.some((term) => term.key === "state" && term.word === button.value)));
  }
}

// Count the free GPUs of a host, and average their use.
function computeRanks(name) {
  const gpus = hostNumbers.get(name)?.[7] ?? [...(findCard(name)?.querySelectorAll(isCut ? ".squares > i" : ".gpus > tbody > tr") ?? [])].map((part) => [part.className, part.cells?.[2].textContent ?? ""]);
  const use = gpus.map(([, percent]) => Number.parseInt(percent, 10)).filter((percent) => !Number.isNaN(percent));
  return { free: gpus.filter(([state]) => state === "free").length, use: use.length ? use.reduce((a, b) => a + b, 0) / use.length : -1 };
}

// Return the group of a card: its first tag, or its models.
function findGroup(card, by) {
  if (by === "tag") return card.querySelector("header .tag")?.textContent ?? "without a tag";
  return card.querySelector("header .models")?.textContent.replace(/(^|, )\d+ × /g, "$1") ?? "unknown model";
}

const compareWords = new Intl.Collator("en", { numeric: true }).compare;

// Compare names as the builder does: gpu2 before gpu10.
function compareNames(a, b) {
  const [partsA, partsB] = [a, b].map((name) => name.toLowerCase().match(/\d+|\D+/g) ?? []);
  for (const [index, partA] of partsA.entries()) {
    const partB = partsB[index];
    if (partA === partB) continue;
    if (partB === undefined) return 1;
    const [numberA, numberB] = [partA, partB].map((part) => (/^\d/.test(part) ? Number(part) : -1));
    if (numberA !== numberB) return numberA - numberB;
    if (numberA < 0) return partA < partB ? -1 : 1;
  }
  return partsA.length - partsB.length;
}

// Sort the cards, and put them under the headings of their groups.
function arrangeCards() {
  const { sort, group } = form.elements;
  const headings = main.querySelectorAll(":scope > .group");
  if (sort.value === "name" && !group.value && !headings.length && !main.arranged) return;
  main.arranged = sort.value !== "name" || group.value !== "";
  const cards = [...main.querySelectorAll(":scope > .host")].map((card) => ({ card, name: card.id, ...computeRanks(card.id), group: group.value ? findGroup(card, group.value) : "" }));
  const compare = { name: () => 0, free: (a, b) => b.free - a.free, use: (a, b) => b.use - a.use }[sort.value];
  cards.sort((a, b) => compareWords(a.group, b.group) || compare(a, b) || compareNames(a.name, b.name));
  const wanted = [];
  cards.forEach(({ card, group: groupName }, number) => {
    if (groupName && groupName !== cards[number - 1]?.group) {
      const heading = document.createElement("h2");
      heading.className = "group";
      heading.textContent = groupName;
      wanted.push(heading);
    }
    wanted.push(card);
  });
  const current = [...main.children].filter((part) => part.matches(".host, .group"));
  const isSame = current.length === wanted.length && current.every((part, number) => (part.matches(".group") ? part.textContent === wanted[number].textContent : part === wanted[number]));
  if (isSame) return;
  const focus = document.activeElement;
  headings.forEach((heading) => heading.remove());
  let next = main.querySelector(":scope > .host");
  for (const part of wanted) {
    if (part === next) next = next.nextElementSibling;
    else main.insertBefore(part, next);
  }
  updateHeadings();
  if (document.activeElement !== focus) focus.focus({ preventScroll: true }); // an element that is moved loses the focus
}

// Return whether a card is folded. A card with nothing but a sentence is not: it says why.
function isFolded(card) {
  if (isCut) return !folded.except.has(card.id) || !card.querySelector(".gpus");
  return folded.all !== folded.except.has(card.id) && card.querySelector(".gpus") !== null;
}

// Fold or unfold a card.
function foldCard(card) {
  const isClosed = isFolded(card);
  card.classList.toggle("closed", isClosed);
  const button = card.querySelector("button.fold");
  if (!button) return;
  button.setAttribute("aria-expanded", String(!isClosed));
  button.setAttribute("aria-label", `GPUs of ${card.id}${isClosed ? `: ${card.querySelector(".squares").getAttribute("aria-label")}` : ""}`);
}

// Fold or unfold every card as chosen.
function foldEach() {
  main.querySelectorAll(":scope > .host").forEach(foldCard);
}

// Fold or unfold all cards.
function foldAll(all) {
  folded.all = all;
  folded.except.clear();
  foldEach();
  storeInAddress();
}

// Store the choices in the address; defaults are left out.
function storeInAddress() {
  const { q, sort, group, density } = form.elements;
  const params = new URLSearchParams();
  if (isWall) params.set("wall", "");
  if (q.value.trim()) params.set("q", q.value.trim());
  if (sort.value !== "name") params.set("sort", sort.value);
  if (group.value) params.set("group", group.value);
  if (density.value) params.set("density", density.value);
  if (folded.all !== isFoldedAtFirst) params.set(folded.all ? "folded" : "open", "*"); // no host has this name
  if (folded.except.size) params.set(folded.all ? "open" : "folded", [...folded.except].join(" "));
  const query = params.toString();
  const address = `${location.pathname}${query ? `?${query}` : ""}${location.hash}`;
  if (address !== location.pathname + location.search + location.hash) history.replaceState(null, "", address);
}

// Read the choices from the address.
function readAddress() {
  const params = new URLSearchParams(location.search);
  const { q, sort, group, density } = form.elements;
  q.value = params.get("q") ?? "";
  sort.value = ["free", "use"].includes(params.get("sort")) ? params.get("sort") : "name";
  group.value = ["model", "tag"].includes(params.get("group")) ? params.get("group") : "";
  density.value = params.get("density") === "compact" ? "compact" : "";
  applyDensity();
  folded.all = !isCut && params.get("open") === "*" ? false : params.get("folded") === "*" || isFoldedAtFirst;
  const names = (folded.all ? params.get("open") : params.get("folded")) ?? "";
  folded.except = new Set(names.split(" ").filter(Boolean));
  if (isCut) folded.except.forEach((name) => loadDetails(findCard(name)).catch(() => {})); // an odd name in the address
  terms = parseTerms(q.value);
}

// Show the lines of hosts as close as chosen.
function applyDensity() {
  document.documentElement.classList.toggle("compact", form.elements.density.value === "compact");
}

// Apply what is in the search box.
function runSearch() {
  terms = parseTerms(form.elements.q.value);
  applySearch();
  storeInAddress();
}

// Turn each total into a button that searches for its state.
function enhanceTotals() {
  if (isWall) return;
  for (const item of document.querySelectorAll(".totals li:not(:has(button))")) {
    const button = document.createElement("button");
    button.type = "button";
    button.value = button.className = item.className; // saveFocus finds it by its class
    button.append(...item.childNodes);
    button.addEventListener("click", () => {
      const rest = form.elements.q.value.split(/\s+/).filter((word) => word && !/^state:/i.test(word) && !STATES.includes(word.toLowerCase()));
      if (button.getAttribute("aria-pressed") === "false") rest.push(`state:${button.value}`);
      form.elements.q.value = rest.join(" ");
      runSearch();
    });
    item.append(button);
  }
  pressTotals();
}

// Fold or unfold one card; of a large fleet, its details are fetched first.
async function toggleCard(card) {
  if (!folded.except.delete(card.id)) folded.except.add(card.id);
  try {
    await loadDetails(card);
  } catch {
    location.assign(`hosts/${card.id}.html`); // they are there too
  }
  foldCard(card);
  storeInAddress();
}

// Add the fold button to a card that comes near.
function enhanceCard(card) {
  if (card.id === "_top") enhanceTotals();
  if (!card.matches(".host")) return;
  if (cardsToUpdate.delete(card)) hideRows(card);
  if (!card.querySelector("button.fold") && card.querySelector(isCut ? ".squares > i" : ".gpus")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "fold";
    button.addEventListener("click", () => toggleCard(card));
    card.querySelector("header").prepend(button);
  }
  foldCard(card);
}

const PROBLEM_INTERVAL_S = 8; // how long a wall screen shows one problem
let problemNumber = 0;

// Make the letters of a wall screen, and then its squares, as large as all of it fits.
function fitWall() {
  const { style } = document.documentElement;
  const fit = (name, smallest, largest) => {
    let [small, large] = [smallest, largest];
    const fits = (size) => {
      style.setProperty(name, `${size}px`);
      return main.scrollHeight <= main.clientHeight + 1;
    };
    if (fits(large)) return;
    while (large - small > 0.25) {
      const middle = (small + large) / 2;
      if (fits(middle)) small = middle;
      else large = middle;
    }
    fits(small);
  };
  style.removeProperty("--square");
  fit("--wall", 4, innerHeight / 42);
  fit("--square", Number.parseFloat(style.getPropertyValue("--wall")), innerHeight / 8);
}

// List what is wrong: hosts that are not fresh, and GPUs that are lost or used by somebody else than booked them.
function listWallProblems() {
  const hosts = [...main.querySelectorAll(":scope > .host:not(.fresh, .maintenance)")].map((card) => `${card.id} ${[...card.querySelectorAll(".note > span")].map((part) => part.textContent).join(": ")}`);
  const gpus = [...main.querySelectorAll(":scope > .host.fresh .squares > :is(.lost, .conflict)")].map((square) => `${square.closest(".host").id}:${square.title}`);
  return [...hosts, ...gpus];
}

// Show one problem after the other below the hosts of a wall screen.
function showWallProblem() {
  let line = document.querySelector(".wall-problem");
  if (!line) {
    line = document.createElement("p");
    line.className = "wall-problem";
    document.body.append(line);
  }
  const problems = listWallProblems();
  line.hidden = problems.length === 0;
  const number = problemNumber % (problems.length || 1);
  setText(line, problems.length ? `${number + 1}/${problems.length}  ${problems[number]}` : "");
}

// Keep a wall screen full, and go through its problems.
function startWall() {
  showWallProblem();
  fitWall();
  addEventListener("resize", fitWall);
  document.addEventListener("board", () => {
    showWallProblem();
    fitWall();
  });
  setInterval(() => {
    problemNumber += 1;
    showWallProblem();
  }, PROBLEM_INTERVAL_S * 1000);
}

// Show the card that a link leads to, even if a search hides it.
function showTarget() {
  const card = findCard(decodeURIComponent(location.hash.slice(1)));
  if (!card?.hidden) return;
  form.elements.q.value = "";
  runSearch();
  card.scrollIntoView();
}

readAddress();
cardUpdates.push(enhanceCard);
near.forEach(enhanceCard);
enhanceTotals();
foldEach();
document.documentElement.classList.add("ready"); // until then the style folds the same cards
arrangeCards();
if (terms.length) applySearch();
document.addEventListener("board", () => {
  const restoreScroll = saveScroll();
  if (!isSelectedIn(main)) arrangeCards();
  if (terms.length) applySearch();
  if (!isWall) restoreScroll();
});
form.addEventListener("input", (event) => { if (event.target.name === "q") runSearch(); });
form.addEventListener("change", () => {
  if (isCut && !hostNumbers.size) refresh();
  applyDensity();
  arrangeCards();
  storeInAddress();
});
form.elements.q.addEventListener("focus", () => runInSteps(new Set(main.querySelectorAll(":scope > .host")), indexCard));
form.addEventListener("submit", (event) => event.preventDefault());
form.querySelector("[name=fold]").addEventListener("click", () => foldAll(true));
form.querySelector("[name=open]").addEventListener("click", () => foldAll(false));
form.querySelector("[name=open]").hidden = isCut;
document.querySelector(".search-open").addEventListener("click", ({ target }) => { // on a phone
  const isOpen = document.querySelector(".bar").classList.toggle("searching");
  target.setAttribute("aria-expanded", String(isOpen));
  if (isOpen) form.elements.q.focus();
});
document.addEventListener("click", ({ target }) => { // a click elsewhere closes the menu
  const menu = form.querySelector("details.view");
  if (!menu.contains(target)) menu.open = false;
});
form.querySelector("details.view").addEventListener("focusout", ({ currentTarget, relatedTarget }) => { // and so does Tab
  if (relatedTarget && !currentTarget.contains(relatedTarget)) currentTarget.open = false;
});
document.addEventListener("click", async (event) => { // the dialog needs the GPUs of the host
  const link = event.target.closest?.("[data-gpus], a.book");
  const card = link && (link.dataset.gpus ? findCard(link.dataset.gpus.split(":")[0]) : link.closest(".host"));
  if (!isCut || !card || card.askedForDetails || card.querySelector(".gpus") || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  card.askedForDetails = true;
  await loadDetails(card).catch(() => {}); // the dialog says what is missing
  (link.isConnected ? link : card.querySelector("a.book"))?.click();
}, { capture: true });
addEventListener("popstate", () => { readAddress(); foldEach(); arrangeCards(); applySearch(); });
addEventListener("hashchange", showTarget);
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, select, textarea, dialog");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey && !isWall) {
    event.preventDefault();
    form.elements.q.focus();
  } else if (event.key === "Escape" && form.querySelector("details.view[open]")) {
    form.querySelector("details.view").open = false;
    form.querySelector("details.view > summary").focus();
  } else if (event.key === "Escape" && event.target === form.elements.q) {
    form.elements.q.value = "";
    runSearch();
  }
});
document.documentElement.classList.toggle("wall", isWall);
if (isWall) startWall();
