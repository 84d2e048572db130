// The booking dialog, loaded when it is first wanted: with a desk it books, without one it says what to type instead.

const { ask, button, ends, field, iso, keep, make, quoted, recall, typed, written } = await import(`./desk-parts.js${version}`); // of the same version as the page

const PAUSE = 400; // milliseconds without a key, until the desk is asked
const at = page.book ? new URL(page.book, location.href) : null;
const ui = {}; // the dialog's elements, made when they are first needed
let host = "";
let me = { how: null, bookings: [] }; // what the desk says of whoever asks
let token = "";
let changing = null; // the booking that is to be changed
let turn = 0; // what was asked before the last turn is no longer wanted
let timer = 0;
let busy = false;

function since() {
  return ui.later.checked ? ui.from.value : "";
}

function offerEnds() {
  const now = serverNow() * 1000;
  const start = Math.max(now, Date.parse(since()) || 0);
  const first = changing && !changing.rrule ? Date.parse(changing.date) : start;
  ui.ends.replaceChildren(...ends(now, start, first).map(([text, end]) => button(text, () => {
    ui.until.value = field(end);
    update();
  }, `until ${text}`)));
}

// What is wanted

function keys() {
  if (ui.all.checked) return ["*"];
  return [...ui.gpus.querySelectorAll("input[value]:checked")].map((box) => box.value).filter((value) => value !== "*");
}

function place() {
  const some = keys();
  return some[0] === "*" ? host : `${host}:${some.join(",")}`;
}

// What is still missing, and the field for it.
function lack() {
  if (at && !me.how) return ["Say who you are first: give your token.", ui.token];
  if (!changing && !keys().length) return ["Choose a GPU.", ui.gpus.querySelector("input")];
  if (ui.later.checked && !ui.from.value) return ["Say from when.", ui.from];
  if (!ui.until.value) return ["Say until when.", ui.until];
  if (at && me.how === "open" && !ui.name.value.trim()) return ["Say who you are.", ui.name];
  if (!at && Date.parse(ui.until.value) <= (Date.parse(since()) || serverNow() * 1000)) return ["It would end before it begins.", ui.until];
  if (changing && Object.keys(wish()).length <= (me.how === "open" ? 3 : 2)) return ["Nothing is changed yet.", ui.until];
  return null;
}

// The request to the desk; of a change only what is other.
function wish() {
  const [name, comment] = [ui.name.value.trim(), ui.comment.value.trim()];
  const by = me.how === "open" ? { as: name } : {};
  if (!changing) {
    const from = since() ? { from: iso(since()) } : {};
    return { do: "book", gpus: [place()], ...from, until: iso(ui.until.value), comment, ...(name ? { name } : {}), ...by };
  }
  const other = (input) => input.value.trim() !== input.defaultValue;
  const request = { do: "change", id: changing.id, ...by };
  if (ui.later.checked && other(ui.from)) request.from = iso(ui.from.value);
  if (other(ui.until)) request.until = iso(ui.until.value);
  if (other(ui.comment)) request.comment = comment;
  if (other(ui.name) && name) request.name = name;
  return request;
}

// Without a desk: the command, and what stands in the file.

function tellBoxes() {
  const [name, comment] = [ui.name.value.trim(), ui.comment.value.trim()];
  const missing = lack();
  ui.boxes.hidden = missing !== null;
  say(missing ? missing[0] : "");
  if (missing) return;
  const words = ["gpuboard", "book", place()];
  if (since()) words.push("--from", typed(since()));
  words.push("--until", typed(ui.until.value));
  if (comment) words.push("--comment", comment);
  if (name) words.push("--name", name);
  ui.command.replaceChildren(...words.flatMap((word, number) => [number ? " " : "", make("span", { textContent: quoted(word) })]));
  const entry = { name, ...(since() ? { from: written(since()) } : {}), date: written(ui.until.value), ...(comment ? { comment } : {}) };
  const content = { [host]: Object.fromEntries(keys().map((key) => [key, entry])) };
  ui.json.textContent = name ? JSON.stringify(content, null, 2) : "";
  ui.json.nextSibling.hidden = ui.json.hidden = !name;
  ui.into.textContent = name ? `Or put this into comments.json; where it has ${host} already, add to what stands there:` : "With a name, the JSON for comments.json stands here too.";
}

