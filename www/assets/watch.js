// The dialog of who waits for GPUs, loaded when it is first wanted: the desk says what it understands, before it counts.

const { ask, button, entry, keep, label, make, met, recall, tokenParts } = await import(`./desk-parts.js${version}`); // of the same version as the page

const PAUSE = 400; // milliseconds without a key, until the desk is asked
const NO_HOST = "_"; // none is called so: of the bookings nothing is wanted
const MOST_MODELS = 4;
const WAYS = { "": "any way that the lab has of me", mail: "mail", slack: "Slack" };
const UNKNOWN = { known: false, how: null, who: null, watches: [] };
const at = new URL(page.book, location.href);
const ui = {}; // the dialog's elements, made when they are first needed
let me = UNKNOWN; // what the desk says of whoever asks
let token = "";
let turn = 0; // what was asked before the last turn is no longer wanted
let sending = false;
let timer = 0;

function say(text, kind = "", warnings = []) {
  ui.said.className = kind;
  ui.said.replaceChildren(...(text ? [text] : []), ...warnings.map((one) => make("span", { textContent: one })));
}

// What is still missing, and the field for it.
function lack() {
  if (!me.how) return ["Say who you are first: give your token.", ui.token];
  if (!ui.when.value.trim()) return ["Say what you wait for.", ui.when];
  if (me.how === "open" && !ui.name.value.trim()) return ["Say who you are.", ui.name];
  return null;
}

// At an open desk everybody is whom they say.
function by() {
  return me.how === "open" ? { as: ui.name.value.trim() } : {};
}

function wish() {
  return { do: "watch", when: ui.when.value.trim(), ...(ui.via.value ? { via: ui.via.value } : {}), ...by() };
}

// Who asks, and what they wait for.
async function greet() {
  const now = (turn += 1);
  const [found, wrong, good] = await met(at, NO_HOST);
  if (now !== turn) return; // asked again since, or closed
  token = good;
  if (found) me = { ...UNKNOWN, ...found, known: true };
  introduce();
  list();
  if (wrong) say(wrong.message, "bad");
  else if (ui.said.className !== "good") update();
}

function introduce() {
  ui.login.hidden = me.how !== null || !me.known;
  ui.forget.hidden = !recall("token");
  ui.you.textContent = me.who ? `You are ${me.who}${me.admin ? ", an admin" : ""}.` : me.how === "open" ? "Anybody can ask here: say who you are." : "";
  ui.name.closest("label").hidden = me.how !== "open";
}

function list() {
  const name = ui.name.value.trim().toLowerCase();
  const lines = (me.watches ?? []).filter((one) => one.mine || (me.how === "open" && name && one.name?.toLowerCase() === name)).map(line);
  ui.list.replaceChildren(...lines);
  ui.none.hidden = lines.length > 0;
}

function line(one) {
  const item = entry(one.when, make("span", { className: "soft", textContent: ` · ${one.via ? `by ${one.via}, ` : ""}until ${clock(Date.parse(one.until) / 1000)}` }));
  item.append(button("End", () => send({ do: "unwatch", id: one.id, ...by() }, "Ended"), `End: ${one.when}`));
  return item;
}

// Says what the desk understands.
function update() {
  clearTimeout(timer);
  const now = (turn += 1);
  if (!me.known) {
    timer = setTimeout(greet, PAUSE); // what failed may have been mended
    return;
  }
  const missing = lack();
  if (missing) return say(missing[0]);
  ui.said.classList.add("old");
  timer = setTimeout(async () => {
    try {
      const { said, warnings } = await ask(at, token, { request: { ...wish(), check: true } });
      if (now === turn) say(`${said}.`, "", warnings);
    } catch (error) {
      if (now === turn) say(error.message, "bad");
    }
  }, PAUSE);
}

