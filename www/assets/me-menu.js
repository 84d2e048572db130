// What is one's own: bookings to release, notifications to cancel, and signing in and out.

const { // of the same version as the page
  buildCaller, createButton, createDialog, createElement, createLabel, createListItem, createTokenFields, describeAnswer, describeTimes, formatBookingTime, isOwnEntry, nameRelease, readStored,
  requestCaller, requestService, showStatus, storeValue,
} = await import(`./dialog-parts.js${version}`);

const UNKNOWN = { known: false, how: null, who: null, bookings: [], watches: [] };
const serviceUrl = page.book ? new URL(page.book, location.href) : null;
const ui = {}; // the dialog's elements, created when it is first opened
let caller = UNKNOWN; // what the booking service says about the person who asks
let callerError = ""; // why it failed
let token = "";
let loadNumber = 0; // counts requests; the response to an older one is ignored
let opener = null; // what was clicked to open the dialog

function showMessage(...message) {
  showStatus(ui.said, ...message);
}

// Ask the booking service for the caller's bookings and notifications.
async function loadCaller() {
  const number = (loadNumber += 1);
  const [response, error, usedToken] = await requestCaller(serviceUrl, { person: ui.name.value.trim() });
  if (number !== loadNumber) return; // requested again since, or closed
  [token, callerError] = [usedToken, response ? "" : error.message];
  if (response) caller = { ...UNKNOWN, ...response, known: true };
  if (caller.who) storeValue("me", caller.who);
  show();
  if (error) showMessage(error.message, "bad");
}

// Show who the caller is, and what is theirs.
function show() {
  ui.login.hidden = caller.how !== null || !caller.known;
  ui.forget.hidden = !readStored("token");
  ui.you.textContent = caller.who ? `Signed in as ${caller.who}${caller.admin ? " (admin)" : ""}` : "";
  ui.name.closest("label").hidden = caller.how !== "open";
  showList("bookings", (booking) => [booking.where, ` ${describeTimes(booking)}${booking.comment ? ` · ${booking.comment}` : ""}`, nameRelease(booking), { do: "release", id: booking.id, host: booking.host }]);
  showList("watches", (watch) => [watch.when, ` until ${formatBookingTime(watch.until)}`, "Cancel", { do: "unwatch", id: watch.id }]);
}

// Show a list of what is the caller's; `describe` gives a place, its times, and the word and request of the button.
function showList(name, describe) {
  const { list, none } = ui[name];
  list.replaceChildren(...caller[name].filter((item) => isOwnEntry(item, caller, ui.name.value)).map((item) => {
    const [what, times, word, request] = describe(item);
    const line = createListItem(what, times);
    line.append(createButton(word, () => sendRequest({ ...request, ...buildCaller(caller, ui.name) }), `${word} ${what}${times}`));
    return line;
  }));
  none.hidden = list.childElementCount > 0;
  none.textContent = callerError ? "Could not be loaded." : !caller.known ? "Loading …" : ui.login.hidden ? "None" : "Sign in to see them.";
}

// Return the request that takes back what another did.
function findUndo(request, { change, watches }) {
  const who = request.as ? { as: request.as } : {};
  if (request.do === "unwatch") {
    const [{ when, until, via }] = watches;
    return { do: "watch", when, until, ...(via ? { via } : {}), ...who };
  }
  return request.do === "release" && change ? { do: "undo", undoes: change, ...who } : null;
}

// Release a booking, cancel a notification, or take that back.
async function sendRequest(request) {
  if (ui.dialog.hasAttribute("aria-busy")) return;
  ui.dialog.setAttribute("aria-busy", "true");
  try {
    const answer = await requestService(serviceUrl, token, { request });
    const undo = findUndo(request, answer);
    showMessage(describeAnswer(answer), "good", [], undo && createButton("Undo", () => sendRequest(undo)));
    ui.title.focus();
    if (ui.dialog.open) await loadCaller();
    refresh(); // shows it on the board too
  } catch (error) {
    showMessage(error.message, "bad");
  } finally {
    ui.dialog.removeAttribute("aria-busy");
  }
}

// Start again with another token, or without one.
function changeToken(newToken) {
  storeValue("token", newToken);
  caller = UNKNOWN;
  showMessage("");
  show();
  loadCaller();
}

// Build the dialog.
function buildDialog() {
  ui.title = createElement("h2", { id: "_me-title", textContent: "My bookings and notifications", tabIndex: -1 });
  ui.you = createElement("span");
  ui.said = createElement("p", { role: "status" });
  Object.assign(ui, createTokenFields(showMessage, changeToken));
  ui.name = createElement("input", { name: "name", maxLength: 80, autocomplete: "off", spellcheck: false });
  const form = createElement("form", { noValidate: true }, createElement("p", { className: "you" }, ui.you, ui.forget), ui.login, createLabel("Name", ui.name));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!ui.login.hidden) return ui.useToken();
    storeValue("me", ui.name.value.trim());
    loadCaller();
  });
  ui.name.addEventListener("change", () => form.requestSubmit());
  const lists = [["bookings", "My bookings"], ["watches", "My notifications"]].map(([name, title]) => {
    ui[name] = { list: createElement("ul"), none: createElement("p", { className: "soft", "aria-live": "polite" }) };
    return createElement("section", {}, createElement("h3", { textContent: title }), ui[name].none, ui[name].list);
  });
  ui.dialog = createDialog(ui.title, () => {
    loadNumber += 1;
    (opener?.isConnected ? opener : document.querySelector("button.me"))?.focus({ preventScroll: true });
  }, [form, ...lists], [ui.said]);
}

// Open the dialog.
export function open(openedBy) {
  if (!ui.dialog) buildDialog();
  [opener, caller, callerError] = [openedBy, UNKNOWN, ""];
  ui.name.value = readStored("me");
  showMessage("");
  show();
  ui.dialog.showModal();
  ui.title.focus();
  loadCaller();
}
