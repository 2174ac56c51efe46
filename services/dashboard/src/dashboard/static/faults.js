// The tray of faults: a button each, what is expected, and a stopwatch that ends in what came of it.
// The demo's launcher causes them and judges; this page only asks and shows.

import { element } from "./format.js";

const $ = (id) => document.getElementById(id);
const EVERY_MS = 3000;
const EVERY_RUNNING_MS = 500;
const SIGNS = { recovered: "✓", failed: "✗" };

let faults = []; // as the server told them, each with the moment at which it did
let closed = null;
let isOffered = false;
let timer = 0;
let asked = 0;
let refusal = ""; // of the last click; it stays until a fault begins or ends

const put = (place, text) => { if (place.textContent !== text) place.textContent = text; };
const stopwatch = (s) => `${s.toFixed(1)} s`;

function take(found) {
  const at = performance.now();
  const before = new Map(faults.map((fault) => [fault.id, fault.state]));
  faults = found.faults.map((fault) => ({ ...fault, at }));
  closed = found.closed;
  takeLoad(found.load);
  for (const fault of faults)
    if (before.has(fault.id) && before.get(fault.id) !== fault.state) {
      refusal = "";
      say(`${fault.label}: ${outcomeOf(fault)}`);
    }
}

// Seconds change all the time: a screen reader hears of a fault when it begins and when it ends.
function say(text) {
  put($("fault-said"), text);
}

function refuse(text) {
  refusal = text;
  put($("fault-note"), text);
  say(text);
}

function outcomeOf(fault) {
  if (fault.state === "running") return "running";
  if (fault.state === "recovered") return `recovered after ${stopwatch(fault.took_s)} ${SIGNS.recovered}`;
  if (fault.state === "failed") return `not recovered after ${stopwatch(fault.took_s)} ${SIGNS.failed} ${fault.words}`;
  return "";
}

// Beside its button a fault has little room: the sign says how it ended, and `fault-said` says it in words.
function shownOutcome(fault) {
  if (fault.state === "recovered") return `${SIGNS.recovered} after ${stopwatch(fault.took_s)}`;
  if (fault.state === "failed") return `${SIGNS.failed} after ${stopwatch(fault.took_s)}: ${fault.words}`;
  if (fault.state !== "running") return "";
  const s = fault.running_s + (performance.now() - fault.at) / 1000;
  return [stopwatch(s), fault.words].filter(Boolean).join(" · ");
}

// An answer that was overtaken by a later question is dropped.
async function ask(path, options) {
  const number = ++asked;
  try {
    const response = await fetch(path, options);
    const found = await response.json();
    if (number !== asked) return;
    if (response.ok) {
      take(found);
      put($("fault-note"), refusal || (closed ?? ""));
    } else if (options) {
      refuse(found.detail ?? "the server refuses");
    } else {
      put($("fault-note"), found.detail ?? "the server refuses");
    }
  } catch {
    if (number === asked) put($("fault-note"), "The server does not answer; trying again.");
  } finally {
    if (number === asked) {
      clearTimeout(timer);
      timer = setTimeout(() => ask("api/faults"), faults.some(isRunning) ? EVERY_RUNNING_MS : EVERY_MS);
    }
  }
}
const isRunning = (fault) => fault.state === "running";

function begin(id) {
  const running = faults.find(isRunning);
  const refused = closed ?? (running && `${running.label} still runs: wait until the city has recovered`);
  if (refused) return refuse(refused);
  ask(`api/faults/${encodeURIComponent(id)}`, { method: "POST" });
}

// What the launcher has is shown, unless the slider is just being moved.
let isSliding = false;
function takeLoad({ factor, least, most }) {
  const slider = $("load-factor");
  if (isSliding) return;
  slider.min = least;
  slider.max = most;
  slider.value = factor;
  put($("load-shown"), `${factor}×`);
}
$("load-factor").addEventListener("input", (event) => {
  isSliding = true;
  put($("load-shown"), `${event.target.value}×`);
});
$("load-factor").addEventListener("change", (event) => {
  isSliding = false;
  ask(`api/load/${event.target.value}`, { method: "POST" });
});

function item(fault) {
  const expected = `expected-of-${fault.id}`;
  return element("li", { "data-fault": fault.id },
    element("button", { type: "button", "aria-describedby": expected, on: { click: () => begin(fault.id) } }, fault.label),
    element("p", { id: expected, class: "expected" }, fault.expected),
    element("p", { class: "outcome" }));
}

export function showFaults(state) {
  if (state.hasFaults !== isOffered) {
    isOffered = state.hasFaults;
    $("faults").hidden = !isOffered;
    clearTimeout(timer);
    if (isOffered) ask("api/faults");
  }
  if (!isOffered) return;
  const list = $("fault-list");
  const ids = faults.map((fault) => fault.id).join(" ");
  if (list.dataset.ids !== ids) {
    list.dataset.ids = ids;
    list.replaceChildren(...faults.map(item));
  }
  const isBusy = closed !== null || faults.some(isRunning);
  faults.forEach((fault, i) => {
    const [button, , outcome] = list.children[i].children;
    list.children[i].dataset.state = fault.state;
    // It keeps the focus, which a disabled button would lose.
    button.setAttribute("aria-disabled", String(isBusy));
    put(outcome, shownOutcome(fault));
  });
}
