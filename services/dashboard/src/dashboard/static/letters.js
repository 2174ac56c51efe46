// The page of dead letters: what each group set aside and why, the value as it would be replayed, and its replay.
// The server reads, judges and publishes; this page asks, edits, compares and shows.

import { ask } from "./ask.js";
import { diff, pretty } from "./diff.js";
import { element } from "./format.js";
import { useTheme } from "./theme.js";

const $ = (id) => document.getElementById(id);
const EVERY_MS = 2000;
const CHECK_AFTER_MS = 400;
const AROUND = 3; // equal lines that are shown beside a change
const STATUS = { waiting: "waiting", edited: "edited, waiting", replayed: "replayed", dropped: "dropped" };
const clock = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium", timeZone: "UTC" });
const brief = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZone: "UTC" });
const isNarrow = matchMedia("(max-width: 899px)");
const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
const when = (iso, format = clock) => (Number.isNaN(Date.parse(iso)) ? iso : `${format.format(Date.parse(iso))} UTC`);
const placeOf = ({ topic, partition, offset }) => `${topic}-${partition}@${offset}`;
const addressOf = (queue, place) => `#${encodeURIComponent(queue)}/${place}`;
const pathOf = ({ queue, place }) => `api/letters/${encodeURIComponent(queue)}/${encodeURIComponent(place)}`;

let queues = [];
let mode = "read";
let listed = ""; // the list that is shown, as text
let chosen = null; // the queue and place of the letter that is wanted
let letter = null; // the letter that is shown
let begun = ""; // the text that the editor began with
let checked = 0; // number of the last check; answers to earlier ones are dropped
let isBusy = false; // whether something is being done with the letter
let waitingCheck = 0;

useTheme($("theme"));

// ------------------------------------------------------------------ the list
async function look() {
  let found;
  try {
    found = await ask("api/letters");
  } catch (error) {
    $("found").dataset.level = "error";
    sayFound(`The letters cannot be shown. ${error.message}`);
    $("again").hidden = false;
    return;
  }
  $("again").hidden = true;
  const text = JSON.stringify(found);
  if (text === listed) return;
  listed = text;
  ({ queues, mode } = found);
  $("read-only").hidden = mode === "replay";
  $("found").dataset.level = found.error ? "error" : "";
  sayFound(foundWords(found));
  drawList();
  await followOthers();
}

function sayFound(words) {
  if ($("found").textContent !== words) $("found").textContent = words;
}

function foundWords({ is_read: isRead, error, waiting }) {
  if (error) return `The cluster does not answer, so the list may be old. ${error}`;
  if (!isRead) return "The dead letter topics are being read.";
  const all = queues.reduce((sum, queue) => sum + queue.all, 0);
  if (!all) return "There are no dead letters: no group has set a record aside.";
  if (!waiting) return `No letter waits: ${counted(all, "letter")} ${all === 1 ? "was" : "were"} dealt with.`;
  return `${waiting} of ${counted(all, "letter")} ${waiting === 1 ? "waits" : "wait"}.`;
}

function drawList() {
  const isFocused = $("queue-list").contains(document.activeElement) && document.activeElement.getAttribute("href");
  const open = new Set([...$("queue-list").querySelectorAll("details[open]")].map((found) => found.dataset.queue));
  const full = queues.filter((queue) => queue.all).sort((one, other) => Boolean(other.waiting) - Boolean(one.waiting));
  const empty = queues.filter((queue) => !queue.all);
  $("queue-list").replaceChildren(...full.map((queue) => queueSection(queue, open)));
  if (full.length && empty.length)
    $("queue-list").append(element("p", { class: "note" }, `${counted(empty.length, "other queue")} without a letter.`));
  if (isFocused) $("queue-list").querySelector(`a[href="${CSS.escape(isFocused)}"]`)?.focus({ preventScroll: true });
  markChosen();
}

function queueSection(queue, open) {
  const done = queue.letters.filter(({ waits }) => !waits);
  const waiting = queue.letters.filter(({ waits }) => waits);
  const isChosenDone = done.some(({ place }) => chosen?.queue === queue.name && chosen.place === place);
  return element("section", { "aria-label": queue.name },
    element("h3", {}, queue.topic ? `${queue.group}, from ${queue.topic}` : queue.name),
    element("ul", {}, ...waiting.map((one) => entry(queue, one))),
    done.length ? element("details", { "data-queue": queue.name, open: open.has(queue.name) || isChosenDone || !waiting.length },
      element("summary", {}, `${done.length} dealt with`),
      element("ul", {}, ...done.map((one) => entry(queue, one)))) : null,
    queue.more ? element("p", { class: "note" }, `${queue.more} older ones are not shown; see `, element("code", {}, "hailbus dlq list"), ".") : null);
}

const entry = (queue, one) =>
  element("li", {}, element("a", { href: addressOf(queue.name, one.place) },
    element("b", {}, one.type ?? "unknown event"),
    element("span", { class: "status", "data-status": one.status }, STATUS[one.status] ?? one.status),
    element("small", {}, [placeOf(one.origin), one.failed_at && when(one.failed_at, brief)].filter(Boolean).join(" · ")),
    element("small", {}, one.error.message)));

