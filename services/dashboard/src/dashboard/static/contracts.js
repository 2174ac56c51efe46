// The page of contracts: who reads which field of which event, and what a proposed change would break.
// The server knows and judges; this page asks, filters and shows.

import { ask } from "./ask.js";
import { element } from "./format.js";
import { watchWaiting } from "./letters-link.js";
import { useTheme } from "./theme.js";

const $ = (id) => document.getElementById(id);
const idOf = (event) => (event.isNewest ? event.type : `${event.type}.v${event.version}`);
const nameOf = (event) => `${event.type} v${event.version}`;
const OPERATIONS = [
  // value, words, the inputs that it needs
  ["remove", "remove a field", ["field"]],
  ["rename", "rename a field", ["field", "name"]],
  ["require", "make a field required", ["field"]],
  ["optional", "make a field optional", ["field"]],
  ["retype", "change the type of a field", ["field", "type"]],
  ["add", "add a field", ["name", "type", "default"]],
  ["schema", "edit the JSON Schema", ["schema"]],
];
const GROUPS = [
  ["consumer", "Consumers that lose what they read"],
  ["records", "Records that were written before"],
  ["readers", "Readers that are not upgraded yet"],
  ["safe", "Safe"],
];
const READERS_NOTE = "They decode every field by the old class, also those that they do not use.";
const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
const LEVELS = { true: ["breaking", "✗"], false: ["safe", "✓"] };

let events = [];
let topics = [];
let checked = 0; // number of the last question; answers to earlier ones are dropped

useTheme($("theme"));

// ------------------------------------------------------------------ loading
async function load() {
  $("again").hidden = true;
  $("found").textContent = "The events are loading.";
  try {
    const found = await ask("api/contracts");
    const newest = new Map(found.events.map((event) => [event.type, event.version])); // versions come in rising order
    events = found.events.map((event) => ({ ...event, isNewest: newest.get(event.type) === event.version }));
    topics = found.topics;
    $("p-type").replaceChildren(...found.types.map((name) => element("option", {}, name)));
  } catch (error) {
    $("found").textContent = `The events cannot be shown. ${error.message}`;
    $("again").hidden = false;
    return;
  }
  drawEvents();
  drawForm();
  filter();
  follow();
}

// ------------------------------------------------------------------ events
const cell = (reads) =>
  reads ? element("td", { class: "reads" }, reads === "reads" ? "✓ reads" : "✓ in part") : element("td", { class: "none" }, "no");

// A docstring: paragraphs, with code between backticks.
const prose = (text) => text.split(/\n{2,}/).map((paragraph) =>
  element("p", {}, ...paragraph.split("`").map((part, at) => (at % 2 ? element("code", {}, part) : part.replaceAll("\n", " ")))));

function fieldsTable(event) {
  const isDescribed = event.fields.some(({ about }) => about);
  const heads = ["field", ...event.consumers, "type", "required", ...(isDescribed ? ["description"] : [])];
  return element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": `Fields of ${nameOf(event)} and their readers` },
    element("table", {},
      element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))),
      element("tbody", {}, ...event.fields.map((field) =>
        element("tr", {},
          element("th", { scope: "row" }, element("code", {}, field.path)),
          ...event.consumers.map((consumer) => cell(field.consumers[consumer])),
          element("td", {}, field.type),
          element("td", {}, field.required ? "yes" : "no"),
          isDescribed ? element("td", { class: "description" }, field.about) : null)))));
}

function eventCard(event) {
  const readers = event.consumers.length ? `read by ${event.consumers.join(", ")}` : "no recorded reader";
  const opened = element("details", { class: "card", id: idOf(event), "data-words": wordsOf(event) },
    element("summary", {}, element("b", {}, event.type), element("span", {}, `v${event.version} · ${counted(event.fields.length, "field")} · ${readers}`)),
    element("div", { class: "body" },
      ...(event.about ? prose(event.about) : []),
      element("p", { class: "note" }, [
        event.key ? `Key: ${event.key}.` : "No key.",
        event.consumers.length ? "" : "No consumer has recorded that it reads a field of this event.",
      ].filter(Boolean).join(" ")),
      fieldsTable(event),
      event.whole.length ? element("p", { class: "note" }, `Besides: ${event.whole.map(({ consumer, words }) => `${consumer} ${words}`).join("; ")}.`) : null,
      element("button", { type: "button", on: { click: () => propose(event) } }, `Propose a change of ${event.type}`)));
  opened.addEventListener("toggle", () => {
    if (opened.open) history.replaceState(null, "", `#${opened.id}`);
  });
  return opened;
}

// What the filter looks at.
function wordsOf(event) {
  const consumers = [...event.consumers, ...event.whole.map(({ consumer }) => consumer)];
  return [event.type, event.topic, ...event.publishers, ...event.fields.map(({ path }) => path), ...consumers].join(" ").toLowerCase();
}

function drawEvents() {
  $("topics-list").replaceChildren(...topics.map((topic) => {
    const writers = topic.publishers.length ? `Written by ${topic.publishers.join(", ")}.` : "Nobody has been seen writing here yet.";
    return element("section", { "aria-label": topic.name },
      element("h3", {}, topic.name),
      element("p", { class: "note" }, [topic.about && `${topic.about}.`, writers].filter(Boolean).join(" ")),
      ...events.filter((event) => event.topic === topic.name).map(eventCard));
  }));
}

