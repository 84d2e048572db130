// Keeps an open board up to date: turns times into ages, and takes over each new build. The page is complete without it.
"use strict";

const EVERY = 10; // seconds between looks at the server
const OLD = 120; // a board older than this is told to be old

function duration(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 60) return `${s} s`;
  const minutes = Math.floor(s / 60);
  if (minutes < 60) return `${minutes} min`;
  const [large, small, names] = minutes < 1440
    ? [Math.floor(minutes / 60), minutes % 60, ["h", "min"]]
    : [Math.floor(minutes / 1440), Math.floor((minutes % 1440) / 60), ["d", "h"]];
  return small ? `${large} ${names[0]} ${small} ${names[1]}` : `${large} ${names[0]}`;
}

function seconds(time) {
  return Date.parse((time.dateTime || time.textContent).replace(" ", "T")) / 1000;
}

function tick() {
  const now = Date.now() / 1000;
  for (const time of document.querySelectorAll("time.ago")) {
    time.title ||= time.textContent;
    const text = `${duration(now - seconds(time))} ago`;
    if (time.textContent !== text) time.textContent = text;
  }
  for (const run of document.querySelectorAll(".for")) {
    if (!run.dataset.began) {
      run.title = run.textContent;
      run.dataset.began = seconds(run.querySelector("time"));
    }
    const text = duration(now - run.dataset.began);
    if (run.textContent !== text) run.textContent = text;
  }
  const built = document.querySelector(".age time");
  document.querySelector(".age").classList.toggle("old", now - seconds(built) > OLD);
}

async function refresh() {
  if (document.hidden) return;
  try {
    const answer = await fetch(location.pathname, { cache: "no-cache" });
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const main = page.querySelector("main");
    if (!main || page.querySelector(".age time")?.dateTime === document.querySelector(".age time").dateTime) return;
    for (const open of document.querySelectorAll("details[open][id]")) page.getElementById(open.id)?.setAttribute("open", "");
    document.title = page.title;
    document.querySelector(".bar").replaceWith(page.querySelector(".bar"));
    document.querySelector("main").replaceWith(main);
    tick();
  } catch {
    // the server is away: the age in the bar tells
  }
}

tick();
setInterval(tick, 1000);
setInterval(refresh, EVERY * 1000);
document.addEventListener("visibilitychange", refresh);
