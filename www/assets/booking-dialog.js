// The booking dialog: with a booking service it books, without one it shows what to type instead.

const { // of the same version as the page
  HOUR_MS, buildCaller, buildCommand, buildFileEntry, createButton, createDialog, createElement, createGpuChoices, createLabel, createListItem, createTokenFields,
  describeAnswer, describeTimes, describeZones, findNextStart, formatFieldTime, formatIsoTime, isOwnEntry, listEnds, nameRelease, readCardBookings, readStored, requestCaller, requestService, showStatus, storeValue, updateWholeHost,
} = await import(`./dialog-parts.js${version}`);

const CHECK_DELAY_MS = 400; // without a key press, until the request is checked
const MIN_BOOKING_MS = 15 * 60_000; // until a booking this soon, no end is suggested
const REPEAT_DELAY_MS = 600; // a click this soon after a question is the second of a double click, and no answer
const serviceUrl = page.book ? new URL(page.book, location.href) : null;
const ui = {}; // the dialog's elements, created when it is first opened
const UNKNOWN = { known: false, how: null, who: null, bookings: [] };
let host = "";
let opener = null; // what was clicked to open the dialog
let caller = UNKNOWN; // what the booking service says about the person who asks
let callerRequest = null; // the pending request for that
let callerError = ""; // why it failed
let token = "";
let changing = null; // the booking that is to be changed
let checked = { key: "", confirm: [] }; // the last request that was checked, and what is unusual about it
let asked = { key: "", at: 0 }; // the request about which a question is shown, and since when
let wantedHours = 6; // how long a new booking lasts unless somebody chooses another end
let offered = new Map(); // suggested ends by their text
let checkNumber = 0; // counts checks; the response to an older one is ignored
let openNumber = 0; // counts openings; the response to a request of an earlier one does not change the form
let sending = null; // the pending booking, change or release: its opening and host
let timer = 0;

// Return the start in the form; "" for now.
function readStart() {
  return ui.later.checked ? ui.from.value : "";
}

// Let a booking that starts now end when the next one of its GPUs starts, until somebody chooses another end.
function suggestEnd() {
  const now = serverNow() * 1000;
  const wanted = now + wantedHours * HOUR_MS;
  const next = changing || ui.later.checked ? Infinity : findNextStart(findCard(host), listChosenGpus());
  const isSoon = next < now + MIN_BOOKING_MS;
  ui.limit.textContent = next < wanted ? `Already booked from ${formatClock(next / 1000)}.` : "";
  if (!changing && ui.until.value === ui.until.defaultValue) ui.until.value = ui.until.defaultValue = formatFieldTime(isSoon ? wanted : Math.min(next, wanted));
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
  }, `End: ${text}`)));
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
  if (serviceUrl && !caller.how) return ["Sign in with your token.", ui.token];
  if (!changing && !listChosenGpus().length) return ["Choose a GPU.", ui.gpus.querySelector("input")];
  if (ui.later.checked && !ui.from.value) return ["Choose a start time.", ui.from];
  if (!ui.until.value) return ["Choose an end time.", ui.until];
  if (serviceUrl && caller.how === "open" && !ui.name.value.trim()) return ["Enter your name.", ui.name];
  if (!serviceUrl && Date.parse(ui.until.value) <= (Date.parse(readStart()) || serverNow() * 1000)) return ["The end is before the start.", ui.until];
  if (changing && !Object.keys(listChanges()).length) return ["Nothing changed yet.", ui.until];
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
  ui.into.textContent = name ? `Or add this to comments.json, under ${host} if that is there already:` : "Enter your name to get the JSON for comments.json too.";
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
function showMessage(...message) {
  showStatus(ui.said, ...message);
}