function filter() {
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const section of $("topics-list").children) {
    let some = false;
    for (const card of section.querySelectorAll("details")) {
      const fits = words.every((word) => card.dataset.words.includes(word));
      card.hidden = !fits;
      some ||= fits;
      shown += fits;
    }
    section.hidden = !some;
  }
  const all = `${counted(events.length, "event")} on ${counted(topics.length, "topic")}`;
  if (!events.length) $("found").textContent = "There are no events.";
  else if (!words.length) $("found").textContent = `${all}.`;
  else if (shown) $("found").textContent = `${shown} of ${all}.`;
  else $("found").textContent = `No event fits "${$("filter").value.trim()}". Try a part of the name of an event, topic, field or consumer.`;
}

// Opens the event that the address names.
function follow() {
  const id = location.hash.slice(1);
  if (!id || id === "events") return;
  const card = events.some((event) => idOf(event) === id) && $(id);
  if (!card) {
    $("found").textContent = `There is no event ${id}. All events are listed below.`;
    return;
  }
  if (card.hidden) {
    $("filter").value = "";
    filter();
  }
  card.open = true;
  card.scrollIntoView();
  card.querySelector("summary").focus({ preventScroll: true });
}

// ------------------------------------------------------------------ the proposal
const chosen = () => events[$("p-event").selectedIndex];
const operation = () => OPERATIONS.find(([value]) => value === $("p-op").value);

function drawForm() {
  $("p-event").replaceChildren(...topics.map((topic) =>
    element("optgroup", { label: topic.name }, ...events.filter((event) => event.topic === topic.name)
      .map((event) => element("option", { value: idOf(event) }, nameOf(event))))));
  drawInputs();
}

function drawInputs() {
  const event = chosen();
  const [value, , needed] = operation();
  for (const part of document.querySelectorAll("#proposal [data-for]")) part.hidden = !needed.includes(part.dataset.for);
  document.querySelector("label[for=p-name]").textContent = value === "add" ? "Name" : "New name";
  const field = $("p-field").value;
  $("p-field").replaceChildren(...(event?.fields ?? []).map(({ path }) => element("option", { selected: path === field }, path)));
  if (value === "schema" && event) loadSchema(event);
}

async function loadSchema(event) {
  if ($("p-schema").dataset.of === idOf(event)) return; // what was typed stays
  $("p-schema").dataset.of = idOf(event);
  $("p-schema").value = "";
  try {
    const found = await ask(`api/contracts/${encodeURIComponent(event.type)}/v${event.version}`);
    if ($("p-schema").dataset.of === idOf(event)) $("p-schema").value = JSON.stringify(found.schema, null, 2);
  } catch (error) {
    $("p-schema").dataset.of = "";
    refuse(`The schema cannot be shown. ${error.message}`);
  }
}

function propose(event) {
  $("p-event").value = idOf(event);
  clear();
  drawInputs();
  $("propose").scrollIntoView({ block: "nearest" });
  $("p-op").focus();
}

function clear() {
  checked += 1;
  $("verdict").textContent = "";
  $("effects").replaceChildren();
  for (const input of document.querySelectorAll("#proposal [aria-invalid]")) input.removeAttribute("aria-invalid");
}

function refuse(words, input) {
  $("verdict").dataset.level = "error";
  $("verdict").textContent = words;
  if (!input) return;
  input.setAttribute("aria-invalid", "true");
  input.focus();
}

// The body of the question, or nothing when an input has to be corrected first.
function body() {
  const event = chosen();
  const [value, , needed] = operation();
  const name = $("p-name").value.trim();
  if (needed.includes("name") && !name) return refuse("Give the field a name.", $("p-name"));
  const question = { type: event.type, version: event.version };
  if (value === "schema") {
    try {
      return { ...question, schema: JSON.parse($("p-schema").value) };
    } catch (error) {
      return refuse(`This is no JSON: ${error.message}`, $("p-schema"));
    }
  }
  const change = { op: value, field: value === "add" ? name : $("p-field").value };
  if (value === "rename") change.to = name;
  if (needed.includes("type")) Object.assign(change, { type: $("p-type").value, nullable: $("p-null").checked });
  const written = $("p-default").value.trim();
  if (value === "add" && written) {
    try {
      change.default = JSON.parse(written);
    } catch {
      return refuse(`The default ${written} is no JSON. Write text in quotation marks, as in "USD".`, $("p-default"));
    }
  }
  return { ...question, changes: [change] };
}

async function check(event) {
  event.preventDefault();
  if (!events.length) return refuse("There is no event to change.");
  clear();
  const question = body();
  if (!question) return;
  const number = checked;
  try {
    const found = await ask("api/contracts/check", question);
    if (number === checked) showEffects(found);
  } catch (error) {
    if (number === checked) refuse(error.message);
  }
}

function showEffects({ breaking, verdict, effects }) {
  const [level, sign] = LEVELS[breaking];
  $("verdict").dataset.level = level;
  $("verdict").textContent = `${sign} ${verdict}`;
  $("effects").replaceChildren(...GROUPS.flatMap(([kind, title]) => {
    const own = effects.filter((effect) => effect.kind === kind);
    if (!own.length) return [];
    return [
      element("h3", {}, title),
      kind === "readers" ? element("p", { class: "note" }, READERS_NOTE) : "",
      element("ul", { "data-kind": kind }, ...own.map(({ field, words }) =>
        element("li", {}, field ? element("code", {}, field) : null, field ? ": " : null, words))),
    ];
  }));
}

$("filter").addEventListener("input", filter);
$("again").addEventListener("click", load);
$("p-event").addEventListener("change", () => { clear(); drawInputs(); });
$("p-op").addEventListener("change", () => { clear(); drawInputs(); });
$("proposal").addEventListener("submit", check);
addEventListener("hashchange", follow);
$("p-op").replaceChildren(...OPERATIONS.map(([value, words]) => element("option", { value }, words)));
drawInputs();
await load();
watchWaiting();
document.documentElement.dataset.ready = "true";
