// An open page follows the board: numbers are set in their place, a card is fetched when more of it has moved.
"use strict";

const EVERY = 10; // seconds between looks at the server
const SLOWEST = 120; // between looks at one that does not answer
const PATIENCE = 30; // seconds that an answer may take
const AGAIN = 1; // seconds until a part that was not good is asked for again
const MOST_CARDS = 40; // with more than these to fetch, the whole page costs less
const SCHEMA = 1;

const page = document.documentElement.dataset;
const own = page.host; // on a host's own page, its name
const base = own ? "../" : "";
const version = new URL(document.querySelector("script[src]").src).search;

let built = Number(page.built); // of the newest board that is shown
let limit = 150; // a board older than this many seconds is told to be old
let failures = 0;
let trouble = ""; // what keeps the page from following
let asking = false;
let timer = 0;
let pageTaken = Date.now();
const revisions = new Map(); // of each part: what is on the page
const told = new Map(); // of each host: its numbers in live.json

function revisionOf(name) {
  return revisions.get(name) ?? Number(page.built);
}

function cardOf(name) {
  return document.getElementById(name);
}

// A file of the server, and what was said about it. One that has moved is not asked for by its age: servers tell that in whole seconds.
async function get(path, cache = "no-store") {
  let answer;
  let text;
  try {
    answer = await fetch(path, { cache, signal: AbortSignal.timeout(PATIENCE * 1000) });
    text = await answer.text();
  } catch {
    throw new Error("the server does not answer");
  }
  if (!answer.ok) throw new Error(`${path.replace(base, "")} could not be fetched`);
  return { text, headers: answer.headers };
}

function isOld() {
  return serverNow() - built / 1000 > limit;
}

// Whether the board is old, and why, by the clock of the server.
function judgeAge() {
  const age = document.querySelector(".age");
  const old = isOld();
  age.classList.toggle("old", old || trouble !== "");
  const word = age.querySelector("strong");
  word.hidden = !old && !trouble;
  if (!word.hidden) tell(word, `${old ? "Old, " : ""}${trouble || "no new build"}:`);
}

// The numbers of a host, in the cells that have room for them; they are as the builder writes them.
function setNumbers(card) {
  const numbers = told.get(card.id);
  if (!numbers || numbers === card.shown || isHeld(card)) return;
  card.shown = numbers;
  const [, , , seen, load, memory, , gpus] = numbers;
  const time = card.querySelector("header time.ago");
  if (time && seen !== null) setMoment(time, seen);
  const put = (selector, text) => {
    const element = card.querySelector(selector);
    if (element && text) tell(element, text);
  };
  put(".load", load && `load ${load}`);
  put(".ram", memory && `RAM ${memory} GiB`);
  const rows = card.querySelectorAll(".gpus > tbody > tr");
  gpus.forEach((gpu, number) => { if (rows[number]?.cells.length >= 8) setRow(rows[number].cells, gpu); });
}

function setRow(cells, [, use, access, used, usedBar, temperature, draw]) {
  const write = (cell, text) => { if (cell.firstChild.data !== text) cell.firstChild.data = text; };
  const mark = (cell, share) => { if (cell.className && cell.className !== `w${share}`) cell.className = `w${share}`; }; // one without has no meter
  write(cells[2], access ? `${use} ` : use);
  mark(cells[2], Number.parseInt(use, 10) || 0);
  if (access && cells[2].children.length) tell(cells[2].children[0], `access ${access} %`);
  write(cells[3], `${used} ${cells[3].firstChild.data.slice(cells[3].firstChild.data.indexOf("/"))}`);
  mark(cells[3], usedBar);
  write(cells[4], temperature);
  const limited = cells[5].children.length > 0;
  write(cells[5], limited ? `${draw} ` : draw === "–" ? draw : `${draw} W`);
}

// What has the focus, found again after its part of the page was made anew.
function focusKeeper() {
  const element = document.activeElement;
  const part = element?.closest("main > *, .bar");
  if (!part || element === part) return () => {};
  const key = (one) => [one.tagName, one.getAttribute("href"), one.className, one.closest("tr")?.rowIndex, one.closest("[id]")?.id].join();
  const wanted = key(element);
  const place = part.id;
  return () => {
    if (element.isConnected) return;
    const same = [...(document.getElementById(place) || part).querySelectorAll("a, summary, button, [tabindex]")];
    same.find((one) => key(one) === wanted)?.focus({ preventScroll: true });
  };
}

// The card at the top of the screen stays where it is, whatever changes above it.
function placeKeeper() {
  const bar = document.querySelector(".bar").getBoundingClientRect().bottom;
  const at = (pixels) => document.elementFromPoint(innerWidth / 2, Math.max(bar, 0) + pixels)?.closest("main > *");
  const top = at(1) || at(20); // between two cards there is a gap
  const before = top?.getBoundingClientRect().top;
  return () => {
    const moved = top?.isConnected && scrollY > 0 ? top.getBoundingClientRect().top - before : 0;
    if (Math.abs(moved) > 1) scrollBy({ top: moved, behavior: "instant" });
  };
}

