// Keep an open page up to date: set numbers in place, and fetch a card when more of it has changed.
"use strict";

const POLL_INTERVAL_S = 10; // seconds between polls of the server
const MAX_POLL_INTERVAL_S = 120; // between polls of a server that does not answer
const RESPONSE_TIMEOUT_S = 30; // seconds that a response may take
const RETRY_DELAY_S = 1; // seconds until a part that could not be used is fetched again
const MAX_FETCHED_CARDS = 40; // with more cards to fetch, the whole page costs less
const SCHEMA = 1;

const page = document.documentElement.dataset;
const ownHost = page.host; // set on the page of a single host
const base = ownHost ? "../" : "";
const version = new URL(document.querySelector("script[src]").src).search;

const isCut = page.cut !== undefined; // a large fleet: details of a host are fetched when they are opened

let built = Number(page.built); // time of the newest build that is shown, in milliseconds
let maxAgeS = 150; // seconds after which the board is shown as old
let failures = 0;
let problem = ""; // why the page cannot be updated
let asking = false;
let timer = 0;
let pageFetched = Date.now();
const revisions = new Map(); // by part: the revision on the page
const hostNumbers = new Map(); // by host: its row in live.json

// Return the revision of a part that is on the page.
function findRevision(name) {
  return revisions.get(name) ?? Number(page.built);
}

// Find the card, or another part, with this id.
function findCard(name) {
  return document.getElementById(name);
}

// Fetch a file of the board. Changed files are fetched without a check by age: servers send that in whole seconds.
async function fetchText(path, cache = "no-store") {
  let answer;
  let text;
  try {
    answer = await fetch(path, { cache, signal: AbortSignal.timeout(RESPONSE_TIMEOUT_S * 1000) });
    text = await answer.text();
  } catch {
    throw new Error("offline, retrying");
  }
  if (!answer.ok) throw new Error(`${path.replace(base, "")} could not be fetched`);
  return { text, headers: answer.headers };
}

// Return whether the board is older than it should be, by the server's clock.
function isOld() {
  return serverNow() - built / 1000 > maxAgeS;
}

// Show whether the board is old, and why.
function updateAge() {
  const age = document.querySelector(".age");
  const old = isOld();
  age.classList.toggle("old", old || problem !== "");
  const word = age.querySelector("strong");
  word.hidden = !old && !problem;
  const text = [old ? "out of date" : "", problem].filter(Boolean).join(", ");
  if (!word.hidden) setText(word, `${/^(out of date|offline|reload)/.test(text) ? text[0].toUpperCase() + text.slice(1) : text}:`);
  setText(word.nextElementSibling, old ? "last update" : "updated");
}

// Set the numbers of a host in the cells of its card; they are formatted by the builder.
function setNumbers(card) {
  const numbers = hostNumbers.get(card.id);
  if (!numbers || numbers === card.shownNumbers || isInUse(card)) return;
  card.shownNumbers = numbers;
  const [, , , seen, load, memory, , gpus] = numbers;
  const time = card.querySelector("time.ago");
  if (time && seen !== null) setMoment(time, seen);
  const setTextOf = (selector, text) => {
    const element = card.querySelector(selector);
    if (element && text) setText(element, text);
  };
  setTextOf(".load", load && `load ${load}`);
  setTextOf(".ram", memory && `RAM ${memory} GiB`);
  const rows = card.querySelectorAll(".gpus > tbody > tr");
  gpus.forEach((gpu, number) => { if (rows[number]?.cells.length >= 8) setRow(rows[number].cells, gpu); });
}

// Set the numbers of a GPU in its row.
function setRow(cells, [, use, access, used, usedBar, temperature, draw]) {
  const write = (cell, text) => { if (cell.firstChild.data !== text) cell.firstChild.data = text; };
  const mark = (cell, share) => { if (cell.className && cell.className !== `w${share}`) cell.className = `w${share}`; }; // a cell without a class has no meter
  write(cells[2], access ? `${use} ` : use);
  mark(cells[2], Number.parseInt(use, 10) || 0);
  if (access && cells[2].children.length) setText(cells[2].children[0], `mem. activity ${access}\u00a0%`);
  write(cells[3], `${used} ${cells[3].firstChild.data.slice(cells[3].firstChild.data.indexOf("/"))}`);
  mark(cells[3], usedBar);
  write(cells[4], temperature);
  const limited = cells[5].children.length > 0;
  write(cells[5], limited ? `${draw} ` : draw === "–" ? draw : `${draw} W`);
}