async function send(request, word) {
  if (sending) return;
  sending = true;
  clearTimeout(timer);
  const now = (turn += 1);
  ui.dialog.setAttribute("aria-busy", "true");
  try {
    const { said, warnings } = await ask(at, token, { request });
    keep("me", me.who ?? ui.name.value.trim());
    if (now !== turn) return; // closed meanwhile
    if (word === "Watched") ui.when.value = "";
    else ui.heading.focus();
    say(`${word}: ${said}.`, "good", warnings);
    await greet();
  } catch (error) {
    if (now === turn) say(error.message, "bad");
  } finally {
    sending = false;
    ui.dialog.removeAttribute("aria-busy");
  }
}

function submit(event) {
  event.preventDefault();
  if (!ui.login.hidden && ui.token.value.trim()) return ui.useToken();
  if (!me.known) return greet();
  const missing = lack();
  if (!missing) return send(wish(), "Watched");
  say(missing[0], "bad");
  missing[1].focus();
}

// Begins anew, with another token or without one.
function identify(given) {
  keep("token", given);
  me = UNKNOWN;
  say("");
  greet();
}

// Wishes that are often meant: of the models that the board has, those of which there are the most.
function offer() {
  const counts = new Map();
  for (const told of document.querySelectorAll(".host header .models")) {
    for (const [, count, model] of told.textContent.matchAll(/(\d+) × ([^,]+?)(?: \d+ GB)?(?=,|$)/g)) counts.set(model, (counts.get(model) ?? 0) + Number(count));
  }
  const models = [...counts].filter(([model]) => /\d|titan/i.test(model)).sort((one, other) => other[1] - one[1]).slice(0, MOST_MODELS).map(([model]) => model);
  const texts = ["1 GPU free", ...models.map((model) => `1 ${model} free`), ...(models.length ? [`2 ${models[0]} free on one host`] : [])];
  ui.offers.replaceChildren(...texts.map((text) => button(text, () => {
    ui.when.value = text;
    update();
  })));
}

function build() {
  const input = (name, type, more = {}) => (ui[name] = make("input", { type, name, ...more }));
  ui.title = make("h2", { id: "_watch-title", textContent: "Tell me when GPUs are free" });
  ui.you = make("span");
  Object.assign(ui, tokenParts(say, identify));
  ui.offers = make("p", { className: "ends" });
  ui.via = make("select", { name: "via" }, ...Object.entries(WAYS).map(([value, text]) => make("option", { value, textContent: text })));
  ui.said = make("p", { role: "status" });
  ui.heading = make("h3", { textContent: "You wait for", tabIndex: -1 });
  ui.list = make("ul");
  ui.none = make("p", { className: "soft", textContent: "Nothing." });
  ui.form = make("form", { noValidate: true },
    make("p", { className: "you" }, ui.you, ui.forget), ui.login,
    label("What for", input("when", "text", { maxLength: 200, autocomplete: "off", spellcheck: false, placeholder: "2 A100 free on one host for 4h" })), ui.offers,
    label("By", ui.via),
    label("Your name", input("name", "text", { maxLength: 80, autocomplete: "off", spellcheck: false })),
    ui.said, make("p", { className: "act" }, make("button", { type: "submit", className: "main", textContent: "Tell me" }), make("span", { className: "soft", textContent: "Once; nothing is booked." })));
  ui.form.addEventListener("submit", submit);
  ui.form.addEventListener("input", ({ target }) => {
    if (target === ui.token) return;
    if (target === ui.name) list();
    update();
  });
  ui.dialog = make("dialog", { className: "desk", "aria-labelledby": ui.title.id }, make("header", {}, ui.title, button("×", () => ui.dialog.close(), "Close")), ui.form, make("section", {}, ui.heading, ui.list, ui.none));
  ui.dialog.addEventListener("close", () => {
    clearTimeout(timer);
    turn += 1;
    document.querySelector("button.watch")?.focus({ preventScroll: true }); // the part may be another by now
  });
  document.body.append(ui.dialog);
}

export function open() {
  if (!ui.dialog) build();
  me = UNKNOWN;
  ui.when.value = "";
  ui.name.value = recall("me");
  offer();
  introduce();
  list();
  say("");
  ui.dialog.showModal();
  ui.when.focus();
  greet();
}