async function take(text) {
  const told = await copy(text);
  say(told.startsWith("Copied") ? "Copied." : told, told.startsWith("Copied") ? "good" : "bad");
  if (ui.name.value.trim()) keep("me", ui.name.value.trim());
}

function box(name, label) {
  ui[name] = make("pre", { tabIndex: 0, role: "region", "aria-label": label });
  return make("div", { className: "box" }, ui[name], button("Copy", () => take(ui[name].textContent), `Copy ${label}`));
}

// With a desk

function say(text, kind = "", warnings = []) {
  ui.said.className = kind;
  ui.said.replaceChildren(...(text ? [text] : []), ...warnings.map((one) => make("span", { textContent: one })));
}

// Who asks, and what is booked; a token that is not good is told, and not used.
async function greet() {
  const mine = (turn += 1);
  const wanted = host;
  token = recall("token");
  let found = null;
  let wrong = null;
  try {
    try {
      found = await ask(at, token, { host });
    } catch (error) {
      if (error.status !== 401 || !token) throw error;
      wrong = error;
      token = "";
      found = await ask(at, token, { host });
    }
  } catch (error) {
    wrong = error;
  }
  if (host !== wanted || mine !== turn) return;
  me = { how: null, who: null, bookings: [], ...found };
  if (me.who) keep("me", me.who);
  introduce(Boolean(found));
  list();
  if (wrong) say(wrong.message, "bad");
  else if (ui.said.className !== "good") update();
}

function introduce(answered) {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  ui.login.hidden = me.how !== null || !answered;
  ui.forget.hidden = !recall("token");
  ui.you.textContent = me.who ? `You are ${me.who}${me.admin ? ", an admin" : ""}.` : me.how === "open" ? "Anybody can book here: say who you are." : "";
  ui.zone.textContent = me.zone && me.zone !== zone ? `Times to fill in are in your zone (${zone}); the desk answers in its own (${me.zone}).` : "";
  ui.name.closest("label").hidden = Boolean(me.who) && !me.for_others;
  if (!changing && me.who && ui.name.value === ui.name.defaultValue) ui.name.value = ui.name.defaultValue = me.who;
}

function mine(one) {
  const name = ui.name.value.trim().toLowerCase();
  const theirs = [one.name, one.by].map((text) => text?.toLowerCase());
  return one.id && (one.mine || me.admin || (me.how === "open" && name && (theirs.includes(name) || one === changing)));
}

function when({ from, date, rrule, phase }) {
  const told = (text) => clock(Date.parse(text) / 1000);
  if (rrule) return `repeats (${rrule}), first ${told(from)} until ${told(date)}`;
  return phase === "now" || !from ? `until ${told(date)}` : `from ${told(from)} until ${told(date)}`;
}

function entry(where, ...parts) {
  return make("li", {}, make("span", {}, make("b", { textContent: where }), ...parts));
}

function bookedLine(one) {
  const item = entry(one.where, " ", make("b", { textContent: one.name ?? "" }), ` ${when(one)}`, make("span", { className: "soft", textContent: one.comment ? ` · ${one.comment}` : "" }));
  const what = `${one.where}, ${when(one)}`;
  if (mine(one)) item.append(button("Change", () => change(one), `Change ${what}`), button("Release", () => confirm(item, one, what), `Release ${what}`));
  return item;
}

// Asked once, in the line itself.
function confirm(item, one, what) {
  item.querySelectorAll("button").forEach((old) => old.remove());
  const yes = button("Yes, release", () => send({ do: "release", id: one.id, ...(me.how === "open" ? { as: ui.name.value.trim() } : {}) }, "Released"), `Yes, release ${what}`);
  item.append(yes, button("No", () => {
    list();
    ui.heading.focus();
  }, `No, keep ${what}`));
  yes.focus();
}

// The bookings as the card tells them, each with the command that releases it.
function cardLines() {
  const card = cardOf(host);
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
  return [...found].map(([text, gpus]) => {
    const where = gpus.includes("*") ? host : `${host}:${gpus.join(",")}`;
    return make("li", {}, entry(where, ` ${text}`).firstChild, button("Copy the release", () => take(`gpuboard release ${where}`), `Copy gpuboard release ${where}`));
  });
}

function list() {
  const lines = at ? me.bookings.map(bookedLine) : cardLines();
  ui.list.replaceChildren(...lines);
  ui.none.hidden = lines.length > 0;
}