// Return a function that restores the focus after its part of the page was replaced.
function saveFocus() {
  const element = document.activeElement;
  const part = element?.closest("main > *, .bar");
  if (!part || element === part) return () => {};
  const describe = (node) => [node.tagName, node.getAttribute("href"), node.className, node.closest("tr")?.rowIndex, node.closest("[id]")?.id].join();
  const description = describe(element);
  const partId = part.id;
  return () => {
    if (element.isConnected) return;
    const candidates = [...(document.getElementById(partId) || part).querySelectorAll("a, summary, button, [tabindex]")];
    candidates.find((node) => describe(node) === description)?.focus({ preventScroll: true });
  };
}

// Return a function that moves the card at the top of the screen back to where it was.
function saveScroll() {
  const bar = document.querySelector(".bar").getBoundingClientRect().bottom;
  const partAt = (pixels) => document.elementFromPoint(innerWidth / 2, Math.max(bar, 0) + pixels)?.closest("main > *");
  const top = partAt(20) || partAt(1); // not a card of which hardly anything is left, nor the gap between two
  const before = top?.getBoundingClientRect().top;
  return () => {
    const moved = top?.isConnected && scrollY > 0 ? top.getBoundingClientRect().top - before : 0;
    if (Math.abs(moved) > 1) scrollBy({ top: moved, behavior: "instant" });
  };
}

// Change the page, and keep the focus and the scroll position.
function changeInPlace(change) {
  const restoreFocus = saveFocus();
  const restoreScroll = saveScroll();
  change();
  restoreScroll();
  restoreFocus();
}

// Return whether text in this part is selected or a dialog in it is open: such a part is updated later.
function isInUse(part) {
  return isSelectedIn(part) || part.matches("dialog, :has(dialog[open])");
}

// Replace the content of a part. The element stays, and with it the height that it had when it was in view.
function updateElement(old, fresh) {
  if (fresh.dataset.drawn && fresh.dataset.drawn === old.dataset.drawn) return; // charts that were not redrawn
  for (const opened of old.querySelectorAll("details[open][id]")) {
    for (const details of fresh.querySelectorAll("details[id]")) if (details.id === opened.id) details.open = true;
  }
  if (old.open) fresh.open = true;
  const closed = old.classList.contains("closed");
  if (old.className !== fresh.className) old.className = fresh.className;
  old.classList.toggle("closed", closed);
  old.replaceChildren(...fresh.childNodes);
  old.shownNumbers = old.searchIndex = undefined;
  if (near.has(old) || !old.matches(".host")) updateCard(old);
}

// Update a card that is on the page, or insert a new one.
function placeCard(name, fresh, before) {
  const old = findCard(name);
  if (isCut && fresh.matches(".host") && !old?.querySelector(".gpus")) cutDetails(fresh);
  if (ownHost && fresh.matches(".host")) fresh.querySelector("h2").textContent = name;
  if (old) updateElement(old, fresh);
  else {
    document.querySelector("main > p")?.remove(); // the sentence that there are no hosts yet
    document.querySelector("main").insertBefore(fresh, before ?? (name === "_admin" ? null : findCard("_waste") ?? findCard("_admin")));
    if (fresh.matches(".host")) cardObserver.observe(fresh);
    else updateCard(fresh);
  }
}

// Leave only the line of a card, as the page of a large fleet has it.
function cutDetails(card) {
  while (card.firstElementChild.nextSibling) card.firstElementChild.nextSibling.remove();
}

// Fetch the details of a host of a large fleet; throw if that fails.
async function loadDetails(card) {
  if (!isCut || card.querySelector(".gpus")) return;
  const [, revision, fresh] = await fetchPart(card.id, 0);
  revisions.set(card.id, revision);
  changeInPlace(() => updateElement(card, fresh));
}

