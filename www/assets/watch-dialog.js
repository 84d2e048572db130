// The dialog to get notified when GPUs are free: the booking service shows how it understands a notification before it is made.

const { // of the same version as the page
  buildCaller, createButton, createDialog, createElement, createLabel, createListItem, formatBookingTime, createTokenFields, readStored, requestCaller, requestService, showStatus, storeValue,
} = await import(`./dialog-parts.js${version}`);

const CHECK_DELAY_MS = 400; // without a key press, until the request is checked
const NO_HOST = "_"; // no host has this name: no bookings are needed here
const MAX_MODELS = 4;
const CHANNELS = { "": "my default contact", mail: "mail", slack: "Slack" };
const UNKNOWN = { known: false, how: null, who: null, watches: [] };
const serviceUrl = new URL(page.book, location.href);
const ui = {}; // the dialog's elements, created when it is first opened
let caller = UNKNOWN; // what the booking service says about the person who asks
let token = "";
let checkNumber = 0; // counts requests; the response to an older one is ignored
let opener = null; // what was clicked to open the dialog
let sending = false;
let callerError = ""; // why the notifications could not be loaded
let timer = 0;

// Show a message below the form.
function showMessage(...message) {
  showStatus(ui.said, ...message);
}

// Find what is still missing: a sentence, and the field to fill in.
function findMissingField() {
  if (!caller.how) return ["Sign in with your token.", ui.token];
  if (!ui.when.value.trim()) return ["Enter the GPUs that you need.", ui.when];
  if (caller.how === "open" && !ui.name.value.trim()) return ["Enter your name.", ui.name];
  return null;
}

// Build the request to the booking service.
function buildRequest() {
  return { do: "watch", when: ui.when.value.trim(), ...(ui.via.value ? { via: ui.via.value } : {}), ...buildCaller(caller, ui.name) };
}

// Ask the booking service who the caller is, and for their notifications; return whether it is known now.
async function loadCaller() {
  const number = (checkNumber += 1);
  const [response, error, usedToken] = await requestCaller(serviceUrl, { host: NO_HOST });
  if (number !== checkNumber) return false; // requested again since, or closed
  token = usedToken;
  callerError = response ? "" : error.message;
  if (response) caller = { ...UNKNOWN, ...response, known: true };
  showCaller();
  showWatches();
  if (error) showMessage(error.message, "bad");
  else if (ui.said.className !== "good") checkRequest();
  return caller.known;
}

// Show who the caller is, or ask for a token.
function showCaller() {
  ui.login.hidden = caller.how !== null || !caller.known;
  ui.forget.hidden = !readStored("token");
  ui.you.textContent = caller.who ? `Signed in as ${caller.who}${caller.admin ? " (admin)" : ""}` : caller.how === "open" && !ui.name.value.trim() ? "Enter your name to get notified" : "";
  ui.name.closest("label").hidden = caller.how !== "open";
}

// List the notifications of the caller, or say that they could not be loaded.
function showWatches() {
  const name = ui.name.value.trim().toLowerCase();
  const lines = (caller.watches ?? []).filter((watch) => watch.mine || (caller.how === "open" && name && watch.name?.toLowerCase() === name)).map(buildWatchLine);
  ui.list.replaceChildren(...lines);
  ui.none.hidden = lines.length > 0;
  ui.none.textContent = callerError ? "Could not be loaded." : caller.known ? "None" : "Loading …";
}

