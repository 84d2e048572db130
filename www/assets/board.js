// Keeps an open board up to date: turns times into ages, and takes over each new build. The page is complete without it.
"use strict";

const EVERY = 10; // seconds between looks at the server
const SLOW = 20; // seconds between looks at what changes by the minute
const PATIENCE = 30; // seconds that an answer may take
const OLD = 120; // a board older than this is told to be old

let ahead = 0; // seconds by which this machine's clock is ahead of the server's, by which all times are
let away = false; // the server did not answer the last time
let asking = false;
const shown = new WeakMap(); // of each part of the page that was taken over, what it was made of

function duration(minutes) {
  if (minutes < 60) return `${minutes} min`;
  const [large, small, names] = minutes < 1440
    ? [Math.floor(minutes / 60), minutes % 60, ["h", "min"]]
    : [Math.floor(minutes / 1440), Math.floor((minutes % 1440) / 60), ["d", "h"]];
  return small ? `${large} ${names[0]} ${small} ${names[1]}` : `${large} ${names[0]}`;
}

function since(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  return whole < 60 ? `${whole} s` : duration(Math.floor(whole / 60));
}

// Rounded up, as the builder writes it.
function left(seconds) {
  if (seconds <= 0) return "ended";
  const minutes = Math.ceil(seconds / 60);
  return `${duration(minutes < 1440 ? minutes : Math.ceil(seconds / 3600) * 60)} left`;
}

function secondsOf(time) {
  return Date.parse(time.replace(" ", "T")) / 1000;
}

// Puts a text where it differs; the time itself goes into the title.
function tell(element, time, text) {
  if (!element.title) element.title = time;
  if (element.textContent !== text) element.textContent = text;
}

function tick() {
  const now = Date.now() / 1000 - ahead;
  for (const time of document.querySelectorAll("time.ago")) {
    tell(time, time.dateTime, `${since(now - secondsOf(time.dateTime))} ago`);
  }
  const age = document.querySelector(".age");
  const old = now - secondsOf(age.querySelector("time").dateTime) > OLD;
  age.classList.toggle("old", old);
  const word = age.querySelector("strong");
  word.hidden = !old;
  const text = away ? "Old, the server does not answer:" : "Old, no new build:";
  if (word.textContent !== text) word.textContent = text;
}

// Run times and bookings: of these there may be 16,000, and minutes are all that matters.
function slowTick() {
  const now = Date.now() / 1000 - ahead;
  for (const time of document.querySelectorAll("time.left")) {
    tell(time, time.dateTime, left(secondsOf(time.dateTime) - now));
  }
  for (const run of document.querySelectorAll(".for")) {
    // its text is all that tells when it began, and is replaced
    const time = run.title || run.textContent;
    tell(run, time, since(now - secondsOf(time.replace("since ", ""))));
  }
}

// What can have the focus, found again after its part of the page was made anew.
function focused() {
  const element = document.activeElement;
  const part = element?.closest("main > *, .bar");
  const key = (one) => `${one.tagName} ${one.getAttribute("href")} ${one.parentElement.id}`;
  if (!part || element === part) return () => {};
  const wanted = key(element);
  return () => {
    if (element.isConnected) return;
    const same = [...part.querySelectorAll("a, summary")].find((one) => key(one) === wanted);
    same?.focus({ preventScroll: true });
  };
}

// Gives a part of the page its new content. The element stays, and with it the height that it had when it was in view.
function renew(old, fresh) {
  const made = fresh.outerHTML;
  if (shown.get(old) === made) return;
  shown.set(old, made);
  for (const open of old.querySelectorAll("details[open][id]")) {
    for (const same of fresh.querySelectorAll("details[id]")) if (same.id === open.id) same.open = true;
  }
  if (old.className !== fresh.className) old.className = fresh.className;
  old.replaceChildren(...fresh.childNodes);
}

// Hosts by their names, the rest by what it is; no host can be called what has a space.
function keyOf(part) {
  return part.id || ` ${part.className}`;
}

function takeOver(page) {
  const main = document.querySelector("main");
  const refocus = focused();
  const bar = document.querySelector(".bar");
  const at = (pixels) => document.elementFromPoint(innerWidth / 2, bar.getBoundingClientRect().bottom + pixels);
  const top = at(1)?.closest("main > *") || at(20)?.closest("main > *"); // between two cards there is a gap
  const before = top?.getBoundingClientRect().top;
  document.title = page.title;
  renew(bar, page.querySelector(".bar"));
  const parts = [...page.querySelector("main").children];
  const kept = new Set(parts.map(keyOf));
  for (const part of [...main.children]) if (!kept.has(keyOf(part))) part.remove();
  const olds = new Map([...main.children].map((part) => [keyOf(part), part]));
  let place = main.firstElementChild;
  for (const fresh of parts) {
    const old = olds.get(keyOf(fresh));
    if (old) renew(old, fresh);
    if (old && old === place) place = place.nextElementSibling;
    else main.insertBefore(old || fresh, place);
  }
  tick();
  slowTick();
  refocus();
  if (top?.isConnected && scrollY > 0) scrollBy({ top: top.getBoundingClientRect().top - before, behavior: "instant" });
}

async function refresh() {
  if (document.hidden || asking) return;
  asking = true;
  try {
    const answer = await fetch(location.pathname, { cache: "no-cache", signal: AbortSignal.timeout(PATIENCE * 1000) });
    away = !answer.ok;
    if (away) return;
    const off = Date.now() / 1000 - Date.parse(answer.headers.get("Date")) / 1000 - Number(answer.headers.get("Age"));
    ahead = Math.abs(off) > 5 ? off : 0; // the server tells whole seconds, and not all tell the time
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const built = page.querySelector(".age time")?.dateTime;
    if (!built || !page.querySelector("main")) return;
    const script = (one) => one.querySelector("script").getAttribute("src");
    if (script(page) !== script(document)) location.reload(); // another version of this program
    else if (built !== document.querySelector(".age time").dateTime) takeOver(page);
  } catch {
    away = true;
  } finally {
    asking = false;
  }
}

tick();
slowTick();
setInterval(tick, 1000);
setInterval(slowTick, SLOW * 1000);
setInterval(refresh, EVERY * 1000);
document.addEventListener("visibilitychange", refresh);