// Fetch a card, or another part; its first line is the revision.
async function readPart(name, revision) {
  const path = `cards/${name}.html`;
  const { text } = await fetchText(base + path);
  const end = text.indexOf("\n");
  const partRevision = Number(text.slice(0, end));
  const html = text.slice(end + 1).trimEnd();
  const fresh = new DOMParser().parseFromString(html, "text/html").body.firstElementChild;
  const isComplete = fresh ? fresh.id === toElementId(name) && html.endsWith(`</${fresh.localName}>`) : (name === "_problems" || name === "_waste") && !html;
  if (!(partRevision >= revision)) throw new Error(`${path} is older than live.json`);
  if (!isComplete) throw new Error(`${path} is incomplete, or not for ${name}`);
  return [name, partRevision, fresh];
}

// Fetch a part, and retry once: the builder writes cards right after live.json.
async function fetchPart(name, revision) {
  try {
    return await readPart(name, revision);
  } catch {
    await new Promise((done) => { setTimeout(done, RETRY_DELAY_S * 1000); });
    return readPart(name, revision);
  }
}

// Fetch the parts that changed, and show all of them in one step.
async function fetchChanged(wanted, order) {
  const results = await Promise.allSettled(wanted.map(([name, revision]) => fetchPart(name, revision)));
  problem = results.find((result) => result.status === "rejected")?.reason.message ?? "";
  changeInPlace(() => {
    for (const { value } of results) {
      if (!value) continue;
      const [name, revision, fresh] = value;
      const old = findCard(toElementId(name));
      if (old && isInUse(old)) continue;
      revisions.set(name, revision);
      if (!fresh) old?.remove();
      else placeCard(toElementId(name), fresh, findNextCard(name, order));
    }
  });
}

// Return the id of the element that shows a part.
function toElementId(name) {
  return name === "_problems" ? "_admin" : name;
}

// Return the name of the part that an element shows.
function toPartName(id) {
  return id === "_admin" ? "_problems" : id;
}

// Find the card before which a new one is inserted.
function findNextCard(name, order) {
  const index = order.indexOf(name);
  if (index < 0) return undefined;
  for (const next of order.slice(index + 1)) if (findCard(next)) return findCard(next);
  return undefined;
}

// Fetch the whole page, where most of it has changed; refuse one built before `minBuilt`.
async function fetchPage(minBuilt) {
  const { text } = await fetchText(location.pathname);
  const fresh = new DOMParser().parseFromString(text, "text/html");
  const pageBuilt = Number(fresh.documentElement.dataset.built);
  if (!pageBuilt || !text.trimEnd().endsWith("</html>")) throw new Error("the new page is cut");
  if (pageBuilt < minBuilt) throw new Error("the new page is older than live.json");
  pageFetched = Date.now();
  page.built = String(pageBuilt);
  revisions.clear();
  changeInPlace(() => replaceParts([...fresh.querySelector("main").children].filter((part) => part.id)));
}

// Replace the parts of the page by those of a new page.
function replaceParts(parts) {
  const names = new Set(parts.map((part) => part.id));
  for (const part of [...document.querySelector("main").children]) {
    if (part.id && !names.has(part.id) && !isInUse(part)) part.remove();
  }
  let before = null;
  for (const part of parts.reverse()) {
    const old = findCard(part.id);
    if (old && (isInUse(old) || (isCut && old.querySelector(".gpus")))) revisions.set(toPartName(part.id), 0); // to be fetched as soon as it is no longer in use
    else placeCard(part.id, part, before);
    before = findCard(part.id);
  }
}

// Return whether this is a valid row of a host in live.json.
function isHost(host) {
  return Array.isArray(host) && typeof host[0] === "string" && host[1] > 0 && Array.isArray(host[7]) && host[7].every(Array.isArray);
}

// Return whether this is a live.json that this version can read.
function isLive(live) {
  return live?.schema === SCHEMA && live.built > 0 && live.every > 0 && Array.isArray(live.hosts) && live.hosts.every(isHost)
    && live.parts !== null && typeof live.parts === "object";
}

// Remove the cards of hosts that are no longer on the board.
function removeGone(order) {
  const listed = new Set(order);
  const gone = [...document.querySelectorAll("main > .host")].filter((card) => !listed.has(card.id) && !isInUse(card));
  if (!gone.length) return;
  changeInPlace(() => gone.forEach((card) => {
    near.delete(card);
    hostNumbers.delete(card.id);
    card.remove();
  }));
}