// Changes the page around whoever reads it.
function inPlace(change) {
  const keepFocus = focusKeeper();
  const keepPlace = placeKeeper();
  change();
  keepPlace();
  keepFocus();
}

// Whether somebody is about to copy something, or fills something in: such a part waits until that is done.
function isHeld(part) {
  return isSelectedIn(part) || part.matches("dialog, :has(dialog[open])");
}

// Gives a part of the page its new content. The element stays, and with it the height that it had when it was in view.
function renew(old, fresh) {
  if (fresh.dataset.drawn && fresh.dataset.drawn === old.dataset.drawn) return; // charts that nobody drew again
  for (const open of old.querySelectorAll("details[open][id]")) {
    for (const same of fresh.querySelectorAll("details[id]")) if (same.id === open.id) same.open = true;
  }
  if (old.open) fresh.open = true;
  const closed = old.classList.contains("closed");
  if (old.className !== fresh.className) old.className = fresh.className;
  if (fresh.dataset.short) old.dataset.short = fresh.dataset.short;
  old.classList.toggle("closed", closed);
  old.replaceChildren(...fresh.childNodes);
  old.shown = old.kept = undefined;
  if (near.has(old) || !old.matches(".host")) keepUp(old);
}

function put(name, fresh, before) {
  const old = cardOf(name);
  if (own && fresh.matches(".host")) fresh.querySelector("h2").textContent = name;
  if (old) renew(old, fresh);
  else {
    document.querySelector("main > p")?.remove(); // that there is no host yet
    document.querySelector("main").insertBefore(fresh, before ?? (name === "_admin" ? null : cardOf("_waste") ?? cardOf("_admin")));
    if (fresh.matches(".host")) watcher.observe(fresh);
    else keepUp(fresh);
  }
}

// A card, or another part, as it stands on the server: the first line is its revision.
async function readPart(name, revision) {
  const path = `cards/${name}.html`;
  const { text } = await get(base + path);
  const end = text.indexOf("\n");
  const is = Number(text.slice(0, end));
  const html = text.slice(end + 1).trimEnd();
  const fresh = new DOMParser().parseFromString(html, "text/html").body.firstElementChild;
  const whole = fresh ? fresh.id === idOf(name) && html.endsWith(`</${fresh.localName}>`) : (name === "_problems" || name === "_waste") && !html;
  if (!(is >= revision)) throw new Error(`${path} is older than live.json`);
  if (!whole) throw new Error(`${path} is cut, or not of ${name}`);
  return [name, is, fresh];
}

// The builder writes cards right after live.json: one that is not there yet will be in a moment.
async function fetchPart(name, revision) {
  try {
    return await readPart(name, revision);
  } catch {
    await new Promise((done) => { setTimeout(done, AGAIN * 1000); });
    return readPart(name, revision);
  }
}

// Those that moved, in one step.
async function fetchMoved(wanted, order) {
  const results = await Promise.allSettled(wanted.map(([name, revision]) => fetchPart(name, revision)));
  trouble = results.find((result) => result.status === "rejected")?.reason.message ?? "";
  inPlace(() => {
    for (const { value } of results) {
      if (!value) continue;
      const [name, revision, fresh] = value;
      const old = cardOf(idOf(name));
      if (old && isHeld(old)) continue;
      revisions.set(name, revision);
      if (!fresh) old?.remove();
      else put(idOf(name), fresh, nextOf(name, order));
    }
  });
}

function idOf(name) {
  return name === "_problems" ? "_admin" : name;
}

function nameOf(id) {
  return id === "_admin" ? "_problems" : id;
}

// Where a card that is new comes in: before the next one that is there.
function nextOf(name, order) {
  const index = order.indexOf(name);
  if (index < 0) return undefined;
  for (const other of order.slice(index + 1)) if (cardOf(other)) return cardOf(other);
  return undefined;
}

// The whole page anew, where most of it has changed; not one that was made before `least`.
async function fetchPage(least) {
  const { text } = await get(location.pathname);
  const fresh = new DOMParser().parseFromString(text, "text/html");
  const at = Number(fresh.documentElement.dataset.built);
  if (!at || !text.trimEnd().endsWith("</html>")) throw new Error("the new page is cut");
  if (at < least) throw new Error("the new page is older than live.json");
  pageTaken = Date.now();
  page.built = String(at);
  revisions.clear();
  inPlace(() => takeOver([...fresh.querySelector("main").children].filter((part) => part.id)));
}

function takeOver(parts) {
  const names = new Set(parts.map((part) => part.id));
  for (const part of [...document.querySelector("main").children]) {
    if (part.id && !names.has(part.id) && !isHeld(part)) part.remove();
  }
  let before = null;
  for (const part of parts.reverse()) {
    const old = cardOf(part.id);
    if (old && isHeld(old)) revisions.set(nameOf(part.id), 0); // to be fetched as soon as it is let go
    else put(part.id, part, before);
    before = cardOf(part.id);
  }
}

