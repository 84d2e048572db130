// What the dialogs share: elements, storage, times, shell commands, and requests to the booking service.

export const HOUR_MS = 3600_000;
const VIEWER_ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;
const RESPONSE_TIMEOUT_MS = 30_000; // how long a response may take

// Read a value that this browser stores; "" if there is none.
export function readStored(key) {
  try {
    return localStorage.getItem(`gpuboard.${key}`) ?? "";
  } catch {
    return ""; // without storage people are asked again
  }
}

// Store a value in this browser, or remove it if it is empty.
export function storeValue(key, text) {
  try {
    if (text) localStorage.setItem(`gpuboard.${key}`, text);
    else localStorage.removeItem(`gpuboard.${key}`);
  } catch {
    // without storage people are asked again
  }
}

// Create an element with properties or attributes and children.
export function createElement(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (key in element) element[key] = value;
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

// Create a button.
export function createButton(text, onClick, label = text) {
  const button = createElement("button", { type: "button", textContent: text, "aria-label": label });
  button.addEventListener("click", onClick);
  return button;
}

// Create a label with its text and field.
export function createLabel(text, ...parts) {
  return createElement("label", {}, createElement("span", { textContent: text }), ...parts);
}

// Create a dialog: a title, a part that scrolls, and a foot with the status and the buttons, which always shows.
export function createDialog(title, onClose, body, foot) {
  const dialog = createElement("dialog", { className: "dialog", "aria-labelledby": title.id },
    createElement("header", {}, title, createButton("×", () => dialog.close(), "Close")),
    createElement("div", { className: "body" }, ...body), createElement("footer", {}, ...foot));
  dialog.addEventListener("close", onClose);
  document.body.append(dialog);
  return dialog;
}

// Times: a field has the viewer's local time without an offset; what is sent has one.

const padNumber = (number) => String(number).padStart(2, "0");

// Format a time as the value of a field.
export function formatFieldTime(epoch) {
  const day = new Date(epoch);
  return `${day.getFullYear()}-${padNumber(day.getMonth() + 1)}-${padNumber(day.getDate())}T${padNumber(day.getHours())}:${padNumber(day.getMinutes())}`;
}

// Format the UTC offset of the viewer's zone at a time.
function formatOffset(epoch) {
  const minutes = -new Date(epoch).getTimezoneOffset();
  const absolute = Math.abs(minutes);
  return `${minutes < 0 ? "-" : "+"}${padNumber(Math.floor(absolute / 60))}:${padNumber(absolute % 60)}`;
}

// Format a time of the booking service in the viewer's zone, with the lab's time beside it where that differs.
export function formatBookingTime(time) {
  const seconds = Date.parse(time) / 1000;
  if (isLocal(time, seconds)) return formatClock(seconds);
  const labDay = time.slice(0, 10);
  const day = labDay === formatFieldTime(seconds * 1000).slice(0, 10) ? "" : `${new Date(labDay).toLocaleDateString("en", { weekday: "short", timeZone: "UTC" })} `;
  return `${formatClock(seconds)} (lab: ${day}${time.slice(11, 16)})`;
}

// Return the UTC offset of the lab at a time, in minutes; where its zone is unknown, that of the board's last update.
function findLabOffset(zone, epoch) {
  try {
    const parts = new Intl.DateTimeFormat("en", { timeZone: zone ?? "unknown", timeZoneName: "longOffset" }).formatToParts(epoch);
    return parseOffset(parts.find(({ type }) => type === "timeZoneName").value);
  } catch {
    return parseOffset(document.querySelector(".age time")?.dateTime ?? "");
  }
}

// Say whose times the fields have, if the viewer's clock and the lab's differ at one of these times.
export function describeZones(zone, epochs) {
  if (epochs.every((epoch) => findLabOffset(zone, epoch) === -new Date(epoch).getTimezoneOffset())) return "";
  const shorten = (name) => name.split("/").at(-1).replaceAll("_", " ");
  return `Times are yours (${shorten(VIEWER_ZONE)})${zone ? `; lab: ${shorten(zone)}` : ", not the lab's"}`;
}

// Format the value of a field for a request.
export function formatIsoTime(value) {
  return `${value}:00${formatOffset(Date.parse(value))}`;
}

// Format the value of a field as in comments.json.
function formatFileTime(value) {
  return value.replace("T", " ") + formatOffset(Date.parse(value));
}

// Format the value of a field for a command: without the offset where the board's zone is the viewer's.
function formatCommandTime(value) {
  const now = serverNow() * 1000;
  const isSameZone = parseOffset(document.querySelector(".age time").dateTime) === -new Date(now).getTimezoneOffset();
  return isSameZone && formatOffset(now) === formatOffset(Date.parse(value)) ? value.replace("T", " ") : formatFileTime(value);
}

// List common ends of a booking that are after its start; hours and weeks count from `first`, the end that it has now.
export function listEnds(now, start, first) {
  const day = new Date(now);
  const on = (days, hours) => new Date(day.getFullYear(), day.getMonth(), day.getDate() + days, hours).getTime();
  const friday = (12 - day.getDay()) % 7;
  const sign = first === start ? "" : "+";
  const choices = [
    [`${sign}2 h`, first + 2 * HOUR_MS],
    [`${sign}6 h`, first + 6 * HOUR_MS],
    ["today 18:00", on(0, 18)],
    ["tomorrow 09:00", on(1, 9)],
    ["Fri 18:00", on(friday, 18) > start ? on(friday, 18) : on(friday + 7, 18)],
    [`${sign}1 week`, first + 7 * 24 * HOUR_MS],
  ];
  return choices.filter(([, end], number) => end > start && !choices.slice(0, number).some(([, earlier]) => earlier === end));
}

// Quote a word for a shell.
function quoteWord(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

// Return whether a header can hold this text; copied text may have other dashes, or invisible blanks.
function isToken(text) {
  return /^[!-~]+$/.test(text);
}

// Create the fields to sign in with a token and to sign out; `changeToken` starts again with a token, or without one.
export function createTokenFields(showMessage, changeToken) {
  const token = createElement("input", { type: "password", name: "token", autocomplete: "off" });
  const useToken = () => {
    const typed = token.value.trim();
    if (!isToken(typed)) {
      showMessage(typed ? "The token has invalid characters; copy it again." : "Enter your token.", "bad");
      return token.focus();
    }
    token.value = "";
    changeToken(typed);
  };
  const login = createElement("div", { className: "login", hidden: true },
    createLabel("Token", token), createButton("Sign in", useToken),
    createElement("p", { className: "soft" }, "Your admin creates it with ", createElement("code", { textContent: "gpuboard token NAME" }), ". It stays in this browser."));
  return { token, useToken, login, forget: createButton("Sign out", () => changeToken("")) };
}

// A new booking, for a shell and for comments.json

// Build the words of the command that makes this booking.
export function buildCommand(place, { from, until, comment, name }) {
  const options = { "--from": from && formatCommandTime(from), "--until": formatCommandTime(until), "--comment": comment, "--name": name };
  return ["gpuboard", "book", place, ...Object.entries(options).filter(([, text]) => text).flat()].map(quoteWord);
}

// Build the entry of comments.json that makes this booking.
export function buildFileEntry(host, keys, { from, until, comment, name }) {
  const entry = { name, ...(from ? { from: formatFileTime(from) } : {}), date: formatFileTime(until), ...(comment ? { comment } : {}) };
  return JSON.stringify({ [host]: Object.fromEntries(keys.map((key) => [key, entry])) }, null, 2);
}

// Create the choices of a host: all of it, then each GPU with its state and users; without a card that lists them, the chosen ones.
export function createGpuChoices(host, card, chosen) {
  const rows = [...(card?.querySelectorAll(".gpus > tbody > tr") ?? [])].filter((row) => /^[a-z]*\d+(:\d+)?$/.test(row.cells[0].textContent));
  const createChoice = (value, className, ...parts) => createElement("label", { className }, createElement("input", { type: "checkbox", value }), ...parts);
  const whole = createChoice("*", "all", createElement("span", { textContent: `All GPUs of ${host}` }));
  whole.hidden = rows.length === 1;
  if (!rows.length) return [whole, ...chosen.map((number) => createChoice(number, "", createElement("b", { textContent: number })))];
  return [whole, ...rows.map((row) => {
    const names = (selector) => [...new Set([...row.querySelectorAll(selector)].map((element) => element.textContent))].join(", ");
    const users = names("li > b") || names(".booking.now > b");
    const number = row.cells[0].textContent;
    const state = row.cells[1].firstChild.data.trim();
    return createChoice(number, row.className, createElement("b", { textContent: number }), createElement("span", { className: "word", textContent: state }), createElement("span", { className: "soft", textContent: users, title: users }));
  })];
}

// Check the box of the whole host if all of its GPUs are chosen.
export function updateWholeHost(gpus, all) {
  const boxes = [...gpus.querySelectorAll("input")].filter((box) => box !== all);
  const count = boxes.filter((box) => box.checked).length;
  if (!boxes.length) all.checked = true;
  else if (boxes.length > 1) all.checked = count === boxes.length;
  all.indeterminate = count > 0 && count < boxes.length;
}

// Bookings

// Describe when a booking begins and ends.
export function describeTimes({ from, date, rrule, repeats, phase }) {
  const format = formatBookingTime;
  if (repeats) return `${repeats}, first ${format(from)}`;
  if (rrule) return `repeats (${rrule}), first ${format(from)} until ${format(date)}`;
  return phase === "now" || !from ? `until ${format(date)}` : `from ${format(from)} until ${format(date)}`;
}

// Name what a release does: it ends all repeats, but not one that has started.
export function nameRelease({ rrule }) {
  return rrule ? "Stop repeating" : "Release";
}

// Create a list item that begins with a place in bold.
export function createListItem(where, ...parts) {
  return createElement("li", {}, createElement("span", {}, createElement("b", { textContent: where }), ...parts));
}

// Read the bookings from a card: the text of each, and its GPUs.
export function readCardBookings(card) {
  const gpusByText = new Map();
  if (card) updateTimes(card); // off the screen its times may still be the lab's
  for (const booking of card?.querySelectorAll(".booking.now, .booking.coming") ?? []) {
    const row = booking.closest("tr");
    const copy = booking.cloneNode(true);
    const comment = copy.querySelector(".soft")?.textContent ?? "";
    for (const part of copy.querySelectorAll(".left, .used-by, .unused, .mean, .soft")) part.remove();
    const text = `${copy.textContent.replace(/^Whole host: /, "").replace(/[\s·]*$/, "")} ${comment}`.trim();
    if (!/ (until|from) /.test(` ${text}`) || row?.cells[0].textContent === "?") continue; // a booking of the whole host, which is listed above
    gpusByText.set(text, [...(gpusByText.get(text) ?? []), row ? row.cells[0].textContent : "*"]);
  }
  return [...gpusByText];
}

// Find when the next booking of one of these GPUs starts, by the card of their host; infinity if none does.
export function findNextStart(card, keys) {
  const isMeant = (label) => keys.some((key) => key === "*" || key === label || key.startsWith(`${label}:`) || label.startsWith(`${key}:`)); // an instance is in its GPU
  const rowLabel = (booking) => booking.closest("tr")?.cells[0].textContent;
  const bookings = [...(card?.querySelectorAll(".booking.coming") ?? [])].filter((booking) => !rowLabel(booking) || isMeant(rowLabel(booking)));
  return Math.min(...bookings.map((booking) => parseSeconds(booking.querySelector("time").dateTime) * 1000));
}

// Requests to the booking service

// Describe why there is no usable response.
function describeFailure(answer, isChange) {
  if (!answer) return isChange ? "No reply. Check the calendar before you retry." : "No reply from the booking service. Try again.";
  if (answer.status === 404 || answer.status === 405) return "Booking service not found. Ask the admin to check GPUBOARD_BOOK_URL.";
  return answer.ok ? "The reply of the booking service is unreadable. Reload the page." : `The booking service failed (${answer.status}). Try again later.`;
}

// Send a request to the booking service; without one, ask who the caller is and what is booked, as `query` says.
export async function requestService(serviceUrl, token, { query, request }) {
  const url = new URL(serviceUrl);
  if (!request) url.search = new URLSearchParams(query);
  const headers = { "X-Gpuboard-Zone": VIEWER_ZONE, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  if (request) Object.assign(headers, { "Content-Type": "application/json", "X-Gpuboard": "1" });
  let answer = null;
  let content = null;
  try {
    answer = await fetch(url, { method: request ? "POST" : "GET", headers, body: request && JSON.stringify(request), cache: "no-store", signal: AbortSignal.timeout(RESPONSE_TIMEOUT_MS) });
    content = await answer.json();
  } catch {
    // described below
  }
  if (answer?.ok && typeof content === "object" && content) return content;
  const sentence = content?.error || describeFailure(answer, request && !request.check);
  throw Object.assign(new Error(/[.!?]$/.test(sentence) ? sentence : `${sentence}.`), { status: answer?.status });
}

// Ask who the caller is. Return the response, the error, and the token to use: a stored token that is refused is reported, and not used.
export async function requestCaller(serviceUrl, query) {
  const storedToken = isToken(readStored("token")) ? readStored("token") : "";
  try {
    return [await requestService(serviceUrl, storedToken, { query }), null, storedToken];
  } catch (error) {
    if (error.status !== 401 || !storedToken) return [null, error, storedToken];
    return requestService(serviceUrl, "", { query }).then((caller) => [caller, error, ""], (secondError) => [null, secondError, storedToken]);
  }
}

// Begin a sentence of the booking service with a capital, unless its first word is a host or a GPU.
function capitalizeSentence(sentence) {
  const [word] = /^[a-z]+(?= )/.exec(sentence) ?? [];
  return word && !findCard(word) ? sentence[0].toUpperCase() + sentence.slice(1) : sentence;
}

// Show a message in a dialog, with its kind (`good`, `bad` or none), warnings and buttons.
export function showStatus(status, text, kind = "", warnings = [], ...buttons) {
  status.className = kind;
  status.replaceChildren(...(text ? [capitalizeSentence(text)] : []), ...buttons.filter(Boolean), ...warnings.map((warning) => createElement("span", { textContent: capitalizeSentence(warning) })));
}

// Describe what a request did.
export function describeAnswer({ said }) {
  return `${said.replace(/^undo of /, "Undone: ")}.`;
}

// Return whether a booking or notification is the caller's own; an open booking service takes people's word for their name.
export function isOwnEntry({ mine, name, by }, { how }, callerName) {
  const me = callerName.trim().toLowerCase();
  return mine || (how === "open" && me !== "" && [name, by].some((person) => person?.toLowerCase() === me));
}

// Build the part of a request that says who asks: an open booking service takes people's word for it.
export function buildCaller(caller, nameField) {
  return caller.how === "open" ? { as: nameField.value.trim() } : {};
}