// Build the line of a notification, with its button.
function buildWatchLine(watch) {
  const item = createListItem(watch.when, createElement("span", { className: "soft", textContent: ` · ${watch.via ? `by ${watch.via}, ` : ""}until ${formatBookingTime(watch.until)}` }));
  item.append(createButton("Cancel", () => sendRequest({ do: "unwatch", id: watch.id, ...buildCaller(caller, ui.name) }), `Cancel: ${watch.when}`));
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

// Make or cancel a notification.
async function sendRequest(request) {
  if (sending) return;
  sending = true;
  clearTimeout(timer);
  const number = (checkNumber += 1);
  ui.dialog.setAttribute("aria-busy", "true");
  try {
    const { said, warnings, watches } = await requestService(serviceUrl, token, { request });
    storeValue("me", caller.who ?? ui.name.value.trim());
    if (number !== checkNumber) return; // closed meanwhile
    const [watch] = watches;
    const isNew = request.do === "watch";
    if (isNew) ui.when.value = "";
    else ui.heading.focus();
    const who = request.as ? { as: request.as } : {};
    const undoing = isNew ? { do: "unwatch", id: watch.id, ...who } : { do: "watch", when: watch.when, until: watch.until, ...(watch.via ? { via: watch.via } : {}), ...who };
    showMessage(`${said}.`, "good", isNew ? warnings : [], watch.mine || request.as ? createButton("Undo", () => sendRequest(undoing)) : null);
    await loadCaller();
  } catch (error) {
    if (number === checkNumber) showMessage(error.message, "bad");
  } finally {
    sending = false;
    ui.dialog.removeAttribute("aria-busy");
  }
}

// Send the form if it is complete.
async function submitForm(event) {
  event.preventDefault();
  if (!ui.login.hidden && ui.token.value.trim()) return ui.useToken();
  if (!caller.known && !await loadCaller()) return;
  const missing = findMissingField();
  if (!missing) return sendRequest(buildRequest());
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

// Show buttons for common requests: the models of which the board has the most.
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
  ui.title = createElement("h2", { id: "_watch-title", textContent: "Notify me when GPUs are free" });
  ui.you = createElement("span");
  Object.assign(ui, createTokenFields(showMessage, changeToken));
  ui.offers = createElement("p", { className: "ends" });
  ui.via = createElement("select", { name: "via" }, ...Object.entries(CHANNELS).map(([value, text]) => createElement("option", { value, textContent: text })));
  ui.said = createElement("p", { role: "status" });
  ui.heading = createElement("h3", { textContent: "Your notifications", tabIndex: -1 });
  ui.list = createElement("ul");
  ui.none = createElement("p", { className: "soft", "aria-live": "polite" });
  ui.form = createElement("form", { id: "_watch-form", noValidate: true },
    createElement("p", { className: "you" }, ui.you, ui.forget), ui.login,
    createLabel("GPUs", input("when", "text", { maxLength: 200, autocomplete: "off", spellcheck: false, placeholder: "2 A100 free on one host for 4h" })), ui.offers,
    createLabel("Notify by", ui.via),
    createLabel("Name", input("name", "text", { maxLength: 80, autocomplete: "off", spellcheck: false })));
  ui.submit = createElement("button", { type: "submit", className: "main", textContent: "Notify me" });
  ui.submit.setAttribute("form", "_watch-form");
  ui.form.addEventListener("submit", submitForm);
  ui.form.addEventListener("input", ({ target }) => {
    if (target === ui.token) return;
    if (target === ui.name) showWatches();
    checkRequest();
  });
  ui.dialog = createDialog(ui.title, () => {
    clearTimeout(timer);
    checkNumber += 1;
    (opener?.isConnected ? opener : document.querySelector("button.watch"))?.focus({ preventScroll: true }); // the part may have been replaced
  }, [ui.form, createElement("section", {}, ui.heading, ui.none, ui.list)], [ui.said, createElement("p", { className: "act" }, ui.submit, createElement("span", { className: "soft", textContent: "Sent once. Nothing is booked." }))]);
}

// Open the dialog, with a request filled in.
export function open(when = "", openedBy = null) {
  if (!ui.dialog) buildDialog();
  caller = UNKNOWN;
  [opener, callerError] = [openedBy, ""];
  ui.when.value = when;
  ui.name.value = readStored("me");
  offerSearches();
  showCaller();
  showWatches();
  showMessage("");
  ui.dialog.showModal();
  ui.when.focus();
  ui.when.select(); // typing replaces what is filled in
  loadCaller();
}