function isHost(host) {
  return Array.isArray(host) && typeof host[0] === "string" && host[1] > 0 && Array.isArray(host[7]) && host[7].every(Array.isArray);
}

function isLive(live) {
  return live?.schema === SCHEMA && live.built > 0 && live.every > 0 && Array.isArray(live.hosts) && live.hosts.every(isHost)
    && live.parts !== null && typeof live.parts === "object";
}

function removeGone(order) {
  const there = new Set(order);
  const gone = [...document.querySelectorAll("main > .host")].filter((card) => !there.has(card.id) && !isHeld(card));
  if (!gone.length) return;
  inPlace(() => gone.forEach((card) => {
    near.delete(card);
    told.delete(card.id);
    card.remove();
  }));
}

// The bar stays as it is, but for what it says of others.
function tellBar(free) {
  document.title = `${free} free · gpuboard`;
  const icon = document.querySelector("link[rel=icon]");
  if (!icon.href.endsWith(`?${free}`)) icon.href = `icon.svg?${free}`;
  tellCount("waste-count", "#_waste", cardOf("_waste")?.dataset.short);
  tellCount("problem-count", "#_problems", cardOf("_admin")?.querySelector("summary").textContent.replace("For the admin: ", ""));
}

// A link to a part at the end, for as long as there is something in it.
function tellCount(name, href, text) {
  const link = document.querySelector(`.${name}`) ?? document.createElement("a");
  if (!text) link.remove();
  else {
    [link.className, link.href] = [name, href];
    tell(link, text);
    if (!link.isConnected) document.querySelector(name === "waste-count" ? ".problem-count, .age" : ".age").before(link);
  }
}

async function follow(live) {
  const hosts = own ? live.hosts.filter(([name]) => name === own) : live.hosts;
  const order = hosts.map(([name]) => name);
  const all = own ? hosts : [...Object.entries(live.parts), ...hosts];
  const wanted = all.filter(([name, revision]) => revision > revisionOf(name) || (name[0] !== "_" && !cardOf(name)));
  for (const host of hosts) told.set(host[0], host);
  if (own && !hosts.length) throw new Error(`${own} is no longer on the board`);
  if (!own) removeGone(order);
  try {
    if (wanted.length > MOST_CARDS) await fetchPage(Math.max(...wanted.map(([, revision]) => revision)));
    else if (wanted.length) await fetchMoved(wanted, order);
    if (own && Date.now() - pageTaken > 60000) await fetchPage(Number(page.built));
  } catch (error) {
    trouble = error.message; // the numbers are good
  }
  near.forEach(setNumbers);
  if (!own) tellBar(live.free);
  document.dispatchEvent(new Event("board"));
}

// Another version of this program has built the board. If the server still gives the page of this one, a moment later is early enough.
function loadAgain() {
  const again = performance.getEntriesByType("navigation")[0]?.type === "reload" && performance.now() < 60000;
  if (again || document.querySelector("dialog[open]")) trouble = "a new version waits to be loaded";
  else location.reload();
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

async function look() {
  const { text, headers } = await get(`${base}live.json`, "no-cache");
  const off = (Date.now() - Date.parse(headers.get("Date"))) / 1000 - Number(headers.get("Age"));
  ahead = Math.abs(off) > 5 ? off : 0; // the server tells whole seconds, and not all tell the time
  const live = parsed(text);
  trouble = "";
  if (!isLive(live)) trouble = "live.json cannot be read";
  else if (live.built < built) trouble = "live.json is older than the page";
  else if (live.version !== version.slice(1)) loadAgain();
  else {
    built = live.built;
    limit = Math.max(40, 2.5 * live.every);
    setMoment(document.querySelector(".age time"), built / 1000);
    await follow(live);
  }
}

async function refresh() {
  if (document.hidden || asking) return;
  clearTimeout(timer);
  asking = true;
  try {
    await look();
    failures = 0;
  } catch (error) {
    failures += 1;
    trouble = error.message;
  } finally {
    asking = false;
    judgeAge();
    tick();
    timer = setTimeout(refresh, Math.min(SLOWEST, EVERY * 2 ** failures) * 1000);
  }
}

upkeep.push(setNumbers);
setInterval(() => { if (!document.hidden) judgeAge(); }, 1000);
document.addEventListener("visibilitychange", () => {
  if (document.hidden) clearTimeout(timer);
  else {
    tick();
    refresh();
  }
});
// A page that seems old, or of tomorrow, may be shown by a clock that is wrong: the server is asked before that is said.
if (isOld() || built / 1000 - serverNow() > 5) refresh();
else {
  judgeAge();
  timer = setTimeout(refresh, EVERY * 1000);
}
