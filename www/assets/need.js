// The line "I need 2 A100 or better for 6 h": it picks GPUs that are free for so long, by the rules of `gpuboard available`.
"use strict";

const need = document.querySelector("form.need");
const STORED_CHOICES = "gpuboard.need";

let availableText = "";
let available = { models: [], gpus: [] };

// Return what the page knows of models and of GPUs that anybody can have, both the best first.
function readAvailable() {
  const text = document.querySelector(".free-now")?.dataset.available ?? "";
  if (text !== availableText) [availableText, available] = [text, parseJson(text) ?? { models: [], gpus: [] }];
  return available;
}

// Return a test for the chosen model: that one alone, one at least as good, or any.
function buildModelTest({ models }) {
  const { value } = need.elements.model;
  if (!value) return () => true;
  const [name, level] = models.find(([model]) => model === value.slice(1)) ?? [value.slice(1), -1];
  return value[0] === "=" ? (number) => models[number]?.[0] === name : (number) => models[number]?.[1] <= level;
}

// Choose GPUs of one host that are best used together: with NVLinks between them, then on one NUMA node, then the first. Those of another model
// than the first are not preferred.
function chooseConnected(gpus, count) {
  let chosen = gpus;
  for (const place of count > 1 ? ["group", "node"] : []) {
    const byPlace = new Map();
    for (const gpu of chosen) if (gpu[place] !== null && gpu.model === gpus[0].model) byPlace.set(gpu[place], [...(byPlace.get(gpu[place]) ?? []), gpu]);
    chosen = [...byPlace.values()].find((near) => near.length >= count) ?? chosen;
  }
  return chosen.slice(0, count);
}

// Pick the best GPUs of the first host that has enough, or of one that is as good and has them linked; a process sees only one MIG instance,
// unless its kind is chosen.
function pickGpus(count, seconds) {
  const isModel = buildModelTest(readAvailable());
  const isExact = need.elements.model.value[0] === "=";
  const now = serverNow();
  const gpusByHost = new Map();
  const enough = []; // in the order in which they have enough
  for (const [model, host, label, freeUntil, vendor, isInstance, group = null, node = null] of readAvailable().gpus) {
    if (!isModel(model) || (freeUntil !== null && freeUntil - now < seconds) || (count > 1 && isInstance && !isExact)) continue;
    const key = `${host} ${vendor}`;
    const gpus = gpusByHost.get(key) ?? [];
    gpusByHost.set(key, gpus);
    gpus.push({ model, host, label, freeUntil: freeUntil ?? Infinity, group, node });
    if (gpus.length === count) enough.push(gpus);
  }
  if (!enough.length) return null;
  const picks = enough.filter((gpus) => gpus[count - 1].model === enough[0][count - 1].model).map((gpus) => chooseConnected(gpus, count));
  const isLinked = (gpus) => count > 1 && gpus.every(({ group }) => group !== null && group === gpus[0].group);
  const picked = picks.find(isLinked) ?? picks[0];
  return { host: picked[0].host, labels: picked.map(({ label }) => label), freeUntil: Math.min(...picked.map(({ freeUntil }) => freeUntil)) };
}

// Write the request as the notification dialog takes it: a model, or its memory and better.
function formatWish(count, hours) {
  const value = need.elements.model.value;
  const name = value.slice(1);
  const size = / (\d+) GB$/.exec(name)?.[1];
  const isExact = value[0] === "=";
  const model = isExact || (value && !size) ? `${name.replace(/ \d+ GB$/, "")} ` : "";
  const gpus = model || (count === 1 ? "GPU " : "GPUs ");
  return `${count} ${gpus}${size ? `with ${size} GB ` : ""}free${count > 1 ? " on one host" : ""} for ${hours}h`;
}

// Offer the models of the fleet, and keep the choice.
function offerModels({ models }) {
  const select = need.elements.model;
  const names = models.map(([name]) => name);
  if (select.offered === names.join("\n")) return;
  const chosen = select.offered === undefined ? readChoices().model : select.value;
  select.offered = names.join("\n");
  const createGroup = (label, sign, ending) => {
    const group = document.createElement("optgroup");
    group.label = label;
    group.append(...names.map((name) => new Option(name + ending, sign + name)));
    return group;
  };
  select.replaceChildren(new Option("GPU, any model", ""), createGroup("This model or a better one", ">", " or better"), createGroup("Only this model", "=", ""));
  if ([...select.options].some((option) => option.value === chosen)) select.value = chosen;
}

// Return the choices that this browser stores.
function readChoices() {
  try {
    return JSON.parse(localStorage.getItem(STORED_CHOICES)) ?? {};
  } catch {
    return {};
  }
}

// Show what can be had now, with a button that books it.
function updateNeed() {
  offerModels(readAvailable());
  const count = Math.min(64, Math.max(1, Math.floor(Number(need.elements.count.value)) || 1));
  const hours = Number(need.elements.hours.value);
  const output = need.querySelector("output");
  const take = need.querySelector(".take");
  const watch = need.querySelector(".watch");
  if (watch) watch.dataset.when = formatWish(count, hours);
  const age = document.querySelector(".age");
  const pick = age.classList.contains("old") ? null : pickGpus(count, hours * 3600); // in doubt no GPU is free
  output.classList.toggle("none", !pick);
  if (!pick) {
    take.removeAttribute("href");
    setText(output, age.classList.contains("old") ? "Not known: the board is out of date or offline" : count > 1 ? `No host has ${count} free that long` : "None is free that long");
    return;
  }
  const place = `${pick.host}:${pick.labels.join(",")}`;
  const until = pick.freeUntil === Infinity ? "" : ` until ${formatClock(pick.freeUntil)}`;
  setText(output, `→ ${place}${until}`);
  [take.href, take.dataset.gpus, take.dataset.hours] = [`bookings.html#${pick.host}`, place, String(hours)];
  take.setAttribute("aria-label", `Book ${place}`);
}

const stored = readChoices();
for (const name of ["count", "hours"]) {
  const field = need.elements[name];
  if (stored[name] && (field.type === "number" || [...field.options].some((option) => option.value === stored[name]))) field.value = stored[name];
}
need.addEventListener("submit", (event) => event.preventDefault());
need.addEventListener("input", () => {
  updateNeed();
  try {
    localStorage.setItem(STORED_CHOICES, JSON.stringify(Object.fromEntries(["count", "model", "hours"].map((name) => [name, need.elements[name].value]))));
  } catch {
    // without storage the choices are the usual ones next time
  }
});
document.addEventListener("board", updateNeed);
setInterval(() => { if (!document.hidden) updateNeed(); }, 1000);
updateNeed();