// Update title, icon, sum and links in the bar.
function updateBar(free) {
  document.title = `${free} free · gpuboard`;
  const icon = document.querySelector("link[rel=icon]");
  if (!icon.href.endsWith(`?${free}`)) icon.href = `icon.svg?${free}`;
  const sum = document.querySelector(".bar .sum");
  const total = [...hostNumbers.values()].flatMap((host) => host[7]).filter(([state]) => state !== "mig").length;
  setText(sum, `${free} of ${total} free`);
  updateProblemCount(findCard("_admin")?.querySelector("summary").textContent.replace("For the admin: ", ""));
}

// Update the link to the problems; remove it if there are none.
function updateProblemCount(text) {
  const link = document.querySelector(".problem-count") ?? document.createElement("a");
  if (!text) return link.remove();
  [link.className, link.href] = ["problem-count", "#_problems"];
  setText(link, text);
  if (!link.isConnected) document.querySelector(".age").before(link);
}

// Apply a live.json: fetch what changed, set the numbers.
async function applyLive(live) {
  const hosts = ownHost ? live.hosts.filter(([name]) => name === ownHost) : live.hosts;
  const order = hosts.map(([name]) => name);
  const parts = ownHost ? hosts : [...Object.entries(live.parts), ...hosts];
  const wanted = parts.filter(([name, revision]) => revision > findRevision(name) || (name[0] !== "_" && !findCard(name)));
  for (const host of hosts) hostNumbers.set(host[0], host);
  if (ownHost && !hosts.length) throw new Error(`${ownHost} is no longer on the board`);
  if (!ownHost) removeGone(order);
  try {
    if (wanted.length > MAX_FETCHED_CARDS) await fetchPage(Math.max(...wanted.map(([, revision]) => revision)));
    else if (wanted.length) await fetchChanged(wanted, order);
    if (ownHost && Date.now() - pageFetched > 60000) await fetchPage(Number(page.built));
  } catch (error) {
    problem = error.message; // the numbers can be used
  }
  near.forEach(setNumbers);
  if (!ownHost) updateBar(live.free);
  document.dispatchEvent(new Event("board"));
}

// Load the page again after an upgrade. If the server still sends the old page, wait for a later poll.
function reloadPage() {
  const wasReloaded = performance.getEntriesByType("navigation")[0]?.type === "reload" && performance.now() < 60000;
  if (wasReloaded || document.querySelector("dialog[open]")) problem = "reload the page for a new version";
  else location.reload();
}

// Parse JSON; return null if it is invalid.
function parseJson(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

// Fetch live.json and apply it.
async function pollServer() {
  const { text, headers } = await fetchText(`${base}live.json`, "no-cache");
  const offset = (Date.now() - Date.parse(headers.get("Date"))) / 1000 - Number(headers.get("Age"));
  clockAhead = Math.abs(offset) > 5 ? offset : 0; // servers send whole seconds, and some send no date
  const live = parseJson(text);
  problem = "";
  if (!isLive(live)) problem = "live.json cannot be read";
  else if (live.built < built) problem = "live.json is older than the page";
  else if (live.version !== version.slice(1)) reloadPage();
  else {
    built = live.built;
    maxAgeS = Math.max(40, 2.5 * live.every);
    setMoment(document.querySelector(".age time"), built / 1000);
    await applyLive(live);
  }
}

// Poll the server, and schedule the next poll; less often while it does not answer.
async function refresh() {
  if (document.hidden || asking) return;
  clearTimeout(timer);
  asking = true;
  try {
    await pollServer();
    failures = 0;
  } catch (error) {
    failures += 1;
    problem = error.message;
  } finally {
    asking = false;
    updateAge();
    updateAges();
    timer = setTimeout(refresh, Math.min(MAX_POLL_INTERVAL_S, POLL_INTERVAL_S * 2 ** failures) * 1000);
  }
}

cardUpdates.push(setNumbers);
setInterval(() => { if (!document.hidden) updateAge(); }, 1000);
document.addEventListener("visibilitychange", () => {
  if (document.hidden) clearTimeout(timer);
  else {
    updateAges();
    refresh();
  }
});
// A page that seems old, or from the future, may mean that this clock is wrong: poll the server before saying so.
if (isOld() || built / 1000 - serverNow() > 5) refresh();
else {
  updateAge();
  timer = setTimeout(refresh, POLL_INTERVAL_S * 1000);
}