// Says what the desk understands, before it counts.
function update() {
  clearTimeout(timer);
  offerEnds();
  if (!at) return tellBoxes();
  const missing = lack();
  const now = (turn += 1);
  if (missing) return say(missing[0]);
  ui.said.classList.add("old");
  timer = setTimeout(async () => {
    try {
      const { said: words, warnings } = await ask(at, token, { request: { ...wish(), check: true } });
      if (now === turn) say(`${words}.`, "", warnings);
    } catch (error) {
      if (now === turn) say(error.message, "bad");
    }
  }, PAUSE);
}

async function send(request, word) {
  if (busy) return;
  busy = true;
  clearTimeout(timer);
  turn += 1;
  ui.dialog.setAttribute("aria-busy", "true");
  try {
    const { said: words, warnings } = await ask(at, token, { request });
    keep("me", me.who ?? ui.name.value.trim());
    if (word !== "Released" || changing?.id === request.id) fill(null);
    say(`${word}: ${words.replace(/^released /, "")}.`, "good", word === "Released" ? [] : warnings);
    if (word === "Released") ui.heading.focus();
    await greet();
    refresh(); // the board itself follows
  } catch (error) {
    say(error.message, "bad");
    list();
  } finally {
    busy = false;
    ui.dialog.removeAttribute("aria-busy");
  }
}

function submit(event) {
  event.preventDefault();
  if (!at || busy) return;
  if (!ui.login.hidden && ui.token.value.trim()) return login();
  const missing = lack();
  if (!missing) return send(wish(), changing ? "Changed" : "Booked");
  say(missing[0], "bad");
  missing[1].focus();
}

function login() {
  keep("token", ui.token.value.trim());
  ui.token.value = "";
  say("");
  greet();
}

// The form for a new booking, or to change one.
function fill(one, gpus = []) {
  changing = one;
  const begun = Boolean(one) && (!one.from || one.phase === "now" || Boolean(one.rrule));
  const put = (input, value) => { input.value = input.defaultValue = value; };
  ui.title.textContent = one ? `Change ${one.where}` : `Book ${host}`;
  ui.submit.textContent = one ? "Change" : "Book";
  ui.stop.hidden = !one;
  ui.gpus.hidden = Boolean(one);
  ui.start.hidden = begun;
  for (const choice of [ui.now, ui.later]) choice.parentElement.hidden = Boolean(one);
  ui.end.hidden = Boolean(one?.rrule);
  ui.now.checked = !one || begun;
  ui.later.checked = !ui.now.checked;
  put(ui.from, one && !begun ? field(Date.parse(one.from)) : "");
  put(ui.until, one ? field(Date.parse(one.date)) : "");
  put(ui.comment, one?.comment ?? "");
  put(ui.name, one?.name ?? me.who ?? recall("me"));
  if (!one) {
    for (const each of ui.gpus.querySelectorAll("input")) each.checked = gpus.includes(each.value);
    tellAll();
  }
}

function change(one) {
  fill(one);
  update();
  ui.dialog.scrollTo(0, 0);
  (one.rrule ? ui.comment : ui.until).focus();
}

// The whole host is all of its GPUs, however they were chosen.
function tellAll() {
  const boxes = [...ui.gpus.querySelectorAll("input")].filter((one) => one !== ui.all);
  const count = boxes.filter((one) => one.checked).length;
  if (!boxes.length) ui.all.checked = true;
  else if (boxes.length > 1) ui.all.checked = count === boxes.length;
  ui.all.indeterminate = count > 0 && count < boxes.length;
}

function offerGpus() {
  const rows = [...(cardOf(host)?.querySelectorAll(".gpus > tbody > tr") ?? [])].filter((row) => /^\d+$/.test(row.cells[0].textContent));
  const choice = (value, ...parts) => make("label", {}, make("input", { type: "checkbox", value }), ...parts);
  const whole = choice("*", make("span", { textContent: `All GPUs of ${host}` }));
  whole.className = "all";
  whole.hidden = rows.length === 1;
  ui.all = whole.firstChild;
  ui.gpus.replaceChildren(make("legend", { textContent: "GPUs" }), whole, ...rows.map((row) => {
    const names = (selector) => [...new Set([...row.querySelectorAll(selector)].map((one) => one.textContent))].join(", ");
    const who = names("li > b") || names(".booking.now > b");
    const one = choice(row.cells[0].textContent, make("b", { textContent: row.cells[0].textContent }), make("span", { className: "word", textContent: row.cells[1].firstChild.data.trim() }), make("span", { className: "soft", textContent: who }));
    one.className = row.className;
    return one;
  }));
  return rows.map((row) => row.cells[0].textContent);
}

