// What the dialogs of the desk are made of: elements, what the browser keeps, times, words for a shell, and questions to the desk.

const HOUR = 3600_000;
const LONGEST = 30_000; // milliseconds that an answer may take

export function recall(key) {
  try {
    return localStorage.getItem(`gpuboard.${key}`) ?? "";
  } catch {
    return ""; // a browser that keeps nothing asks again
  }
}

export function keep(key, text) {
  try {
    if (text) localStorage.setItem(`gpuboard.${key}`, text);
    else localStorage.removeItem(`gpuboard.${key}`);
  } catch {
    // the same
  }
}

export function make(tag, more = {}, ...parts) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(more)) {
    if (key in element) element[key] = value;
    else element.setAttribute(key, value);
  }
  element.append(...parts);
  return element;
}

export function button(text, work, label = text) {
  const one = make("button", { type: "button", textContent: text, "aria-label": label });
  one.addEventListener("click", work);
  return one;
}

export function label(text, ...parts) {
  return make("label", {}, make("span", { textContent: text }), ...parts);
}

// Times: a field has the viewer's, without an offset; what goes out has one.

const two = (number) => String(number).padStart(2, "0");

export function field(epoch) {
  const day = new Date(epoch);
  return `${day.getFullYear()}-${two(day.getMonth() + 1)}-${two(day.getDate())}T${two(day.getHours())}:${two(day.getMinutes())}`;
}

function offset(epoch) {
  const minutes = -new Date(epoch).getTimezoneOffset();
  const size = Math.abs(minutes);
  return `${minutes < 0 ? "-" : "+"}${two(Math.floor(size / 60))}:${two(size % 60)}`;
}

export function iso(value) {
  return `${value}:00${offset(Date.parse(value))}`;
}

function written(value) {
  return value.replace("T", " ") + offset(Date.parse(value));
}

// For a command: without the offset where the board's zone is the viewer's.
function typed(value) {
  const now = serverNow() * 1000;
  const theirs = offsetOf(document.querySelector(".age time").dateTime) === -new Date(now).getTimezoneOffset();
  return theirs && offset(now) === offset(Date.parse(value)) ? value.replace("T", " ") : written(value);
}

// Ends that people often mean, as far as they lie after the start; so many hours count from `first`.
export function ends(now, start, first) {
  const day = new Date(now);
  const on = (days, hours) => new Date(day.getFullYear(), day.getMonth(), day.getDate() + days, hours).getTime();
  const friday = (12 - day.getDay()) % 7;
  const all = [
    ["+2 h", first + 2 * HOUR],
    ["today 18:00", on(0, 18)],
    ["tomorrow 09:00", on(1, 9)],
    ["Fri 18:00", on(friday, 18) > start ? on(friday, 18) : on(friday + 7, 18)],
    ["+1 week", first + 7 * 24 * HOUR],
  ];
  return all.filter(([, end], number) => end > start && !all.slice(0, number).some(([, other]) => other === end));
}

function quoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

// What a header can hold; what is copied from a text may have other dashes in it, or blanks that nobody sees.
function isToken(text) {
  return /^[!-~]+$/.test(text);
}

// Where a token is given and where it is forgotten; `identify` begins anew with it, or without one.
export function tokenParts(say, identify) {
  const token = make("input", { type: "password", name: "token", autocomplete: "off" });
  const useToken = () => {
    const given = token.value.trim();
    if (!isToken(given)) {
      say(given ? "This is no token: something in it is no plain letter, digit or sign; copy it again." : "Give your token.", "bad");
      return token.focus();
    }
    token.value = "";
    identify(given);
  };
  const login = make("div", { className: "login", hidden: true },
    label("Token", token), button("Use the token", useToken),
    make("p", { className: "soft" }, "The admin makes one with ", make("code", { textContent: "gpuboard token NAME" }), "; it stays in this browser."));
  return { token, useToken, login, forget: button("Forget the token", () => identify("")) };
}

// A new booking, for a shell and for comments.json

export function commandOf(place, { from, until, comment, name }) {
  const more = { "--from": from && typed(from), "--until": typed(until), "--comment": comment, "--name": name };
  return ["gpuboard", "book", place, ...Object.entries(more).filter(([, text]) => text).flat()].map(quoted);
}

export function fileOf(host, keys, { from, until, comment, name }) {
  const entry = { name, ...(from ? { from: written(from) } : {}), date: written(until), ...(comment ? { comment } : {}) };
  return JSON.stringify({ [host]: Object.fromEntries(keys.map((key) => [key, entry])) }, null, 2);
}

