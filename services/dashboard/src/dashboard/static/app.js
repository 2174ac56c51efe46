// Wires stream, state, map and panels.

import { openTopics, showCluster } from "./cluster.js";
import { showFaults } from "./faults.js";
import { showForecast } from "./forecast.js";
import { showWaiting } from "./letters-link.js";
import { List } from "./list.js";
import { CityMap } from "./map.js";
import * as panels from "./panels.js";
import { State } from "./state.js";
import { useTheme } from "./theme.js";

const $ = (id) => document.getElementById(id);
const state = new State();

useTheme($("theme"), () => {
  map.restyle();
  render(true);
});

// ------------------------------------------------------------------ map
const tip = $("tip");
function hover(hit, at) {
  const parts = hit && panels.tipFor(state, hit);
  tip.hidden = !parts;
  $("map").style.cursor = hit?.ride ? "pointer" : "";
  if (!parts) return;
  tip.replaceChildren(...parts);
  const { clientWidth, clientHeight } = $("map");
  tip.style.left = `${Math.min(at[0] + 14, clientWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${Math.min(at[1] + 14, clientHeight - tip.offsetHeight - 8)}px`;
}
const map = new CityMap($("map"), state, {
  onHover: hover,
  onPick: (hit, at) => (hit?.ride ? openRide(hit.ride) : hover(hit, at)),
});
panels.useColours((value) => map.colour(value));
$("zoom").addEventListener("click", (event) => {
  const act = { in: () => map.zoom(1.5), out: () => map.zoom(1 / 1.5), all: () => map.showAll() }[event.target.dataset.zoom];
  act?.();
});
// By keys: cells hottest first, rides newest first; what is selected is drawn, shown beside it and said.
function say(parts) {
  $("said").textContent = "";
  $("said").textContent = parts.map((part) => part.textContent ?? part).filter(Boolean).join(" ");
}
function select(hit) {
  const at = map.select(hit);
  if (!at) return hover(null);
  hover(hit, at);
  const parts = panels.tipFor(state, hit);
  if (parts) say([hit.cell ? panels.cellName(state, hit.cell) : "", ...parts.slice(hit.cell ? 2 : 0)]);
}
function step(all, key, by, none) {
  if (!all.length) return say([none]);
  const at = map.selected ? all.indexOf(map.selected[key]) : -1;
  const next = at === -1 ? (by > 0 ? 0 : all.length - 1) : (at + by + all.length) % all.length;
  select({ [key]: all[next] });
}
const stepCells = (by) => step(state.surging(state.now()).map(([cell]) => cell), "cell", by, "no cell is above 1.0");
const stepRides = (by) => step([...state.rides.keys()].reverse(), "ride", by, "no ride is under way");
const list = new List(state, panels, (hit) => {
  if (hit.ride) return openRide(hit.ride);
  $("map").focus();
  select(hit);
});
$("list-open").addEventListener("click", () => list.open());
$("map").addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const act = {
    "]": () => stepCells(1), "[": () => stepCells(-1), r: () => stepRides(1), R: () => stepRides(-1), l: () => list.open(),
    Enter: () => map.selected && (map.selected.ride ? openRide(map.selected.ride) : select(map.selected)),
  }[event.key];
  if (act) {
    event.preventDefault();
    act();
  } else if (event.key === "Escape" && map.selected) {
    event.stopPropagation();
    select(null);
  }
});
$("map").addEventListener("blur", () => hover(null));

// ------------------------------------------------------------------ one ride
let opened = null;
let backTo = null;
let refresh = 0;

async function loadRide(id) {
  const response = await fetch(`api/rides/${encodeURIComponent(id)}`);
  if (opened !== id) return;
  const found = await response.json();
  if (opened !== id) return;
  if (response.ok) panels.showTimeline(found, state);
  else {
    $("ride-title").textContent = `Ride ${id.slice(0, 8)}…`;
    $("ride-about").textContent = found.detail ?? "there is nothing about it";
    $("timeline").replaceChildren();
  }
}