function build() {
  const label = (text, ...parts) => make("label", {}, make("span", { textContent: text }), ...parts);
  const input = (name, type, more = {}) => (ui[name] = make("input", { type, name, ...more }));
  ui.title = make("h2", { id: "_book-title" });
  ui.you = make("span");
  ui.zone = make("p", { className: "soft" });
  ui.forget = button("Forget the token", () => {
    keep("token", "");
    say("");
    greet();
  });
  ui.login = make("div", { className: "login", hidden: true },
    label("Token", input("token", "password", { autocomplete: "off" })), button("Use the token", login),
    make("p", { className: "soft" }, "The admin makes one with ", make("code", { textContent: "gpuboard token NAME" }), "; it stays in this browser."));
  ui.gpus = make("fieldset", { className: "choose" });
  ui.start = make("fieldset", {}, make("legend", { textContent: "From" }),
    make("label", {}, input("now", "radio", { name: "start" }), "now"),
    make("label", {}, input("later", "radio", { name: "start" }), "at"), input("from", "datetime-local", { "aria-label": "From when" }));
  ui.ends = make("span", { className: "ends" });
  ui.end = make("fieldset", {}, make("legend", { textContent: "Until" }), input("until", "datetime-local", { "aria-label": "Until when" }), ui.ends);
  ui.said = make("p", { role: "status" });
  ui.submit = make("button", { type: "submit", className: "main" });
  ui.stop = button("Back to a new booking", () => {
    fill(null);
    update();
  });
  ui.into = make("p");
  ui.boxes = make("div", { hidden: true }, make("p", { textContent: "This books it, on a machine that has gpuboard:" }), box("command", "the command"), ui.into, box("json", "the JSON"));
  ui.heading = make("h3", { textContent: "Booked", tabIndex: -1 });
  ui.list = make("ul");
  ui.none = make("p", { className: "soft", textContent: "Nothing, now or to come." });
  ui.form = make("form", { noValidate: true },
    make("p", { className: "you", hidden: !at }, ui.you, ui.forget), ui.login, ui.gpus, ui.start, ui.end, ui.zone,
    label("What for", input("comment", "text", { maxLength: 500, autocomplete: "off" })),
    label(at ? "Name" : "Your name", input("name", "text", { maxLength: 80, autocomplete: "off", spellcheck: false })),
    ui.said, make("p", { className: "act", hidden: !at }, ui.submit, ui.stop), ui.boxes);
  ui.form.addEventListener("submit", submit);
  ui.form.addEventListener("input", ({ target }) => {
    if (target === ui.token) return;
    if (target === ui.from) ui.later.checked = true;
    if (target === ui.all) ui.gpus.querySelectorAll("input").forEach((one) => { one.checked = ui.all.checked; });
    else if (target.type === "checkbox") tellAll();
    if (target === ui.name) list();
    update();
  });
  ui.dialog = make("dialog", { className: "desk", "aria-labelledby": ui.title.id }, make("header", {}, ui.title, button("×", () => ui.dialog.close(), "Close")), ui.form, make("section", {}, ui.heading, ui.list, ui.none));
  ui.dialog.addEventListener("close", () => {
    clearTimeout(timer);
    turn += 1;
    cardOf(host)?.querySelector("a.book")?.focus({ preventScroll: true }); // the card may be another by now
  });
  document.body.append(ui.dialog);
}

export function open(name, gpus = []) {
  if (!ui.dialog) build();
  host = name;
  me = { how: null, bookings: [] };
  const there = offerGpus();
  fill(null, there.length === 1 ? there : gpus);
  introduce(false);
  list();
  say("");
  ui.dialog.showModal();
  ui.dialog.scrollTo(0, 0);
  (there.length === 1 ? ui.until : ui.gpus.querySelector("label:not([hidden]) input")).focus();
  if (at) {
    offerEnds();
    greet();
  } else update();
}
