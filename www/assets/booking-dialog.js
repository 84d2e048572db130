// The booking dialog: with a booking service it books, without one it shows what to type instead.

const { // of the same version as the page
  buildCaller, buildCommand, buildFileEntry, createButton, createElement, createGpuChoices, createLabel, createListItem, createTokenFields,
  describeTimes, formatFieldTime, formatIsoTime, listEnds, readCardBookings, readStored, requestCaller, requestService, showStatus, storeValue, updateWholeHost,
} = await import(`./dialog-parts.js${version}`);

const CHECK_DELAY_MS = 400; // without a key press, until the request is checked
const serviceUrl = page.book ? new URL(page.book, location.href) : null;
const ui = {}; // the dialog's elements, created when it is first opened
const UNKNOWN = { known: false, how: null, who: null, bookings: [] };
let host = "";
let caller = UNKNOWN; // what the booking service says about the person who asks
let callerRequest = null; // the pending request for that
let callerError = ""; // why it failed
let token = "";
let changing = null; // the booking that is to be changed
let offered = new Map(); // suggested ends by their text
let checkNumber = 0; // counts checks; the response to an older one is ignored
let openNumber = 0; // counts openings; the response to a request of an earlier one does not change the form
let sending = null; // the pending booking, change or release: its opening and host
let timer = 0;

// Return the start in the form; "" for now.
function readStart() {
  return ui.later.checked ? ui.from.value : "";
}

// Show buttons for common ends.
function offerEnds() {
  const now = serverNow() * 1000;
  const start = Math.max(now, Date.parse(readStart()) || 0);
  const first = changing && !changing.rrule ? Date.parse(changing.date) : start;
  offered = new Map(listEnds(now, start, first));
  const texts = [...offered.keys()];
  if (texts.join() === [...ui.ends.children].map((button) => button.textContent).join()) return; // one of them may have the focus
  ui.ends.replaceChildren(...texts.map((text) => createButton(text, () => {
    ui.until.value = formatFieldTime(offered.get(text));
    checkRequest();
  }, `until ${text}`)));
}

// The request

// List the chosen GPUs, `*` for all of the host.
function listChosenGpus() {
  if (ui.all.checked) return ["*"];
  return [...ui.gpus.querySelectorAll("input[value]:checked")].map((box) => box.value).filter((value, _, all) => value !== "*" && !(value.includes(":") && all.includes(value.split(":")[0]))); // a chosen GPU includes its instances
}

// Format the chosen GPUs as in `gpuboard book`.
function formatPlace() {
  const gpus = listChosenGpus();
  return gpus[0] === "*" ? host : `${host}:${gpus.join(",")}`;
}

// Find what is still missing: a sentence, and the field to fill in.
function findMissingField() {
  if (serviceUrl && !caller.known) return [callerError, ui.submit];
  if (serviceUrl && !caller.how) return ["Say who you are first: give your token.", ui.token];
  if (!changing && !listChosenGpus().length) return ["Choose a GPU.", ui.gpus.querySelector("input")];
  if (ui.later.checked && !ui.from.value) return ["Say from when.", ui.from];
  if (!ui.until.value) return ["Say until when.", ui.until];
  if (serviceUrl && caller.how === "open" && !ui.name.value.trim()) return ["Say who you are.", ui.name];
  if (!serviceUrl && Date.parse(ui.until.value) <= (Date.parse(readStart()) || serverNow() * 1000)) return ["It would end before it begins.", ui.until];
  if (changing && !Object.keys(listChanges()).length) return ["Nothing is changed yet.", ui.until];
  return null;
}

// List the fields that differ from the booking that is being changed.
function listChanges() {
  const name = ui.name.value.trim();
  const isChanged = (input) => input.value.trim() !== input.defaultValue;
  const changes = {};
  if (ui.later.checked && isChanged(ui.from)) changes.from = formatIsoTime(ui.from.value);
  if (isChanged(ui.until)) changes.until = formatIsoTime(ui.until.value);
  if (isChanged(ui.comment)) changes.comment = ui.comment.value.trim();
  if (isChanged(ui.name) && name) changes.name = name;
  return changes;
}

// Build the request to the booking service.
function buildRequest() {
  if (changing) return { do: "change", id: changing.id, host, ...buildCaller(caller, ui.name), ...listChanges() };
  const [name, comment] = [ui.name.value.trim(), ui.comment.value.trim()];
  const from = readStart() ? { from: formatIsoTime(readStart()) } : {};
  return { do: "book", gpus: [formatPlace()], ...from, until: formatIsoTime(ui.until.value), comment, ...(name ? { name } : {}), ...buildCaller(caller, ui.name) };
}

// Without a booking service: the command, and the entry in the file

