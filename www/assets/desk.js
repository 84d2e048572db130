// The booking dialog, loaded when it is first wanted: with a desk it books, without one it says what to type instead.

const { ask, bookingsOn, button, commandOf, ends, entry, field, fileOf, gpuChoices, iso, keep, label, make, met, recall, tellAll, tokenParts, when } = await import(`./desk-parts.js${version}`); // of the same version as the page

const PAUSE = 400; // milliseconds without a key, until the desk is asked
const at = page.book ? new URL(page.book, location.href) : null;
const ui = {}; // the dialog's elements, made when they are first needed
const UNKNOWN = { known: false, how: null, who: null, bookings: [] };
let host = "";
let me = UNKNOWN; // what the desk says of whoever asks
let greeting = null; // the question for that, while it is under way
let failed = ""; // why it was not answered
let token = "";
let changing = null; // the booking that is to be changed
let offered = new Map(); // ends by their words
let turn = 0; // what was asked before the last turn is no longer wanted
let visit = 0; // one each time that the dialog is opened: what was sent in another does not touch its form
let sending = null; // what is to be booked, changed or released and is not answered yet: of which visit, for which host
let timer = 0;

function since() {
  return ui.later.checked ? ui.from.value : "";
}

function offerEnds() {
  const now = serverNow() * 1000;
  const start = Math.max(now, Date.parse(since()) || 0);
  const first = changing && !changing.rrule ? Date.parse(changing.date) : start;
  offered = new Map(ends(now, start, first));
  const texts = [...offered.keys()];
  if (texts.join() === [...ui.ends.children].map((one) => one.textContent).join()) return; // one of them may have the focus
  ui.ends.replaceChildren(...texts.map((text) => button(text, () => {
    ui.until.value = field(offered.get(text));
    update();
  }, `until ${text}`)));
}

// What is wanted

function keys() {
  if (ui.all.checked) return ["*"];
  return [...ui.gpus.querySelectorAll("input[value]:checked")].map((box) => box.value).filter((value, _, all) => value !== "*" && !(value.includes(":") && all.includes(value.split(":")[0]))); // who names a GPU has named its instances
}

function place() {
  const some = keys();
  return some[0] === "*" ? host : `${host}:${some.join(",")}`;
}

// What is still missing, and the field for it.
function lack() {
  if (at && !me.known) return [failed, ui.submit];
  if (at && !me.how) return ["Say who you are first: give your token.", ui.token];
  if (!changing && !keys().length) return ["Choose a GPU.", ui.gpus.querySelector("input")];
  if (ui.later.checked && !ui.from.value) return ["Say from when.", ui.from];
  if (!ui.until.value) return ["Say until when.", ui.until];
  if (at && me.how === "open" && !ui.name.value.trim()) return ["Say who you are.", ui.name];
  if (!at && Date.parse(ui.until.value) <= (Date.parse(since()) || serverNow() * 1000)) return ["It would end before it begins.", ui.until];
  if (changing && !Object.keys(others()).length) return ["Nothing is changed yet.", ui.until];
  return null;
}

// Of a change, what is other than before.
function others() {
  const name = ui.name.value.trim();
  const other = (input) => input.value.trim() !== input.defaultValue;
  const found = {};
  if (ui.later.checked && other(ui.from)) found.from = iso(ui.from.value);
  if (other(ui.until)) found.until = iso(ui.until.value);
  if (other(ui.comment)) found.comment = ui.comment.value.trim();
  if (other(ui.name) && name) found.name = name;
  return found;
}

// At an open desk everybody is whom they say.
function by() {
  return me.how === "open" ? { as: ui.name.value.trim() } : {};
}

// The request to the desk.
function wish() {
  if (changing) return { do: "change", id: changing.id, host, ...by(), ...others() };
  const [name, comment] = [ui.name.value.trim(), ui.comment.value.trim()];
  const from = since() ? { from: iso(since()) } : {};
  return { do: "book", gpus: [place()], ...from, until: iso(ui.until.value), comment, ...(name ? { name } : {}), ...by() };
}

// Without a desk: the command, and what stands in the file.

