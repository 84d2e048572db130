// What the booking dialog is made of: elements, what the browser keeps, times, words for a shell, and questions to the desk.

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

export function written(value) {
  return value.replace("T", " ") + offset(Date.parse(value));
}

// For a command: without the offset where the board's zone is the viewer's.
export function typed(value) {
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

export function quoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

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
