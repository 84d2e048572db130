// One's own current bookings above the board, each with a button that releases it at once.

const { // of the same version as the page
  buildCaller, createButton, createElement, createListItem, describeAnswer, formatBookingTime, isOwnEntry, readStored, requestCaller, requestService, showStatus, storeValue,
} = await import(`./dialog-parts.js${version}`);

const MAX_SHOWN = 3;
const RELOAD_INTERVAL_S = 300; // bookings may also be changed elsewhere
const REPEAT_DELAY_MS = 600; // a click this soon after a release is the second of a double click
const FAILED = "Could not be loaded.";
const UNKNOWN = { how: null, bookings: [] };
const serviceUrl = new URL(page.book, location.href);
const section = document.querySelector(".own-bookings");
const list = createElement("ul");
const more = createElement("button", { type: "button", className: "me", hidden: true }); // it opens the menu
const said = createElement("p", { role: "status" });
let caller = UNKNOWN; // what the booking service says about the person who asks
let token = "";
let loadNumber = 0; // counts requests; the response to an older one is ignored
let loadedAt = 0;
let reportedAt = 0; // when a message was shown, in milliseconds
let firstEnd = Infinity;

// Show a message in the line.
function report(...message) {
  showStatus(said, ...message);
  reportedAt = performance.now();
  updateRoom();
}

// Show the line while there is anything in it, and remember how much room it takes: first-paint.js keeps that free.
function updateRoom() {
  const rows = list.childElementCount + (more.hidden ? 0 : 1);
  storeValue("own", rows ? String(rows) : "");
  if (rows || said.textContent) page.own = rows;
  else delete page.own;
}

// Show the bookings of whoever this is now.
export function start() {
  showStatus(said, "");
  load();
}

// Ask the booking service for the caller's bookings.
async function load() {
  const number = (loadNumber += 1);
  loadedAt = serverNow();
  const [response, , usedToken] = await requestCaller(serviceUrl, { person: readStored("me") });
  if (number !== loadNumber) return;
  token = usedToken;
  if (response) {
    caller = response;
    if (said.textContent === FAILED) showStatus(said, "");
    show();
  } else if (page.own && !said.textContent) showStatus(said, FAILED);
}

// Return when a booking ends, in seconds; of one that repeats, its time now.
function findEnd({ date, rrule, spans }) {
  return rrule ? spans?.[0]?.[1] ?? Infinity : Date.parse(date) / 1000;
}

// Show the bookings that run now, what ends first first; without any, the line goes.
function show() {
  const own = caller.bookings.filter((booking) => booking.phase === "now" && isOwnEntry(booking, caller, readStored("me"))).sort((a, b) => findEnd(a) - findEnd(b));
  const items = own.slice(0, MAX_SHOWN).map(buildItem);
  firstEnd = Math.min(...own.map(findEnd));
  const [text, shownText] = [items, [...list.children]].map((lines) => lines.map((line) => line.textContent).join("\n"));
  if (text !== shownText) {
    const hadFocus = list.contains(document.activeElement);
    list.replaceChildren(...items);
    if (hadFocus) section.focus();
  }
  more.hidden = own.length <= MAX_SHOWN;
  if (!more.hidden) more.textContent = `${own.length - MAX_SHOWN} more`;
  updateRoom();
}

// Build the line of a booking. For one that repeats the button opens the menu: a release would end all its repeats, but not the one that runs.
function buildItem(booking) {
  const text = ` until ${booking.rrule ? formatClock(findEnd(booking)) : formatBookingTime(booking.date)}`;
  const item = createListItem(booking.where, text);
  const request = { do: "release", id: booking.id, host: booking.host };
  if (booking.rrule) item.append(createElement("button", { type: "button", className: "me", textContent: "Details", "aria-label": `Details of ${booking.where}${text}` }));
  else item.append(createButton("Release", () => sendRequest(request), `Release ${booking.where}${text}`));
  return item;
}

// Release a booking, or take that back.
async function sendRequest(request) {
  if (section.hasAttribute("aria-busy")) return;
  section.setAttribute("aria-busy", "true");
  try {
    const as = buildCaller(caller, { value: readStored("me") });
    const answer = await requestService(serviceUrl, token, { request: { ...request, ...as } });
    const undo = answer.change && request.do === "release" && createButton("Undo", ({ detail }) => {
      if (!detail || performance.now() - reportedAt > REPEAT_DELAY_MS) sendRequest({ do: "undo", undoes: answer.change });
    });
    caller.bookings = caller.bookings.filter(({ id, host }) => id !== request.id || host !== request.host);
    show();
    report(describeAnswer(answer), "good", [], undo);
    (undo || section).focus();
    refresh(); // shows it on the board too
  } catch (error) {
    report(error.message, "bad");
  } finally {
    section.removeAttribute("aria-busy");
    load();
  }
}

section.tabIndex = -1;
section.append(list, more, said);
document.addEventListener("board", () => {
  const isOld = serverNow() - loadedAt > RELOAD_INTERVAL_S;
  if (isOld && performance.now() - reportedAt > RELOAD_INTERVAL_S * 1000 && !section.contains(document.activeElement)) report("");
  if (isOld || (firstEnd <= serverNow() && serverNow() - firstEnd < RELOAD_INTERVAL_S)) load();
});
