// Keep times up to date: ages count up, bookings count down, and moments are shown in the viewer's time zone.
"use strict";

const NEAR = "800px 0px"; // cards that are this close to the screen are kept up to date

let clockAhead = 0; // seconds by which this machine's clock is ahead of the server's; all times on the page are the server's
const near = new Set(); // cards on or near the screen
const cardUpdates = []; // functions called with each card that comes near; other scripts add theirs

// Return the time by the server's clock, in seconds.
function serverNow() {
  return Date.now() / 1000 - clockAhead;
}

// Format minutes as `5 min`, `2 h 5 min` or `3 d 4 h`.
function formatDuration(minutes) {
  if (minutes < 60) return `${minutes} min`;
  const [large, small, names] = minutes < 1440
    ? [Math.floor(minutes / 60), minutes % 60, ["h", "min"]]
    : [Math.floor(minutes / 1440), Math.floor((minutes % 1440) / 60), ["d", "h"]];
  return small ? `${large} ${names[0]} ${small} ${names[1]}` : `${large} ${names[0]}`;
}

// Format an age in seconds.
function formatAge(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  return whole < 60 ? `${whole} s` : formatDuration(Math.floor(whole / 60));
}

// Format the time until a booking ends, rounded up as the builder does.
function formatTimeLeft(seconds) {
  if (seconds <= 0) return "ended";
  const minutes = Math.ceil(seconds / 60);
  return `${formatDuration(minutes < 1440 ? minutes : Math.ceil(seconds / 3600) * 60)} left`;
}

// Parse a time as the builder writes it to seconds.
function parseSeconds(time) {
  return Date.parse(time.replace(" ", "T")) / 1000;
}

// Format a moment in the viewer's zone: `18:00` today, `tomorrow 09:00`, `Fri 18:00` within a week, else with the date.
function formatClock(seconds) {
  const moment = new Date(seconds * 1000);
  const now = new Date(serverNow() * 1000);
  const midnight = (day) => Date.UTC(day.getFullYear(), day.getMonth(), day.getDate());
  const days = Math.round((midnight(moment) - midnight(now)) / 86400000);
  const padNumber = (number) => String(number).padStart(2, "0");
  const time = `${padNumber(moment.getHours())}:${padNumber(moment.getMinutes())}`;
  if (days === 0) return time;
  if (days === 1) return `tomorrow ${time}`;
  if (days > 1 && days < 7) return `${moment.toLocaleDateString("en", { weekday: "short" })} ${time}`;
  const year = moment.getFullYear() === now.getFullYear() ? "" : ` ${moment.getFullYear()}`;
  return `${moment.getDate()} ${moment.toLocaleDateString("en", { month: "short" })}${year} ${time}`;
}

// Parse the UTC offset at the end of a time, in minutes.
function parseOffset(time) {
  const [, sign, hours, minutes] = /([+-])(\d\d):(\d\d)$/.exec(time) ?? ["", "+", 0, 0];
  return (Number(hours) * 60 + Number(minutes)) * (sign === "-" ? -1 : 1);
}

// Return whether a time is written with the offset that the viewer's zone has at that moment.
function isLocal(time, seconds) {
  return new Date(seconds * 1000).getTimezoneOffset() + parseOffset(time) === 0;
}

// Return whether a text selection begins or ends in this part: it would be lost if the part were replaced.
function isSelectedIn(part) {
  const selection = getSelection();
  return !selection.isCollapsed && (part.contains(selection.anchorNode) || part.contains(selection.focusNode));
}

// Set the text of an element if it differs.
function setText(element, text) {
  if (element.textContent !== text && !isSelectedIn(element)) element.textContent = text;
}

// Set the tooltip of a time: the server's text, and the local moment if that differs.
function describeMoment(time, seconds) {
  const local = isLocal(time.dateTime, seconds);
  if (time.className === "at" && !local) time.title = `on the server ${time.textContent}`;
  else time.title = local ? time.dateTime : `${formatClock(seconds)} here, ${time.dateTime}`;
}

// Set a time to another moment, in the format the server used.
function setMoment(time, seconds) {
  const offset = /[+-]\d\d:\d\d$/.exec(time.dateTime)?.[0] ?? "+00:00";
  const there = new Date((Math.floor(seconds) + parseOffset(offset) * 60) * 1000).toISOString();
  const moment = there.slice(0, 19).replace("T", " ") + offset;
  if (time.dateTime === moment) return;
  time.dateTime = moment;
  describeMoment(time, seconds);
}

// Update all times within a card or another part of the page.
function updateTimes(part) {
  const now = serverNow();
  for (const time of part.querySelectorAll("time")) {
    // the time of a process is only in its text, until that is replaced
    if (!time.dateTime) time.dateTime = time.textContent.replace("since ", "");
    const seconds = parseSeconds(time.dateTime);
    if (Number.isNaN(seconds)) continue;
    const kind = time.className;
    if (!time.title) describeMoment(time, seconds);
    if (kind === "ago") setText(time, `${formatAge(now - seconds)} ago`);
    else if (kind === "left") setText(time, formatTimeLeft(seconds - now));
    else if (kind === "at") { if (!isLocal(time.dateTime, seconds)) setText(time, formatClock(seconds)); }
    else setText(time, formatAge(now - seconds));
  }
}

const cardObserver = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) near.delete(target);
    else {
      near.add(target);
      updateCard(target);
    }
  }
}, { rootMargin: NEAR });

// Run all card updates on a card.
function updateCard(card) {
  for (const update of cardUpdates) update(card);
  updateTimes(card);
}

// Update the ages on or near the screen, every second.
function updateAges() {
  const now = serverNow();
  for (const part of [document.querySelector(".bar"), ...near]) {
    for (const time of part.querySelectorAll("time.ago")) setText(time, `${formatAge(now - parseSeconds(time.dateTime))} ago`);
  }
}

for (const card of document.querySelectorAll("main > .host")) cardObserver.observe(card);
updateTimes(document.querySelector(".bar"));
for (const part of document.querySelectorAll("main > :not(.host)")) updateTimes(part);
setInterval(() => { if (!document.hidden) updateAges(); }, 1000);
setInterval(() => { if (!document.hidden) near.forEach(updateTimes); }, 20000);
