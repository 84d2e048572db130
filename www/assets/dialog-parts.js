// What both dialogs share: elements, storage, times, shell commands, and requests to the booking service.

const HOUR_MS = 3600_000;
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

// List common ends of a booking that are after its start; `+2 h` counts from `first`.
export function listEnds(now, start, first) {
  const day = new Date(now);
  const on = (days, hours) => new Date(day.getFullYear(), day.getMonth(), day.getDate() + days, hours).getTime();
  const friday = (12 - day.getDay()) % 7;
  const choices = [
    ["+2 h", first + 2 * HOUR_MS],
    ["today 18:00", on(0, 18)],
    ["tomorrow 09:00", on(1, 9)],
    ["Fri 18:00", on(friday, 18) > start ? on(friday, 18) : on(friday + 7, 18)],
    ["+1 week", first + 7 * 24 * HOUR_MS],
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

// Create the fields to enter and forget a token; `changeToken` starts again with a token, or without one.
export function createTokenFields(showMessage, changeToken) {
  const token = createElement("input", { type: "password", name: "token", autocomplete: "off" });
  const useToken = () => {
    const typed = token.value.trim();
    if (!isToken(typed)) {
      showMessage(typed ? "This is no token: something in it is no plain letter, digit or sign; copy it again." : "Give your token.", "bad");
      return token.focus();
    }
    token.value = "";
    changeToken(typed);
  };
  const login = createElement("div", { className: "login", hidden: true },
    createLabel("Token", token), createButton("Use the token", useToken),
    createElement("p", { className: "soft" }, "The admin makes one with ", createElement("code", { textContent: "gpuboard token NAME" }), "; it stays in this browser."));
  return { token, useToken, login, forget: createButton("Forget the token", () => changeToken("")) };
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

// Create the choices of a host: all of it, then each GPU with its state and users.
export function createGpuChoices(host, card) {
  const rows = [...(card?.querySelectorAll(".gpus > tbody > tr") ?? [])].filter((row) => /^[a-z]*\d+(:\d+)?$/.test(row.cells[0].textContent));
  const createChoice = (value, className, ...parts) => createElement("label", { className }, createElement("input", { type: "checkbox", value }), ...parts);
  const whole = createChoice("*", "all", createElement("span", { textContent: `All GPUs of ${host}` }));
  whole.hidden = rows.length === 1;
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
  const format = (text) => formatClock(Date.parse(text) / 1000);
  if (repeats) return `${repeats}, first ${format(from)}`;
  if (rrule) return `repeats (${rrule}), first ${format(from)} until ${format(date)}`;
  return phase === "now" || !from ? `until ${format(date)}` : `from ${format(from)} until ${format(date)}`;
}

// Create a list item that begins with a place in bold.
export function createListItem(where, ...parts) {
  return createElement("li", {}, createElement("span", {}, createElement("b", { textContent: where }), ...parts));
}

// Read the bookings from a card: the text of each, and its GPUs.
export function readCardBookings(card) {
  const gpusByText = new Map();
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

// Requests to the booking service

// Describe why there is no usable response.
function describeFailure(answer) {
  if (!answer) return "The booking service does not answer: try again, or check whether it was booked.";
  if (answer.status === 404 || answer.status === 405) return "There is no booking service at the address that the board gives: ask its admin to check GPUBOARD_BOOK_URL.";
  return answer.ok ? "The booking service gave no answer that can be read: load the page again." : `The booking service failed (${answer.status}): try again later.`;
}

// Send a request to the booking service; without one, ask who the caller is and what is booked on a host.
export async function requestService(serviceUrl, token, { host, request }) {
  const url = new URL(serviceUrl);
  if (!request) url.searchParams.set("host", host);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
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
  const sentence = content?.error || describeFailure(answer);
  throw Object.assign(new Error(/[.!?]$/.test(sentence) ? sentence : `${sentence}.`), { status: answer?.status });
}

// Ask who the caller is. Return the response, the error, and the token to use: a stored token that is refused is reported, and not used.
export async function requestCaller(serviceUrl, host) {
  const storedToken = isToken(readStored("token")) ? readStored("token") : "";
  try {
    return [await requestService(serviceUrl, storedToken, { host }), null, storedToken];
  } catch (error) {
    if (error.status !== 401 || !storedToken) return [null, error, storedToken];
    return requestService(serviceUrl, "", { host }).then((caller) => [caller, error, ""], (secondError) => [null, secondError, storedToken]);
  }
}

// Show a message in a dialog, with its kind (`good`, `bad` or none) and warnings.
export function showStatus(status, text, kind = "", warnings = []) {
  status.className = kind;
  status.replaceChildren(...(text ? [text] : []), ...warnings.map((warning) => createElement("span", { textContent: warning })));
}

// Build the part of a request that says who asks: an open booking service takes people's word for it.
export function buildCaller(caller, nameField) {
  return caller.how === "open" ? { as: nameField.value.trim() } : {};
}