// Show the command and the JSON that make this booking.
function updateCommandBoxes() {
  const [name, comment] = [ui.name.value.trim(), ui.comment.value.trim()];
  const missing = findMissingField();
  ui.boxes.hidden = missing !== null;
  showMessage(missing ? missing[0] : "");
  if (missing) return;
  const booking = { from: readStart(), until: ui.until.value, comment, name };
  ui.command.replaceChildren(...buildCommand(formatPlace(), booking).flatMap((word, number) => [number ? " " : "", createElement("span", { textContent: word })]));
  ui.json.textContent = name ? buildFileEntry(host, listChosenGpus(), booking) : "";
  ui.json.nextSibling.hidden = ui.json.hidden = !name;
  ui.into.textContent = name ? `Or put this into comments.json; where it has ${host} already, add to what stands there:` : "With a name, the JSON for comments.json stands here too.";
}

// Copy a text, and show whether that worked.
async function copyAndReport(text) {
  const result = await copyText(text);
  const isCopied = result.startsWith("Copied");
  showMessage(isCopied ? "Copied." : result, isCopied ? "good" : "bad");
  if (ui.name.value.trim()) storeValue("me", ui.name.value.trim());
}

// Build a box with a text and a button that copies it.
function buildCopyBox(name, label) {
  ui[name] = createElement("pre", { tabIndex: 0, role: "region", "aria-label": label });
  return createElement("div", { className: "box" }, ui[name], createButton("Copy", () => copyAndReport(ui[name].textContent), `Copy ${label}`));
}

// With a booking service

// Show a message below the form.
function showMessage(text, kind, warnings) {
  showStatus(ui.said, text, kind, warnings);
}

// Ask the booking service who the caller is and what is booked.
function loadCaller() {
  const own = requestCaller(serviceUrl, host).then(([response, error, usedToken]) => {
    if (callerRequest !== own) return; // requested again since, or closed
    callerRequest = null;
    token = usedToken;
    callerError = response ? "" : error.message;
    if (response) caller = { ...UNKNOWN, ...response, known: true };
    if (caller.who) storeValue("me", caller.who);
    showCaller();
    showBookings();
    if (ui.said.className === "good") return;
    if (error) showMessage(error.message, "bad");
    else checkRequest();
  });
  return (callerRequest = own);
}

// Show who the caller is, or ask for a token.
function showCaller() {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  ui.login.hidden = caller.how !== null || !caller.known;
  ui.forget.hidden = !readStored("token");
  ui.you.textContent = caller.who ? `You are ${caller.who}${caller.admin ? ", an admin" : ""}.` : caller.how === "open" ? "Anybody can book here: say who you are." : "";
  ui.zone.textContent = caller.zone && caller.zone !== zone ? `Times to fill in are in your zone (${zone}); the booking service answers in its own (${caller.zone}).` : "";
  ui.name.closest("label").hidden = Boolean(caller.who) && !caller.for_others;
  if (!changing && caller.who && ui.name.value === ui.name.defaultValue) ui.name.value = ui.name.defaultValue = caller.who;
}

// Return whether the caller may change a booking.
function canChange(booking) {
  const name = ui.name.value.trim().toLowerCase();
  const people = [booking.name, booking.by].map((text) => text?.toLowerCase());
  return booking.id && (booking.mine || caller.admin || (caller.how === "open" && name && (people.includes(name) || booking === changing)));
}

// Build the line of a booking, with its buttons.
function buildBookingLine(booking) {
  const times = describeTimes(booking);
  const comment = createElement("span", { className: "soft", textContent: booking.comment ? ` · ${booking.comment}` : "" });
  const item = createListItem(booking.where, " ", createElement("b", { textContent: booking.name ?? "" }), ` ${times}`, comment);
  const label = `${booking.where}, ${times}`;
  if (canChange(booking)) item.append(createButton("Change", () => startChange(booking), `Change ${label}`), createButton("Release", () => confirmRelease(item, booking, label), `Release ${label}`));
  return item;
}

// Ask in the line of a booking whether to release it.
function confirmRelease(item, booking, label) {
  item.querySelectorAll("button").forEach((button) => button.remove());
  const yes = createButton("Yes, release", () => sendRequest({ do: "release", id: booking.id, host, ...buildCaller(caller, ui.name) }, "Released"), `Yes, release ${label}`);
  item.append(yes, createButton("No", () => {
    showBookings();
    ui.heading.focus();
  }, `No, keep ${label}`));
  yes.focus();
}

// Build the lines of the bookings on the card, each with a button that copies the command to release it.
function buildCardLines() {
  return readCardBookings(findCard(host)).map(([text, gpus]) => {
    const where = gpus.includes("*") ? host : `${host}:${gpus.join(",")}`;
    return createElement("li", {}, createListItem(where, ` ${text}`).firstChild, createButton("Copy the release", () => copyAndReport(`gpuboard release ${where}`), `Copy gpuboard release ${where}`));
  });
}

