// The dialog of people who wait for GPUs: the booking service shows how it understands a watch before it is made.

const { // of the same version as the page
  buildCaller, createButton, createElement, createLabel, createListItem, createTokenFields, readStored, requestCaller, requestService, showStatus, storeValue,
} = await import(`./dialog-parts.js${version}`);

const CHECK_DELAY_MS = 400; // without a key press, until the request is checked
const NO_HOST = "_"; // no host has this name: no bookings are needed here
const MAX_MODELS = 4;
const CHANNELS = { "": "any way that the lab has of me", mail: "mail", slack: "Slack" };
const UNKNOWN = { known: false, how: null, who: null, watches: [] };
const serviceUrl = new URL(page.book, location.href);
const ui = {}; // the dialog's elements, created when it is first opened
let caller = UNKNOWN; // what the booking service says about the person who asks
let token = "";
let checkNumber = 0; // counts requests; the response to an older one is ignored
let sending = false;
let timer = 0;

// Show a message below the form.
function showMessage(text, kind, warnings) {
  showStatus(ui.said, text, kind, warnings);
}

// Find what is still missing: a sentence, and the field to fill in.
function findMissingField() {
  if (!caller.how) return ["Say who you are first: give your token.", ui.token];
  if (!ui.when.value.trim()) return ["Say what you wait for.", ui.when];
  if (caller.how === "open" && !ui.name.value.trim()) return ["Say who you are.", ui.name];
  return null;
}

// Build the request to the booking service.
function buildRequest() {
  return { do: "watch", when: ui.when.value.trim(), ...(ui.via.value ? { via: ui.via.value } : {}), ...buildCaller(caller, ui.name) };
}

// Ask the booking service who the caller is and what they wait for.
async function loadCaller() {
  const number = (checkNumber += 1);
  const [response, error, usedToken] = await requestCaller(serviceUrl, NO_HOST);
  if (number !== checkNumber) return; // requested again since, or closed
  token = usedToken;
  if (response) caller = { ...UNKNOWN, ...response, known: true };
  showCaller();
  showWatches();
  if (error) showMessage(error.message, "bad");
  else if (ui.said.className !== "good") checkRequest();
}

// Show who the caller is, or ask for a token.
function showCaller() {
  ui.login.hidden = caller.how !== null || !caller.known;
  ui.forget.hidden = !readStored("token");
  ui.you.textContent = caller.who ? `You are ${caller.who}${caller.admin ? ", an admin" : ""}.` : caller.how === "open" ? "Anybody can ask here: say who you are." : "";
  ui.name.closest("label").hidden = caller.how !== "open";
}

// List the watches of the caller.
function showWatches() {
  const name = ui.name.value.trim().toLowerCase();
  const lines = (caller.watches ?? []).filter((watch) => watch.mine || (caller.how === "open" && name && watch.name?.toLowerCase() === name)).map(buildWatchLine);
  ui.list.replaceChildren(...lines);
  ui.none.hidden = lines.length > 0;
}

// Build the line of a watch, with its button.
function buildWatchLine(watch) {
  const item = createListItem(watch.when, createElement("span", { className: "soft", textContent: ` · ${watch.via ? `by ${watch.via}, ` : ""}until ${formatClock(Date.parse(watch.until) / 1000)}` }));
  item.append(createButton("End", () => sendRequest({ do: "unwatch", id: watch.id, ...buildCaller(caller, ui.name) }, "Ended"), `End: ${watch.when}`));
  return item;
}

// Check the request after a short delay, and show how the booking service understands it.
function checkRequest() {
  clearTimeout(timer);
  const number = (checkNumber += 1);
  if (!caller.known) {
    timer = setTimeout(loadCaller, CHECK_DELAY_MS); // what failed may work by now
    return;
  }
  const missing = findMissingField();
  if (missing) return showMessage(missing[0]);
  ui.said.classList.add("old");
  timer = setTimeout(async () => {
    try {
      const { said, warnings } = await requestService(serviceUrl, token, { request: { ...buildRequest(), check: true } });
      if (number === checkNumber) showMessage(`${said}.`, "", warnings);
    } catch (error) {
      if (number === checkNumber) showMessage(error.message, "bad");
    }
  }, CHECK_DELAY_MS);
}

