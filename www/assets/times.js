// Times: ages count up, bookings count down, and moments are told in the zone of whoever looks.
"use strict";

const NEAR = "800px 0px"; // cards that are this close to the screen are kept up to date

let ahead = 0; // seconds by which this machine's clock is ahead of the server's, by which all times are
const near = new Set();
const upkeep = []; // what is done to each card that comes near; other scripts add theirs

function serverNow() {
  return Date.now() / 1000 - ahead;
}

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

// A moment as people say it here: `18:00` for today, `tomorrow 09:00`, `Fri 18:00` within the week, else with the date.
function clock(seconds) {
  const moment = new Date(seconds * 1000);
  const now = new Date(serverNow() * 1000);
  const midnight = (day) => Date.UTC(day.getFullYear(), day.getMonth(), day.getDate());
  const days = Math.round((midnight(moment) - midnight(now)) / 86400000);
  const two = (number) => String(number).padStart(2, "0");
  const time = `${two(moment.getHours())}:${two(moment.getMinutes())}`;
  if (days === 0) return time;
  if (days === 1) return `tomorrow ${time}`;
  if (days > 1 && days < 7) return `${moment.toLocaleDateString("en", { weekday: "short" })} ${time}`;
  const year = moment.getFullYear() === now.getFullYear() ? "" : ` ${moment.getFullYear()}`;
  return `${moment.getDate()} ${moment.toLocaleDateString("en", { month: "short" })}${year} ${time}`;
}

// The minutes by which the zone that a time is written in is ahead of UTC.
function offsetOf(time) {
  const [, sign, hours, minutes] = /([+-])(\d\d):(\d\d)$/.exec(time) ?? ["", "+", 0, 0];
  return (Number(hours) * 60 + Number(minutes)) * (sign === "-" ? -1 : 1);
}

// Whether a time is written with the offset that its moment has here.
function isLocal(time, seconds) {
  return new Date(seconds * 1000).getTimezoneOffset() + offsetOf(time) === 0;
}

// Whether text is selected that begins or ends in here: it would be lost if this were made anew.
function isSelectedIn(part) {
  const selection = getSelection();
  return !selection.isCollapsed && (part.contains(selection.anchorNode) || part.contains(selection.focusNode));
}

// Puts a text where it differs.
function tell(element, text) {
  if (element.textContent !== text && !isSelectedIn(element)) element.textContent = text;
}

// What a time says on hover: the server's words for it, and the moment here where that is another.
function nameMoment(time, seconds) {
  const local = isLocal(time.dateTime, seconds);
  if (time.className === "at" && !local) time.title = `on the server ${time.textContent}`;
  else time.title = local ? time.dateTime : `${clock(seconds)} here, ${time.dateTime}`;
}

// Gives a time another moment, written as the server wrote the last one.
function setMoment(time, seconds) {
  const offset = /[+-]\d\d:\d\d$/.exec(time.dateTime)?.[0] ?? "+00:00";
  const there = new Date((Math.floor(seconds) + offsetOf(offset) * 60) * 1000).toISOString();
  const moment = there.slice(0, 19).replace("T", " ") + offset;
  if (time.dateTime === moment) return;
  time.dateTime = moment;
  nameMoment(time, seconds);
}

// Within a card or another part of the page, all that time makes different.
function tellTimes(part) {
  const now = serverNow();
  for (const time of part.querySelectorAll("time")) {
    // that of a process has its moment in its text alone, until that is replaced
    if (!time.dateTime) time.dateTime = time.textContent.replace("since ", "");
    const seconds = secondsOf(time.dateTime);
    if (Number.isNaN(seconds)) continue;
    const kind = time.className;
    if (!time.title) nameMoment(time, seconds);
    if (kind === "ago") tell(time, `${since(now - seconds)} ago`);
    else if (kind === "left") tell(time, left(seconds - now));
    else if (kind === "at") { if (!isLocal(time.dateTime, seconds)) tell(time, clock(seconds)); }
    else tell(time, since(now - seconds));
  }
}

const watcher = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) near.delete(target);
    else {
      near.add(target);
      keepUp(target);
    }
  }
}, { rootMargin: NEAR });

function keepUp(card) {
  for (const care of upkeep) care(card);
  tellTimes(card);
}

// Ages by the second, where somebody can see them.
function tick() {
  const now = serverNow();
  for (const part of [document.querySelector(".bar"), ...near]) {
    for (const time of part.querySelectorAll("time.ago")) tell(time, `${since(now - secondsOf(time.dateTime))} ago`);
  }
}

for (const card of document.querySelectorAll("main > .host")) watcher.observe(card);
tellTimes(document.querySelector(".bar"));
for (const part of document.querySelectorAll("main > :not(.host)")) tellTimes(part);
setInterval(() => { if (!document.hidden) tick(); }, 1000);
setInterval(() => { if (!document.hidden) near.forEach(tellTimes); }, 20000);