// From 1100 px a column beside the others, so that nothing is covered; below, a modal dialog.
const drawer = $("ride");
const isWide = matchMedia("(min-width: 1100px)");
function showDrawer() {
  if (drawer.open) return;
  if (isWide.matches) drawer.show();
  else drawer.showModal();
}
isWide.addEventListener("change", () => {
  if (!drawer.open) return;
  drawer.close();
  showDrawer();
});

function openRide(id) {
  if (!opened) backTo = document.activeElement;
  opened = map.picked = id;
  showDrawer();
  history.replaceState(null, "", `#ride=${encodeURIComponent(id)}`);
  clearInterval(refresh);
  const load = () => loadRide(id).catch(() => { $("ride-about").textContent = "The server does not answer; trying again."; });
  load().then(() => $("ride-title").focus({ preventScroll: true }));
  refresh = setInterval(load, 2000);
}

function closeRide() {
  if (!opened) return;
  const id = opened;
  opened = map.picked = null;
  clearInterval(refresh);
  if (drawer.open) drawer.close();
  history.replaceState(null, "", location.pathname + location.search);
  // The list of rides may have been made anew meanwhile.
  if (!backTo?.isConnected) backTo = document.querySelector(`#rides [data-ride="${CSS.escape(id)}"]`) ?? $("map");
  backTo.focus?.();
  backTo = null;
}
$("ride-close").addEventListener("click", closeRide);
drawer.addEventListener("close", () => { if (!drawer.open) closeRide(); });
addEventListener("keydown", (event) => { if (event.key === "Escape" && opened && !$("topics").open && !$("list").open) closeRide(); });
drawer.addEventListener("click", async (event) => {
  const button = event.target.closest("#ride-copy, button.copy");
  const text = button && panels.textOf(button.closest("li")?.dataset.place);
  if (!text) return;
  const isDone = await panels.copy(text, drawer);
  const words = button.textContent;
  button.textContent = isDone ? "copied" : "not possible here";
  $("said").textContent = isDone ? "copied" : "this browser refuses to copy";
  setTimeout(() => { button.textContent = words; $("said").textContent = ""; }, 1500);
});

// ------------------------------------------------------------------ leaders and replicas
$("topics-open").addEventListener("click", () => openTopics(state));
$("topics-close").addEventListener("click", () => $("topics").close());

// ------------------------------------------------------------------ stream
const wholeEvents = ["whole", "delta"];
let source;
function connect() {
  source = new EventSource("api/stream");
  source.onopen = () => { state.link = "open"; };
  source.onerror = () => {
    state.link = "lost";
    // The browser tries again by itself, unless the server refused.
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 2000);
  };
  for (const name of wholeEvents)
    source.addEventListener(name, (event) => {
      state.link = "open";
      state.take(JSON.parse(event.data), name === "whole");
      if (name === "whole" || map.known !== state.shapes.size) {
        map.known = state.shapes.size;
        map.setShapes();
      }
    });
}

async function loadCells() {
  for (;;) {
    try {
      const response = await fetch("api/cells");
      if (response.ok) {
        state.setShapes(await response.json());
        map.setShapes();
        return;
      }
    } catch { /* the server is away: the banner says so */ }
    await new Promise((later) => setTimeout(later, 1500));
  }
}

async function loadCoast() {
  try {
    const response = await fetch("city.svg");
    if (response.ok) map.setCoast(await response.text());
  } catch { /* without the coast the cells are the land */ }
}

// ------------------------------------------------------------------ render
let slowShown = null;
function render(force = false) {
  panels.showStatus(state);
  panels.showClock(state);
  if (!state.slow) return;
  panels.showRides(state, openRide);
  showFaults(state);
  if (state.slow === slowShown && !force) return;
  slowShown = state.slow;
  panels.showFigures(state);
  panels.showLedger(state);
  showCluster(state);
  panels.showGroups(state);
  panels.showFlow(state);
  panels.showRecommendations(state);
  panels.showLake(state);
  showForecast(state);
  showWaiting(state.slow.letters);
}

loadCoast();
loadCells();
connect();
setInterval(render, 250);
const linked = new URLSearchParams(location.hash.slice(1)).get("ride");
if (linked) openRide(linked);
document.documentElement.dataset.ready = "true";
globalThis.hailbus = { state, map }; // for tests and the curious