// What can be chosen of a host: all of it, then each GPU with its state and who is on it.
export function gpuChoices(host, card) {
  const rows = [...(card?.querySelectorAll(".gpus > tbody > tr") ?? [])].filter((row) => /^[a-z]*\d+(:\d+)?$/.test(row.cells[0].textContent));
  const choice = (value, className, ...parts) => make("label", { className }, make("input", { type: "checkbox", value }), ...parts);
  const whole = choice("*", "all", make("span", { textContent: `All GPUs of ${host}` }));
  whole.hidden = rows.length === 1;
  return [whole, ...rows.map((row) => {
    const names = (selector) => [...new Set([...row.querySelectorAll(selector)].map((one) => one.textContent))].join(", ");
    const who = names("li > b") || names(".booking.now > b");
    const number = row.cells[0].textContent;
    const state = row.cells[1].firstChild.data.trim();
    return choice(number, row.className, make("b", { textContent: number }), make("span", { className: "word", textContent: state }), make("span", { className: "soft", textContent: who, title: who }));
  })];
}

// The whole host is all of its GPUs, however they were chosen.
export function tellAll(gpus, all) {
  const boxes = [...gpus.querySelectorAll("input")].filter((one) => one !== all);
  const count = boxes.filter((one) => one.checked).length;
  if (!boxes.length) all.checked = true;
  else if (boxes.length > 1) all.checked = count === boxes.length;
  all.indeterminate = count > 0 && count < boxes.length;
}

// Bookings in words

export function when({ from, date, rrule, repeats, phase }) {
  const told = (text) => clock(Date.parse(text) / 1000);
  if (repeats) return `${repeats}, first ${told(from)}`;
  if (rrule) return `repeats (${rrule}), first ${told(from)} until ${told(date)}`;
  return phase === "now" || !from ? `until ${told(date)}` : `from ${told(from)} until ${told(date)}`;
}

export function entry(where, ...parts) {
  return make("li", {}, make("span", {}, make("b", { textContent: where }), ...parts));
}

// What a card says of each booking, and on which GPUs.
export function bookingsOn(card) {
  const found = new Map();
  for (const told of card?.querySelectorAll(".booking.now, .booking.coming") ?? []) {
    const row = told.closest("tr");
    const whole = told.cloneNode(true);
    const comment = whole.querySelector(".soft")?.textContent ?? "";
    for (const part of whole.querySelectorAll(".left, .used-by, .unused, .mean, .soft")) part.remove();
    const text = `${whole.textContent.replace(/^Whole host: /, "").replace(/[\s·]*$/, "")} ${comment}`.trim();
    if (!/ (until|from) /.test(` ${text}`) || row?.cells[0].textContent === "?") continue; // of a booking of the whole host, which is told above
    found.set(text, [...(found.get(text) ?? []), row ? row.cells[0].textContent : "*"]);
  }
  return [...found];
}

// Questions to the desk

function failure(answer) {
  if (!answer) return "The desk does not answer: try again, or look whether it was booked.";
  if (answer.status === 404 || answer.status === 405) return "There is no desk where the board says: tell its admin to look at GPUBOARD_BOOK_URL.";
  return answer.ok ? "The desk gave no answer that can be read: load the page again." : `The desk failed (${answer.status}): try again later.`;
}

// What the desk answers: to a request, or who asks and what is booked on a host.
export async function ask(at, token, { host, request }) {
  const url = new URL(at);
  if (!request) url.searchParams.set("host", host);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  if (request) Object.assign(headers, { "Content-Type": "application/json", "X-Gpuboard": "1" });
  let answer = null;
  let content = null;
  try {
    answer = await fetch(url, { method: request ? "POST" : "GET", headers, body: request && JSON.stringify(request), cache: "no-store", signal: AbortSignal.timeout(LONGEST) });
    content = await answer.json();
  } catch {
    // told below
  }
  if (answer?.ok && typeof content === "object" && content) return content;
  const sentence = content?.error || failure(answer);
  throw Object.assign(new Error(/[.!?]$/.test(sentence) ? sentence : `${sentence}.`), { status: answer?.status });
}

// The desk's answer to who asks and what is booked, what was wrong, and the token that counts: one that is not good is told, and not used.
export async function met(at, host) {
  const kept = isToken(recall("token")) ? recall("token") : "";
  try {
    return [await ask(at, kept, { host }), null, kept];
  } catch (error) {
    if (error.status !== 401 || !kept) return [null, error, kept];
    return ask(at, "", { host }).then((found) => [found, error, ""], (other) => [null, other, kept]);
  }
}