// Ask the booking service who the caller is and what is booked.
function loadCaller() {
  const own = requestCaller(serviceUrl, { host }).then(([response, error, usedToken]) => {
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
  callerRequest = own;
  showBookings();
  return own;
}

// Show who the caller is, or ask for a token.
function showCaller() {
  ui.login.hidden = caller.how !== null || !caller.known;
  ui.forget.hidden = !readStored("token");
  ui.you.textContent = caller.who ? `Signed in as ${caller.who}${caller.admin ? " (admin)" : ""}` : caller.how === "open" && !ui.name.value.trim() ? "Enter your name to book" : "";
  showZones();
  ui.name.closest("label").hidden = Boolean(caller.who) && !caller.for_others;
  if (!changing && caller.who && ui.name.value === ui.name.defaultValue) ui.name.value = ui.name.defaultValue = caller.who;
}

// Say whose times these are, where the viewer's clock and the lab's differ.
function showZones() {
  const text = describeZones(caller.zone, [serverNow() * 1000, readStart(), ui.until.value].filter(Boolean).map((time) => new Date(time).getTime()));
  ui.zone.textContent = text && caller.viewer_zone === false ? `${text}. Messages have the lab's times.` : text;
}

// Return whether a booking is the caller's own.
function isOwn(booking) {
  return isOwnEntry(booking, caller, ui.name.value);
}

// Return whether the caller may change a booking.
function canChange(booking) {
  return booking.id && (isOwn(booking) || caller.admin || (caller.how === "open" && booking === changing));
}

// Build the line of a booking, with its buttons.
function buildBookingLine(booking) {
  const times = describeTimes(booking);
  const comment = createElement("span", { className: "soft", textContent: booking.comment ? ` · ${booking.comment}` : "" });
  const item = createListItem(booking.where, " ", createElement("b", { textContent: booking.person ?? booking.name ?? "" }), ` ${times}`, comment);
  const label = `${booking.where}, ${times}`;
  const word = nameRelease(booking);
  if (canChange(booking)) item.append(createButton("Change", () => startChange(booking), `Change ${label}`), createButton(word, () => (isOwn(booking) ? release(booking) : confirmRelease(item, booking, label)), `${word} ${label}`));
  return item;
}

// Release a booking.
function release(booking) {
  return sendRequest({ do: "release", id: booking.id, host, ...buildCaller(caller, ui.name) }, "Released");
}

// Ask in the line of somebody else's booking whether to release it.
function confirmRelease(item, booking, label) {
  item.querySelectorAll("button").forEach((button) => button.remove());
  const word = `Yes, ${nameRelease(booking).toLowerCase()}`;
  const yes = createButton(word, () => release(booking), `${word} ${label}`);
  item.append(yes, createButton("No", () => {
    showBookings();
    ui.heading.focus();
  }, `No, keep ${label}`));
  yes.focus();
}

// Build the lines of the bookings on the card; without a booking service, each with a button that copies the command to release it.
function buildCardLines() {
  return readCardBookings(findCard(host)).map(([text, gpus]) => {
    const where = gpus.includes("*") ? host : `${host}:${gpus.join(",")}`;
    const item = createListItem(where, ` ${text}`);
    if (!serviceUrl) item.append(createButton("Copy release command", () => copyAndReport(`gpuboard release ${where}`), `Copy release command of ${where}: gpuboard release ${where}`));
    return item;
  });
}

// List the bookings of the host: as the booking service says, or as the board shows them, and then say so.
function showBookings() {
  const isLoaded = !serviceUrl || (caller.known && !callerError);
  const lines = serviceUrl && isLoaded ? caller.bookings.map(buildBookingLine) : buildCardLines();
  ui.list.replaceChildren(...lines);
  const state = callerError ? "Could not be loaded." : "Loading …";
  ui.none.textContent = isLoaded ? "No bookings" : `${state} The board shows${lines.length ? ":" : " none."}`;
  ui.none.hidden = isLoaded && lines.length > 0;
}

// Check the request after a short delay, and show how the booking service understands it.
function checkRequest() {
  clearTimeout(timer);
  offerEnds();
  showZones();
  asked.key = "";
  ui.submit.textContent = changing ? "Save changes" : "Book";
  if (!serviceUrl) return updateCommandBoxes();
  const number = (checkNumber += 1);
  if (!caller.known && !callerRequest) timer = setTimeout(loadCaller, CHECK_DELAY_MS); // what failed may work by now
  if (!caller.known) return;
  const missing = findMissingField();
  if (missing) return showMessage(missing[0]);
  ui.said.classList.add("old");
  timer = setTimeout(async () => {
    try {
      const { said, warnings } = await sendCheck(buildRequest());
      if (number === checkNumber) showMessage(`${said}.`, "", warnings);
    } catch (error) {
      if (number === checkNumber) showMessage(error.message, "bad");
    }
  }, CHECK_DELAY_MS);
}

// Ask the booking service how it understands a request, and remember what is unusual about it.
async function sendCheck(request) {
  const answer = await requestService(serviceUrl, token, { request: { ...request, check: true } });
  checked = { key: JSON.stringify(request), confirm: answer.confirm ?? [] };
  return answer;
}

// Ask about what is unusual in a request; return whether it may be sent.
async function confirmRequest(request) {
  const key = JSON.stringify(request);
  if (asked.key === key) return performance.now() - asked.at > REPEAT_DELAY_MS;
  const [number, opened] = [checkNumber, openNumber];
  const confirm = checked.key === key ? checked.confirm : (await sendCheck(request)).confirm ?? [];
  if (!confirm.length) return true;
  if (number !== checkNumber || opened !== openNumber) return false; // changed or closed meanwhile
  asked = { key, at: performance.now() };
  ui.submit.textContent = changing ? "Save anyway" : "Book anyway";
  showMessage(`Please check: ${confirm.join("; ")}.`, "bad");
  return false;
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
    showMessage(`Your request for ${sending.host} is still being sent. Try again when it is done.`, "bad");
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
    if (request.do !== "undo" && request.do !== "release" && !await confirmRequest(request)) return;
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

// Show that a request succeeded, with a button that takes it back.
function showResult(request, word, { said, warnings, change }) {
  const isForm = request.do === "book" || request.do === "change";
  if (isForm || changing?.id === request.id) fillForm(null);
  const undo = change && createButton("Undo", async () => {
    await callerRequest; // the request before it ends with that
    setTimeout(() => sendRequest({ do: "undo", undoes: change, ...(request.as ? { as: request.as } : {}) }, "Undone"));
  });
  showMessage(isForm ? `${word}: ${said}.` : describeAnswer({ said }), "good", isForm ? warnings : [], request.do === "undo" ? null : undo);
  if (!isForm) ui.heading.focus();
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
  showMessage("Waiting for the booking service …");
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

// Fill in the form for a new booking of some hours, or to change one.
function fillForm(booking, gpus = [], hours = 6) {
  [changing, wantedHours] = [booking, hours];
  asked.key = "";
  const hasBegun = Boolean(booking) && (!booking.from || booking.phase === "now" || Boolean(booking.rrule));
  const setField = (input, value) => { input.value = input.defaultValue = value; };
  ui.title.textContent = booking ? `Change ${booking.where}` : `Book ${host}`;
  ui.submit.textContent = booking ? "Save changes" : "Book";
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
  suggestEnd();
}

// Show a booking in the form, to be changed.
function startChange(booking) {
  fillForm(booking);
  checkRequest();
  ui.form.parentElement.scrollTo(0, 0);
  (booking.rrule ? ui.comment : ui.until).focus();
}

// Show the GPUs of the host to choose from; return their keys.
function offerGpus(chosen) {
  const [whole, ...choices] = createGpuChoices(host, findCard(host), chosen);
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
  ui.start = createElement("fieldset", {}, createElement("legend", { textContent: "Start" }),
    createElement("label", {}, input("now", "radio", { name: "start" }), "Now"),
    createElement("label", {}, input("later", "radio", { name: "start" }), "At"), input("from", "datetime-local", { "aria-label": "Start time" }));
  ui.ends = createElement("span", { className: "ends" });
  ui.limit = createElement("p", { id: "_book-limit", className: "soft" });
  ui.end = createElement("fieldset", {}, createElement("legend", { textContent: "End" }), input("until", "datetime-local", { "aria-label": "End time", "aria-describedby": ui.limit.id }), ui.ends, ui.limit);
  ui.said = createElement("p", { role: "status" });
  ui.submit = createElement("button", { type: "submit", className: "main" });
  ui.submit.setAttribute("form", "_book-form");
  ui.stop = createButton("New booking", () => {
    fillForm(null);
    checkRequest();
  });
  ui.into = createElement("p");
  ui.boxes = createElement("div", { hidden: true }, createElement("p", { textContent: "Run this where gpuboard is installed:" }), buildCopyBox("command", "the command"), ui.into, buildCopyBox("json", "the JSON"));
  ui.heading = createElement("h3", { textContent: "Bookings", tabIndex: -1 });
  ui.list = createElement("ul");
  ui.none = createElement("p", { className: "soft", "aria-live": "polite" });
  ui.form = createElement("form", { id: "_book-form", noValidate: true },
    createElement("p", { className: "you", hidden: !serviceUrl }, ui.you, ui.forget), ui.login, ui.gpus, ui.start, ui.end, ui.zone,
    createLabel("Purpose (optional)", input("comment", "text", { maxLength: 500, autocomplete: "off" })),
    createLabel("Name", input("name", "text", { maxLength: 80, autocomplete: "off", spellcheck: false })), ui.boxes);
  ui.form.addEventListener("submit", submitForm);
  ui.form.addEventListener("input", ({ target }) => {
    if (target === ui.token) return;
    if (target === ui.from) ui.later.checked = true;
    if (target === ui.all) ui.gpus.querySelectorAll("input").forEach((box) => { box.checked = ui.all.checked; });
    else if (target.type === "checkbox") updateWholeHost(ui.gpus, ui.all);
    if (target === ui.name) {
      showCaller();
      showBookings();
    }
    if (target.type === "checkbox" || target.type === "radio" || target === ui.from) suggestEnd();
    checkRequest();
  });
  ui.dialog = createDialog(ui.title, () => {
    cancelChecks();
    openNumber += 1;
    callerRequest = null;
    ui.dialog.removeAttribute("aria-busy");
    const link = opener?.isConnected && opener.matches("button, [href]") ? opener : findCard(host)?.querySelector("a.book"); // the part may have been replaced
    link?.focus({ preventScroll: true });
  }, [ui.form, createElement("section", {}, ui.heading, ui.none, ui.list)], [ui.said, createElement("p", { className: "act", hidden: !serviceUrl }, ui.submit, ui.stop)]);
}

// Open the dialog for a host, with these GPUs chosen and an end this many hours ahead.
export function open(name, gpus = [], hours = undefined, openedBy = null) {
  if (!ui.dialog) buildDialog();
  [host, opener] = [name, openedBy];
  caller = UNKNOWN;
  callerError = "";
  openNumber += 1;
  const gpuKeys = offerGpus(gpus);
  fillForm(null, gpuKeys.length === 1 ? gpuKeys : gpus, hours);
  showCaller();
  showBookings();
  showMessage("");
  ui.dialog.showModal();
  ui.form.parentElement.scrollTo(0, 0);
  (!listChosenGpus().length ? ui.gpus.querySelector("label:not([hidden]) input") : serviceUrl ? ui.submit : ui.until).focus();
  if (serviceUrl) {
    offerEnds();
    loadCaller();
  } else checkRequest();
}