function markChosen() {
  for (const link of $("queue-list").querySelectorAll("a")) {
    const isChosen = chosen && link.getAttribute("href") === addressOf(chosen.queue, chosen.place);
    if (isChosen) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
}

// What somebody else did with the letter that is shown; or the letter of the address, which the server had not read yet.
async function followOthers() {
  if (!chosen || isBusy) return;
  const now = queues.find(({ name }) => name === chosen.queue)?.letters.find(({ place }) => place === chosen.place);
  if (!now) return;
  if (!letter) return load(true);
  if (letter.queue !== chosen.queue || letter.place !== chosen.place || (now.status === letter.status && now.history.length === letter.history.length)) return;
  await load(false);
  if (letter) say("", `Meanwhile this letter was ${letter.status}${letter.waits ? "" : ", so nothing more can be done with it"}.`);
}

// ------------------------------------------------------------------ the letter
function wantedBy(hash) {
  try {
    return hash.slice(1).split("/").map(decodeURIComponent);
  } catch {
    return []; // no address of ours
  }
}

function follow() {
  const [queue, place] = wantedBy(location.hash);
  if (!place) return;
  if (chosen?.queue === queue && chosen.place === place && letter) return;
  chosen = { queue, place };
  markChosen();
  load(true);
}

async function load(isNew) {
  const wanted = chosen;
  let found;
  try {
    found = await ask(pathOf(wanted));
  } catch (error) {
    if (wanted !== chosen) return;
    if (isNew) nothing(`This letter cannot be shown: ${error.message}`);
    return;
  }
  if (wanted !== chosen) return;
  if (isNew) say("", "");
  show(found, isNew);
  if (!isNew) return;
  $("title").focus();
  if (isNarrow.matches) $("letter").scrollIntoView();
}

function nothing(words) {
  letter = null;
  $("title").textContent = "No letter is shown";
  $("about").textContent = "Choose a letter of the list.";
  $("body").hidden = $("more").hidden = true;
  say("error", words);
}

function say(level, words) {
  $("result").dataset.level = level;
  $("result").textContent = words;
}

// Keeps what is being edited, unless the letter is another one or can no longer be replayed.
function show(found, isNew) {
  const isSame = !isNew && letter?.queue === found.queue && letter.place === found.place;
  const isEdited = isSame && found.waits && $("value").value !== begun;
  letter = found;
  begun = pretty(found.value ?? "");
  if (!isEdited) $("value").value = begun;
  const name = found.type ?? "A record of no known event";
  $("title").replaceChildren(name, element("span", { class: "status", "data-status": found.status }, STATUS[found.status] ?? found.status));
  $("about").textContent = aboutWords(found);
  $("facts").replaceChildren(...facts(found).flatMap(([term, words]) => [element("dt", {}, term), element("dd", { class: term === "Error" ? "wide" : null }, words)]));
  const canAct = found.waits && mode === "replay";
  $("value").readOnly = !canAct;
  $("acts").hidden = !canAct;
  $("sure").hidden = true;
  $("value-note").hidden = !found.value_note;
  $("value-note").textContent = found.value_note;
  $("use-twin").hidden = !canAct || !found.twin || pretty(found.twin.value) === begun;
  if (found.twin) $("use-twin").textContent = `Use the value of the record at ${placeOf(found.twin)}`;
  $("problems-title").hidden = $("problems").hidden = !found.waits;
  if (isEdited) check();
  else showProblems(found.problems);
  drawHistory(found.history);
  $("headers").replaceChildren(element("table", {}, element("tbody", {}, ...found.headers.map(([header, value]) =>
    element("tr", {}, element("th", { scope: "row" }, header), element("td", {}, value))))));
  $("body").hidden = $("more").hidden = false;
  fitRows();
  drawDiff();
}

function aboutWords({ group, by, attempts, origin }) {
  const who = group ?? "A consumer group";
  const where = `the record at ${placeOf(origin)}`;
  const after = " The group then went on with the records after it.";
  if (attempts === 0) return `${who} could not read ${where}, so its handler was not called.${after}`;
  if (attempts) return `${who} read ${where}, and its handler ${by ? `${by} ` : ""}failed ${attempts === 1 ? "once" : `${attempts} times`}.${after}`;
  return `${who} set ${where} aside.${after}`;
}

function facts({ origin, error, failed_at: failedAt, attempts, key, id, queue, place }) {
  return [
    ["Error", error.message || "no message"],
    ["Exception", error.class],
    ["When", failedAt && when(failedAt)],
    ["Attempts", attempts === null ? null : String(attempts)],
    ["Record", placeOf(origin)],
    ["Key", key],
    ["Event id", id],
    ["Letter", `${place} of ${queue}`],
  ].filter(([, words]) => words);
}

function drawHistory(history) {
  $("history").replaceChildren(...(history.length ? [
    element("h3", {}, "What was done with the letter"),
    element("ol", {}, ...history.map(({ action, at, by, to, value }) =>
      element("li", {}, `${when(at)}: ${action} by ${by}${to ? ` to ${to}` : ""}${value ? ", with an edited value" : ""}.`))),
  ] : []));
}

function showProblems(problems) {
  $("value").setAttribute("aria-invalid", String(problems.length > 0));
  if (problems.length)
    return $("problems").replaceChildren(element("ul", {}, ...problems.map(({ field, words }) =>
      element("li", {}, field ? element("code", {}, field) : null, field ? ": " : null, words))));
  const words = letter.described ? `✓ The value is what ${letter.type} asks for.` : "No known event class describes this record, so its value cannot be checked. It can be replayed as it is.";
  $("problems").replaceChildren(element("p", { class: letter.described ? "fine" : "note" }, words));
}

// ------------------------------------------------------------------ editing
const isChanged = () => $("value").value !== begun;

function edited() {
  say("", "");
  drawDiff();
  clearTimeout(waitingCheck);
  checked++;
  waitingCheck = setTimeout(check, CHECK_AFTER_MS);
}

async function check() {
  const number = ++checked;
  if (!isChanged()) return showProblems(letter.problems);
  try {
    const { problems } = await ask(`${pathOf(letter)}/check`, { value: $("value").value });
    if (number === checked) showProblems(problems);
  } catch (error) {
    if (number === checked) say("error", `The value was not checked: ${error.message}`);
  }
}

function fitRows() {
  $("value").rows = Math.min(26, Math.max(6, $("value").value.split("\n").length + 1));
}

function setValue(text) {
  $("value").value = text;
  fitRows();
  clearTimeout(waitingCheck);
  say("", "");
  drawDiff();
  check();
  $("value").focus();
  $("value").setSelectionRange(0, 0);
  $("value").scrollTop = 0;
}

function linesOf(original, text) {
  if (original !== null) return diff(pretty(original), pretty(text));
  return text ? pretty(text).split("\n").map((line) => ["+", line]) : [];
}

function drawDiff() {
  $("undo").hidden = $("value").readOnly || !isChanged();
  const lines = linesOf(letter.original, $("value").value);
  const isNear = (at) => lines.slice(Math.max(0, at - AROUND), at + AROUND + 1).some(([sign]) => sign);
  const hasChanges = lines.some(([sign]) => sign);
  const shown = [];
  let leftOut = 0;
  const close = () => {
    if (leftOut) shown.push(element("span", { class: "left-out" }, element("i", {}, "⋮"), counted(leftOut, "equal line")));
    leftOut = 0;
  };
  if (hasChanges) {
    lines.forEach(([sign, line], at) => {
      if (!isNear(at)) return leftOut++;
      close();
      shown.push(element({ "−": "del", "+": "ins" }[sign] ?? "span", {}, element("i", {}, sign), line));
    });
    close();
  }
  $("no-diff").hidden = hasChanges;
  $("no-diff").textContent = "None: this is the record's own value.";
  $("diff").hidden = !hasChanges;
  $("diff").replaceChildren(element("div", {}, ...shown));
}

// ------------------------------------------------------------------ acting
async function act(action, body, words) {
  if (isBusy) return;
  isBusy = true;
  clearTimeout(waitingCheck);
  checked++;
  const acted = letter;
  say("", `The letter is being ${words}.`);
  try {
    const found = await ask(`${pathOf(acted)}/${action}`, body);
    if (letter !== acted) return;
    show(found, false);
    const { to } = found.history.at(-1) ?? {};
    say("done", `✓ The letter was ${words}${to ? `: its record is now at ${to}` : ""}.`);
    $("result").focus();
    look();
  } catch (error) {
    if (letter !== acted) return;
    if (error.found?.problems) showProblems(error.found.problems);
    say("error", `✗ The letter was not ${words}: ${error.message}`);
    if (error.found?.status === 409) load(false);
  } finally {
    isBusy = false;
  }
}

function askDrop(isAsking) {
  $("sure").hidden = !isAsking;
  $("acts").hidden = isAsking;
  $(isAsking ? "keep-it" : "drop").focus();
}

$("value").addEventListener("input", edited);
$("undo").addEventListener("click", () => setValue(begun));
$("use-twin").addEventListener("click", () => setValue(pretty(letter.twin.value)));
$("replay").addEventListener("click", () => act("replay", isChanged() ? { value: $("value").value } : {}, "replayed"));
$("drop").addEventListener("click", () => askDrop(true));
$("keep-it").addEventListener("click", () => askDrop(false));
$("sure").addEventListener("keydown", (event) => { if (event.key === "Escape") askDrop(false); });
$("drop-it").addEventListener("click", () => act("drop", {}, "dropped"));
$("again").addEventListener("click", look);
addEventListener("hashchange", follow);
setInterval(() => { if (!document.hidden) look(); }, EVERY_MS);
await look();
follow();
document.documentElement.dataset.ready = "true";