// List the bookings of the host.
function showBookings() {
  const lines = serviceUrl ? caller.bookings.map(buildBookingLine) : buildCardLines();
  ui.list.replaceChildren(...lines);
  ui.none.hidden = lines.length > 0;
}

// Check the request after a short delay, and show how the booking service understands it.
function checkRequest() {
  clearTimeout(timer);
  offerEnds();
  if (!serviceUrl) return updateCommandBoxes();
  const number = (checkNumber += 1);
  if (!caller.known && !callerRequest) timer = setTimeout(loadCaller, CHECK_DELAY_MS); // what failed may work by now
  if (!caller.known) return;
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

// Ignore the responses of all checks so far.
function cancelChecks() {
  clearTimeout(timer);
  checkNumber += 1;
}

// Return whether a request is pending; report one that was sent before the dialog was reopened.
function isSending() {
  if (sending && sending.openNumber !== openNumber) {
    cancelChecks();
    showMessage(`What you asked for ${sending.host} is still under way: try again when it is answered.`, "bad");
  }
  return sending !== null;
}

// Send a booking, change or release.
async function sendRequest(request, word) {
  if (isSending()) return;
  const [own, name] = [(sending = { openNumber, host }), caller.who ?? ui.name.value.trim()];
  cancelChecks();
  ui.dialog.setAttribute("aria-busy", "true");
  try {
    const answer = await requestService(serviceUrl, token, { request });
    storeValue("me", name);
    if (own.openNumber === openNumber) await showResult(request, word, answer);
    refresh(); // shows it on the board too
  } catch (error) {
    if (own.openNumber !== openNumber) return;
    showMessage(error.message, "bad");
    showBookings();
  } finally {
    sending = null;
    ui.dialog.removeAttribute("aria-busy");
    if (own.openNumber !== openNumber && ui.dialog.open) (own.host === host ? loadCaller : checkRequest)();
  }
}

// Show that a request succeeded.
function showResult(request, word, { said, warnings }) {
  const isRelease = word === "Released";
  if (!isRelease || changing?.id === request.id) fillForm(null);
  showMessage(`${word}: ${said.replace(/^released /, "")}.`, "good", isRelease ? [] : warnings);
  if (isRelease) ui.heading.focus();
  return loadCaller();
}

// Send the form if it is complete.
async function submitForm(event) {
  event.preventDefault();
  if (!serviceUrl || isSending()) return;
  if (!ui.login.hidden && ui.token.value.trim()) return ui.useToken();
  if (!caller.known && !await waitForCaller()) return;
  const missing = findMissingField();
  if (!missing) return sendRequest(buildRequest(), changing ? "Changed" : "Booked");
  showMessage(missing[0], "bad");
  missing[1].focus();
}

// Wait until the caller is known; return whether the dialog is still the same.
async function waitForCaller() {
  const opened = openNumber;
  showMessage("Waiting for the booking service to answer.");
  if (!callerRequest) loadCaller();
  while (callerRequest && opened === openNumber) await callerRequest;
  return opened === openNumber && !sending;
}

// Start again with another token, or without one.
function changeToken(newToken) {
  storeValue("token", newToken);
  cancelChecks();
  caller = UNKNOWN;
  showMessage("");
  loadCaller();
}

// Fill in the form for a new booking, or to change one.
function fillForm(booking, gpus = []) {
  changing = booking;
  const hasBegun = Boolean(booking) && (!booking.from || booking.phase === "now" || Boolean(booking.rrule));
  const setField = (input, value) => { input.value = input.defaultValue = value; };
  ui.title.textContent = booking ? `Change ${booking.where}` : `Book ${host}`;
  ui.submit.textContent = booking ? "Change" : "Book";
  ui.stop.hidden = !booking;
  ui.gpus.hidden = Boolean(booking);
  ui.start.hidden = hasBegun;
  for (const choice of [ui.now, ui.later]) choice.parentElement.hidden = Boolean(booking);
  ui.end.hidden = Boolean(booking?.rrule);
  ui.now.checked = !booking || hasBegun;
  ui.later.checked = !ui.now.checked;
  setField(ui.from, booking && !hasBegun ? formatFieldTime(Date.parse(booking.from)) : "");
  setField(ui.until, booking ? formatFieldTime(Date.parse(booking.date)) : "");
  setField(ui.comment, booking?.comment ?? "");
  setField(ui.name, booking?.name ?? caller.who ?? readStored("me"));
  if (!booking) {
    for (const box of ui.gpus.querySelectorAll("input")) box.checked = gpus.includes(box.value);
    updateWholeHost(ui.gpus, ui.all);
  }
}

// Show a booking in the form, to be changed.
function startChange(booking) {
  fillForm(booking);
  checkRequest();
  ui.dialog.scrollTo(0, 0);
  (booking.rrule ? ui.comment : ui.until).focus();
}

// Show the GPUs of the host to choose from; return their keys.
function offerGpus() {
  const [whole, ...choices] = createGpuChoices(host, findCard(host));
  ui.all = whole.firstChild;
  ui.gpus.replaceChildren(createElement("legend", { textContent: "GPUs" }), whole, ...choices);
  return choices.map((choice) => choice.firstChild.value);
}

// Build the dialog.
function buildDialog() {
  const input = (name, type, properties = {}) => (ui[name] = createElement("input", { type, name, ...properties }));
  ui.title = createElement("h2", { id: "_book-title" });
  ui.you = createElement("span");
  ui.zone = createElement("p", { className: "soft" });
  Object.assign(ui, createTokenFields(showMessage, changeToken));
  ui.gpus = createElement("fieldset", { className: "choose" });
  ui.start = createElement("fieldset", {}, createElement("legend", { textContent: "From" }),
    createElement("label", {}, input("now", "radio", { name: "start" }), "now"),
    createElement("label", {}, input("later", "radio", { name: "start" }), "at"), input("from", "datetime-local", { "aria-label": "From when" }));
  ui.ends = createElement("span", { className: "ends" });
  ui.end = createElement("fieldset", {}, createElement("legend", { textContent: "Until" }), input("until", "datetime-local", { "aria-label": "Until when" }), ui.ends);
  ui.said = createElement("p", { role: "status" });
  ui.submit = createElement("button", { type: "submit", className: "main" });
  ui.stop = createButton("Back to a new booking", () => {
    fillForm(null);
    checkRequest();
  });
  ui.into = createElement("p");
  ui.boxes = createElement("div", { hidden: true }, createElement("p", { textContent: "This books it, on a machine that has gpuboard:" }), buildCopyBox("command", "the command"), ui.into, buildCopyBox("json", "the JSON"));
  ui.heading = createElement("h3", { textContent: "Booked", tabIndex: -1 });
  ui.list = createElement("ul");
  ui.none = createElement("p", { className: "soft", textContent: "Nothing, now or to come." });
  ui.form = createElement("form", { noValidate: true },
    createElement("p", { className: "you", hidden: !serviceUrl }, ui.you, ui.forget), ui.login, ui.gpus, ui.start, ui.end, ui.zone,
    createLabel("What for", input("comment", "text", { maxLength: 500, autocomplete: "off" })),
    createLabel(serviceUrl ? "Name" : "Your name", input("name", "text", { maxLength: 80, autocomplete: "off", spellcheck: false })),
    ui.said, createElement("p", { className: "act", hidden: !serviceUrl }, ui.submit, ui.stop), ui.boxes);
  ui.form.addEventListener("submit", submitForm);
  ui.form.addEventListener("input", ({ target }) => {
    if (target === ui.token) return;
    if (target === ui.from) ui.later.checked = true;
    if (target === ui.all) ui.gpus.querySelectorAll("input").forEach((box) => { box.checked = ui.all.checked; });
    else if (target.type === "checkbox") updateWholeHost(ui.gpus, ui.all);
    if (target === ui.name) showBookings();
    checkRequest();
  });
  ui.dialog = createElement("dialog", { className: "dialog", "aria-labelledby": ui.title.id }, createElement("header", {}, ui.title, createButton("×", () => ui.dialog.close(), "Close")), ui.form, createElement("section", {}, ui.heading, ui.list, ui.none));
  ui.dialog.addEventListener("close", () => {
    cancelChecks();
    openNumber += 1;
    callerRequest = null;
    ui.dialog.removeAttribute("aria-busy");
    findCard(host)?.querySelector("a.book")?.focus({ preventScroll: true }); // the card may have been replaced
  });
  document.body.append(ui.dialog);
}

// Open the dialog for a host, with these GPUs chosen.
export function open(name, gpus = []) {
  if (!ui.dialog) buildDialog();
  host = name;
  caller = UNKNOWN;
  callerError = "";
  openNumber += 1;
  const gpuKeys = offerGpus();
  fillForm(null, gpuKeys.length === 1 ? gpuKeys : gpus);
  showCaller();
  showBookings();
  showMessage("");
  ui.dialog.showModal();
  ui.dialog.scrollTo(0, 0);
  (gpuKeys.length === 1 ? ui.until : ui.gpus.querySelector("label:not([hidden]) input")).focus();
  if (serviceUrl) {
    offerEnds();
    loadCaller();
  } else checkRequest();
}
