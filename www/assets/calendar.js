// Show the calendar in the viewer's time, with the lab's beside it where the clocks differ, and highlight your own bookings.
"use strict";

const DAY_NAMES = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const MONTH_NAMES = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

// Format `Mon 16 Nov`.
function formatDay(date) {
  return `${DAY_NAMES[date.getDay()]} ${date.getDate()} ${MONTH_NAMES[date.getMonth()]}`;
}

// Format `09:00`.
function formatHour(date) {
  return [date.getHours(), date.getMinutes()].map((number) => String(number).padStart(2, "0")).join(":");
}

// Format a time with its day, and with its year if it is another.
function formatDayTime(date) {
  const year = date.getFullYear() === new Date().getFullYear() ? "" : ` ${date.getFullYear()}`;
  return `${formatDay(date)}${year} ${formatHour(date)}`;
}

// Format the lab's times as they are written, with their days if the viewer has others.
function formatLabTimes(times) {
  const days = times.map((time) => new Date(`${time.slice(0, 10)}T00:00`));
  const hasOtherDay = times.some((time, number) => new Date(time).toDateString() !== days[number].toDateString());
  return times.map((time, number) => {
    const isShown = hasOtherDay && days[number].getTime() !== days[number - 1]?.getTime();
    return `${isShown ? `${DAY_NAMES[days[number].getDay()]} ` : ""}${time.slice(11, 16)}`;
  }).join(" – ");
}

// Return whether a time is another hour for the viewer than for the lab.
function isElsewhere(time) {
  return !isLocal(time, parseSeconds(time));
}

// Format when a booking begins and ends: for the viewer, and for the lab.
function formatTimes(times) {
  const [end, start] = times.map((time) => new Date(time)).reverse();
  const isOneDay = start?.toDateString() === end.toDateString();
  const text = start ? `${formatDayTime(start)} – ${isOneDay ? formatHour(end) : formatDayTime(end)}` : `until ${formatDayTime(end)}`;
  return [text, `(lab: ${formatLabTimes(times)})`];
}

// Show the times of a bar or of a line of the list; a tooltip begins with them.
function showTimes(element) {
  const times = [element.dataset.from, element.dataset.until].filter(Boolean);
  if (!times.some(isElsewhere)) return;
  const title = element.querySelector("title");
  const [text, labText] = formatTimes(times);
  if (title) title.textContent = [`${text} ${labText}`, ...title.textContent.split(" · ").slice(1)].join(" · ");
  else {
    const lab = document.createElement("span");
    [lab.className, lab.textContent] = ["soft lab", labText];
    element.replaceChildren(`${text} `, lab);
  }
}

// Name a day in its column, as far as there is room for it; with the month where that is new.
function nameDay(day, lengthMs, isFirst) {
  const hours = lengthMs / 3600_000;
  if (hours < 12) return "";
  return hours >= 23 && (isFirst || day.getDate() === 1) ? formatDay(day) : formatDay(day).slice(0, -4);
}

// Draw the viewer's days over the two weeks of the lab, of which the first and the last may be cut.
function drawDays(first, last) {
  const symbol = document.getElementById("_days");
  if (!symbol) return;
  const [rect, label] = ["rect", "svg"].map((name) => symbol.querySelector(name));
  const parts = [];
  const today = new Date().toDateString();
  const place = (element, start, end) => {
    element.setAttribute("x", `${((start - first) / (last - first)) * 100}%`);
    element.setAttribute("width", `${((end - start) / (last - first)) * 100}%`);
    return element;
  };
  for (let start = first; start < last;) {
    const day = new Date(start);
    const end = Math.min(last, new Date(day.getFullYear(), day.getMonth(), day.getDate() + 1).getTime());
    const isToday = day.toDateString() === today;
    const kind = [isToday && "today", day.getDay() % 6 === 0 && "weekend"].filter(Boolean).join(" ");
    const [ground, name] = [rect, label].map((element) => place(element.cloneNode(true), start, end));
    ground.setAttribute("class", `day ${kind}`);
    name.firstElementChild.setAttribute("class", kind);
    name.firstElementChild.textContent = nameDay(day, end - start, isToday || start === first);
    parts.push(ground, name);
    start = end;
  }
  symbol.replaceChildren(...parts);
}

// Show all times and days in the viewer's zone, if its clock differs from the lab's.
function showViewerTimes() {
  const heading = document.querySelector(".about h2");
  const { from, until } = heading.dataset;
  document.querySelectorAll(".one[data-until], th[data-until]").forEach(showTimes);
  if (!isElsewhere(from) && !isElsewhere(until)) return;
  const [first, last] = [from, until].map((time) => parseSeconds(time) * 1000);
  const zone = document.querySelector(".zone");
  const [viewerZone, labZone] = [Intl.DateTimeFormat().resolvedOptions().timeZone, zone.dataset.zone].map((name) => name.split("/").at(-1).replaceAll("_", " "));
  zone.textContent = `Times are yours (${viewerZone}); lab: ${labZone}.`;
  heading.textContent = `Bookings from ${formatDay(new Date(first))} to ${formatDay(new Date(last - 1))}`;
  drawDays(first, last);
}

// Highlight the bookings of the person whom this browser knows.
function markOwnBookings() {
  let me = "";
  try {
    me = (localStorage.getItem("gpuboard.me") ?? "").trim().toLowerCase();
  } catch {
    // without storage nobody is known
  }
  for (const booking of document.querySelectorAll(".mine")) booking.classList.remove("mine");
  if (!me) return;
  for (const person of document.querySelectorAll(".people li")) {
    if (!person.dataset.names.split("\n").includes(me)) continue;
    const personClass = [...person.classList].find((name) => name.startsWith("who"));
    for (const booking of document.querySelectorAll(`.${personClass}`)) booking.classList.add("mine");
  }
}

addEventListener("storage", markOwnBookings);
markOwnBookings();
showViewerTimes();