// Make or end a watch.
async function sendRequest(request, word) {
  if (sending) return;
  sending = true;
  clearTimeout(timer);
  const number = (checkNumber += 1);
  ui.dialog.setAttribute("aria-busy", "true");
  try {
    const { said, warnings } = await requestService(serviceUrl, token, { request });
    storeValue("me", caller.who ?? ui.name.value.trim());
    if (number !== checkNumber) return; // closed meanwhile
    if (word === "Watched") ui.when.value = "";
    else ui.heading.focus();
    showMessage(`${word}: ${said}.`, "good", warnings);
    await loadCaller();
  } catch (error) {
    if (number === checkNumber) showMessage(error.message, "bad");
  } finally {
    sending = false;
    ui.dialog.removeAttribute("aria-busy");
  }
}

// Send the form if it is complete.
function submitForm(event) {
  event.preventDefault();
  if (!ui.login.hidden && ui.token.value.trim()) return ui.useToken();
  if (!caller.known) return loadCaller();
  const missing = findMissingField();
  if (!missing) return sendRequest(buildRequest(), "Watched");
  showMessage(missing[0], "bad");
  missing[1].focus();
}

// Start again with another token, or without one.
function changeToken(newToken) {
  storeValue("token", newToken);
  caller = UNKNOWN;
  showMessage("");
  loadCaller();
}

// Show buttons for common watches: the models of which the board has the most.
function offerSearches() {
  const counts = new Map();
  for (const models of document.querySelectorAll(".host header .models")) {
    for (const [, count, model] of models.textContent.matchAll(/(\d+) × ([^,]+?)(?: \d+ GB)?(?=,|$)/g)) counts.set(model, (counts.get(model) ?? 0) + Number(count));
  }
  const models = [...counts].filter(([model]) => /\d|titan/i.test(model)).sort((a, b) => b[1] - a[1]).slice(0, MAX_MODELS).map(([model]) => model);
  const texts = ["1 GPU free", ...models.map((model) => `1 ${model} free`), ...(models.length ? [`2 ${models[0]} free on one host`] : [])];
  ui.offers.replaceChildren(...texts.map((text) => createButton(text, () => {
    ui.when.value = text;
    checkRequest();
  })));
}

// Build the dialog.
function buildDialog() {
  const input = (name, type, properties = {}) => (ui[name] = createElement("input", { type, name, ...properties }));
  ui.title = createElement("h2", { id: "_watch-title", textContent: "Tell me when GPUs are free" });
  ui.you = createElement("span");
  Object.assign(ui, createTokenFields(showMessage, changeToken));
  ui.offers = createElement("p", { className: "ends" });
  ui.via = createElement("select", { name: "via" }, ...Object.entries(CHANNELS).map(([value, text]) => createElement("option", { value, textContent: text })));
  ui.said = createElement("p", { role: "status" });
  ui.heading = createElement("h3", { textContent: "You wait for", tabIndex: -1 });
  ui.list = createElement("ul");
  ui.none = createElement("p", { className: "soft", textContent: "Nothing." });
  ui.form = createElement("form", { noValidate: true },
    createElement("p", { className: "you" }, ui.you, ui.forget), ui.login,
    createLabel("What for", input("when", "text", { maxLength: 200, autocomplete: "off", spellcheck: false, placeholder: "2 A100 free on one host for 4h" })), ui.offers,
    createLabel("By", ui.via),
    createLabel("Your name", input("name", "text", { maxLength: 80, autocomplete: "off", spellcheck: false })),
    ui.said, createElement("p", { className: "act" }, createElement("button", { type: "submit", className: "main", textContent: "Tell me" }), createElement("span", { className: "soft", textContent: "Once; nothing is booked." })));
  ui.form.addEventListener("submit", submitForm);
  ui.form.addEventListener("input", ({ target }) => {
    if (target === ui.token) return;
    if (target === ui.name) showWatches();
    checkRequest();
  });
  ui.dialog = createElement("dialog", { className: "dialog", "aria-labelledby": ui.title.id }, createElement("header", {}, ui.title, createButton("×", () => ui.dialog.close(), "Close")), ui.form, createElement("section", {}, ui.heading, ui.list, ui.none));
  ui.dialog.addEventListener("close", () => {
    clearTimeout(timer);
    checkNumber += 1;
    document.querySelector("button.watch")?.focus({ preventScroll: true }); // the part may have been replaced
  });
  document.body.append(ui.dialog);
}

// Open the dialog.
export function open() {
  if (!ui.dialog) buildDialog();
  caller = UNKNOWN;
  ui.when.value = "";
  ui.name.value = readStored("me");
  offerSearches();
  showCaller();
  showWatches();
  showMessage("");
  ui.dialog.showModal();
  ui.when.focus();
  loadCaller();
}