function tellBoxes() {
  const [name, comment] = [ui.name.value.trim(), ui.comment.value.trim()];
  const missing = lack();
  ui.boxes.hidden = missing !== null;
  say(missing ? missing[0] : "");
  if (missing) return;
  const wanted = { from: since(), until: ui.until.value, comment, name };
  ui.command.replaceChildren(...commandOf(place(), wanted).flatMap((word, number) => [number ? " " : "", make("span", { textContent: word })]));
  ui.json.textContent = name ? fileOf(host, keys(), wanted) : "";
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

// Who asks, and what is booked.
function greet() {
  const own = met(at, host).then(([found, wrong, good]) => {
    if (greeting !== own) return; // asked again since, or closed
    greeting = null;
    token = good;
    failed = found ? "" : wrong.message;
    if (found) me = { ...UNKNOWN, ...found, known: true };
    if (me.who) keep("me", me.who);
    introduce();
    list();
    if (ui.said.className === "good") return;
    if (wrong) say(wrong.message, "bad");
    else update();
  });
  return (greeting = own);
}

function introduce() {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  ui.login.hidden = me.how !== null || !me.known;
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

function bookedLine(one) {
  const item = entry(one.where, " ", make("b", { textContent: one.name ?? "" }), ` ${when(one)}`, make("span", { className: "soft", textContent: one.comment ? ` · ${one.comment}` : "" }));
  const what = `${one.where}, ${when(one)}`;
  if (mine(one)) item.append(button("Change", () => change(one), `Change ${what}`), button("Release", () => confirm(item, one, what), `Release ${what}`));
  return item;
}

// Asked once, in the line itself.
function confirm(item, one, what) {
  item.querySelectorAll("button").forEach((old) => old.remove());
  const yes = button("Yes, release", () => send({ do: "release", id: one.id, host, ...by() }, "Released"), `Yes, release ${what}`);
  item.append(yes, button("No", () => {
    list();
    ui.heading.focus();
  }, `No, keep ${what}`));
  yes.focus();
}

// The bookings as the card tells them, each with the command that releases it.
function cardLines() {
  return bookingsOn(cardOf(host)).map(([text, gpus]) => {
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
  const now = (turn += 1);
  if (!me.known && !greeting) timer = setTimeout(greet, PAUSE); // what failed may have been mended
  if (!me.known) return;
  const missing = lack();
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

// What the desk was asked about the form is not wanted any more.
function forgetChecks() {
  clearTimeout(timer);
  turn += 1;
}

// Whether something is not answered yet; that of another visit is told.
function isUnderWay() {
  if (sending && sending.visit !== visit) {
    forgetChecks();
    say(`What you asked for ${sending.host} is still under way: try again when it is answered.`, "bad");
  }
  return sending !== null;
}

async function send(request, word) {
  if (isUnderWay()) return;
  const [own, name] = [(sending = { visit, host }), me.who ?? ui.name.value.trim()];
  forgetChecks();
  ui.dialog.setAttribute("aria-busy", "true");
  try {
    const answer = await ask(at, token, { request });
    keep("me", name);
    if (own.visit === visit) await tellDone(request, word, answer);
    refresh(); // the board itself follows
  } catch (error) {
    if (own.visit !== visit) return;
    say(error.message, "bad");
    list();
  } finally {
    sending = null;
    ui.dialog.removeAttribute("aria-busy");
    if (own.visit !== visit && ui.dialog.open) (own.host === host ? greet : update)();
  }
}

function tellDone(request, word, { said: words, warnings }) {
  const released = word === "Released";
  if (!released || changing?.id === request.id) fill(null);
  say(`${word}: ${words.replace(/^released /, "")}.`, "good", released ? [] : warnings);
  if (released) ui.heading.focus();
  return greet();
}

async function submit(event) {
  event.preventDefault();
  if (!at || isUnderWay()) return;
  if (!ui.login.hidden && ui.token.value.trim()) return ui.useToken();
  if (!me.known && !await isMet()) return;
  const missing = lack();
  if (!missing) return send(wish(), changing ? "Changed" : "Booked");
  say(missing[0], "bad");
  missing[1].focus();
}

// Waits until it is clear who asks, and says whether the dialog is still the same.
async function isMet() {
  const before = visit;
  say("Waiting for the desk to answer.");
  if (!greeting) greet();
  while (greeting && before === visit) await greeting;
  return before === visit && !sending;
}

// Begins anew, with another token or without one.
function identify(given) {
  keep("token", given);
  forgetChecks();
  me = UNKNOWN;
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
    tellAll(ui.gpus, ui.all);
  }
}

function change(one) {
  fill(one);
  update();
  ui.dialog.scrollTo(0, 0);
  (one.rrule ? ui.comment : ui.until).focus();
}

function offerGpus() {
  const [whole, ...each] = gpuChoices(host, cardOf(host));
  ui.all = whole.firstChild;
  ui.gpus.replaceChildren(make("legend", { textContent: "GPUs" }), whole, ...each);
  return each.map((one) => one.firstChild.value);
}

function build() {
  const input = (name, type, more = {}) => (ui[name] = make("input", { type, name, ...more }));
  ui.title = make("h2", { id: "_book-title" });
  ui.you = make("span");
  ui.zone = make("p", { className: "soft" });
  Object.assign(ui, tokenParts(say, identify));
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
    else if (target.type === "checkbox") tellAll(ui.gpus, ui.all);
    if (target === ui.name) list();
    update();
  });
  ui.dialog = make("dialog", { className: "desk", "aria-labelledby": ui.title.id }, make("header", {}, ui.title, button("×", () => ui.dialog.close(), "Close")), ui.form, make("section", {}, ui.heading, ui.list, ui.none));
  ui.dialog.addEventListener("close", () => {
    forgetChecks();
    visit += 1;
    greeting = null;
    ui.dialog.removeAttribute("aria-busy");
    cardOf(host)?.querySelector("a.book")?.focus({ preventScroll: true }); // the card may be another by now
  });
  document.body.append(ui.dialog);
}

export function open(name, gpus = []) {
  if (!ui.dialog) build();
  host = name;
  me = UNKNOWN;
  failed = "";
  visit += 1;
  const there = offerGpus();
  fill(null, there.length === 1 ? there : gpus);
  introduce();
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
