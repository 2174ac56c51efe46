// Everything beside the map.

import { showHealth } from "./health.js";
import * as sparks from "./spark.js";
import { svg } from "./svg.js";
import { after, count, element, eventTime, hour, multiplier, percent, rate, seconds, short, speed } from "./format.js";

const $ = (id) => document.getElementById(id);
const HOT = 6;
const RIDES = 6;
const LATE_S = 5;
const VERY_LATE_S = 60;
const STALE_S = 20;
const CLUSTER_FRESH_S = 5;
const OUTSIDE_DEGREES = 0.0062; // from the middle of a cell to beyond its corners, in degrees of latitude

const put = (id, text) => {
  const place = $(id);
  if (place.textContent !== text) place.textContent = text;
};

export function nameOf(state, cell) {
  return state.shapes.get(cell)?.name ?? "a place outside the city";
}

export function cellName(state, cell) {
  const shape = state.shapes.get(cell);
  return shape?.number ? `${shape.name}, cell ${shape.number[0]}` : nameOf(state, cell);
}

export function showStatus(state) {
  showHealth(state);
  const [broker, detail, since] = state.broker;
  // Any broker describes the cluster; the lag needs an answer of every leader.
  const partly = broker === "down" && state.cluster && (state.slow?.cluster_age_s ?? Infinity) < CLUSTER_FRESH_S;
  const banner = $("banner");
  const message =
    state.link !== "open" && state.link !== "connecting" ? "The dashboard's server does not answer. What you see is the last known state; the page comes back by itself."
    : partly ? `Some partitions have not answered since ${new Date(since).toLocaleTimeString()}: ${detail || "no reason given"}. Lag and rides may be older than they look.`
    : broker === "down" ? `The broker has not answered since ${new Date(since).toLocaleTimeString()}: ${detail || "no reason given"}. What you see is the last known state; it goes on when the broker is back.`
    : "";
  banner.hidden = !message;
  if (banner.textContent !== message) banner.textContent = message;
}

export function showClock(state) {
  put("clock", eventTime(state.now()));
  put("speed", state.clock.last ? speed(state.clock.rate) : "");
}

export function showFigures(state) {
  const { slow } = state;
  if (!slow) return;
  const now = state.now();
  const surging = state.surging(now);
  const events = slow.flow.reduce((sum, [, , perSecond]) => sum + perSecond, 0);
  put("f-flight", count(slow.ledger.in_flight));
  put("f-events", rate(events));
  put("f-drivers", slow.drivers[0] || slow.ledger.requested ? `${short(slow.drivers[1])} / ${short(slow.drivers[0])}` : "—");
  put("f-surge", surging.length ? `${surging.length} · ${multiplier(surging[0][1])}` : "0");
  const perHour = ridesPerHour(state);
  put("f-rides", perHour === null ? "—" : short(perHour));
  sparks.noteMarks(state);
  const figures = { "f-flight": slow.ledger.in_flight, "f-events": events, "f-drivers": slow.drivers[1], "f-surge": surging.length, "f-rides": perHour ?? 0 };
  for (const [id, value] of Object.entries(figures)) sparks.show(id, value);
  showHottest(state, surging);
  showEmpty(state);
}

// Requests per hour of event time, over what was seen lately.
function ridesPerHour(state) {
  const { requested } = state.slow.ledger;
  const marks = state.completedAt;
  const last = marks.at(-1);
  if (!last || state.clock.last - last[0] > 5000) marks.push([state.clock.last, requested]);
  while (marks.length > 2 && marks.at(-1)[0] - marks[0][0] > 30 * 60000) marks.shift();
  const [first, newest] = [marks[0], marks.at(-1)];
  const hours = (newest[0] - first[0]) / 3600000;
  return hours > 0.005 ? Math.round((newest[1] - first[1]) / hours) : null;
}

function showEmpty(state) {
  const empty = $("empty");
  const nothing = state.slow.ledger.requested === 0 && state.cells.size === 0;
  const message =
    !nothing ? ""
    : state.broker[0] === "up" ? "The city sleeps: no ride has been requested yet. Start some, and they move here."
    : "Nothing to show before the broker answers.";
  empty.hidden = !message;
  if (empty.textContent !== message) empty.textContent = message;
}

// What the demo's auditor says. Its lines are the verdict: this page has no opinion of its own.
function verdictOf(state) {
  const { full, slow } = state;
  if (!full?.expected) return ["none", "no audit runs"];
  const { content } = full;
  if (!content) return ["none", full.error ?? "no audit yet"];
  const lines = content.lines ?? [];
  const soFar = Boolean(content.so_far);
  const has = (verdict) => lines.filter((line) => line.verdict === verdict).length;
  if (has("disagrees") || (content.balanced === false && !soFar)) return ["false", soFar ? "✗ not balanced so far" : "✗ not balanced"];
  // Accounts that agree are no reason for green while a group is far behind.
  const late = (slow.groups ?? []).filter(({ seconds: behind }) => behind > LATE_S).sort((one, other) => other.seconds - one.seconds)[0];
  const agreed = (words) => (late ? ["late", `${words}, ${late.group} ${seconds(late.seconds)} behind`] : ["true", words]);
  if (!soFar) return content.balanced ? agreed("✓ balanced") : ["none", "no audit yet"];
  const age = Math.max(content.audited_s_ago ?? 0, slow.ledger_age_s ?? 0);
  if (!lines.length) return ["none", "no audit yet"];
  if (age > STALE_S) return ["none", `no audit for ${seconds(age)}`];
  const unchecked = has("not_checked");
  return unchecked ? ["none", `${unchecked} not checked so far`] : agreed("✓ agrees so far");
}

export function showLedger(state) {
  const { slow, full } = state;
  if (!slow) return;
  const { ledger } = slow;
  for (const [id, name] of [["l-requested", "requested"], ["l-completed", "completed"], ["l-cancelled", "cancelled"], ["l-unmatched", "unmatched"], ["l-flight", "in_flight"]]) put(id, count(ledger[name]));
  const [ok, words] = verdictOf(state);
  $("verdict").dataset.ok = ok;
  put("verdict", words);
  const notes = [];
  if (full?.content?.sabotage) notes.push(`sabotage: ${full.content.sabotage.sentence ?? full.content.sabotage.fault}`);
  if (ledger.unknown) notes.push(`${count(ledger.unknown)} rides began before the retained log`);
  if (ledger.repeated) notes.push(`${count(ledger.repeated)} repeated events recognised`);
  if (slow.unreadable) notes.push(`${count(slow.unreadable)} records not readable`);
  if (full?.expected && full.error) notes.push(`the demo's ledger is ${full.error}`);
  put("ledger-note", notes.join(" · "));
  showLines(full?.content);
}

const MARKS = { agrees: "✓", disagrees: "✗", not_checked: "?", shown: "·" };
const SAYS = { agrees: "agrees", disagrees: "disagrees", not_checked: "not checked", shown: "shown" };
const FIRST = ["disagrees", "not_checked"];
const lineItems = new Map(); // id -> {item, verdict, text}: kept, so that what is open and focused stays so
let shownLines = null;

// One item per line: what disagrees first, and open when it begins to disagree.
function showLines(content) {
  if (content === shownLines) return;
  shownLines = content;
  const rank = ({ verdict }) => (FIRST.includes(verdict) ? FIRST.indexOf(verdict) : FIRST.length);
  const lines = [...(content?.lines ?? [])].sort((a, b) => rank(a) - rank(b)); // stable: otherwise as the demo has them
  const list = $("lines");
  list.hidden = !lines.length;
  const wanted = new Set(lines.map(({ id }) => id));
  for (const [id, { item }] of lineItems) if (!wanted.has(id)) { item.remove(); lineItems.delete(id); }
  const focused = list.contains(document.activeElement) ? document.activeElement : null;
  lines.forEach((line, at) => {
    let known = lineItems.get(line.id);
    if (!known) {
      const item = element("li", { "data-line": line.id }, element("details", {}, element("summary"), element("div", { class: "body" })));
      known = { item, verdict: null, text: null };
      lineItems.set(line.id, known);
    }
    fillLine(known, line);
    if (list.children[at] !== known.item) list.insertBefore(known.item, list.children[at] ?? null);
  });
  if (focused && document.activeElement !== focused) focused.focus({ preventScroll: true });
}

function fillLine(known, line) {
  const text = JSON.stringify(line);
  if (known.text === text) return;
  const details = known.item.firstChild;
  const [summary, body] = details.children;
  known.item.dataset.verdict = line.verdict;
  summary.replaceChildren(
    element("span", { class: "mark", "aria-hidden": "true" }, MARKS[line.verdict] ?? "·"),
    element("span", { class: "name" }, line.name),
    element("span", { class: "says" }, SAYS[line.verdict] ?? line.verdict),
  );
  body.replaceChildren(
    element("p", { class: "between" }, (line.between ?? []).join(" ↔ ")),
    element("p", {}, line.detail),
    ...(line.findings?.length ? [element("ul", { class: "found" }, ...line.findings.map(findingItem))] : []),
  );
  if (line.verdict === "disagrees" && known.verdict !== "disagrees") details.open = true;
  known.verdict = line.verdict;
  known.text = text;
}

function findingItem({ what, topic, partition, offset, id }) {
  const known = (value) => value !== null && value !== undefined;
  const place = `${topic ?? ""}${known(partition) ? `[${partition}]` : ""}${known(offset) ? ` @ ${offset}` : ""}`;
  const where = [place, id].filter(Boolean).join(" · ");
  return element("li", {}, what, where ? element("span", { class: "where" }, where) : null);
}

export function showGroups(state) {
  const groups = state.slow?.groups ?? [];
  if (!groups.length) return;
  $("groups").replaceChildren(
    ...groups.map((group) => {
      const worst = group.seconds > VERY_LATE_S ? "very-late" : group.seconds > LATE_S ? "late" : null;
      return element("tr", {},
        element("td", {}, group.group), element("td", {}, rate(group.per_second)),
        element("td", {}, count(group.records)), element("td", { class: worst }, seconds(group.seconds)), sparks.sparkCell(`lag ${group.group}`, group.seconds));
    }),
  );
}

// Three columns of boxes, and links as wide as the events that go through them.
export function showFlow(state) {
  const { slow } = state;
  if (!slow) return;
  const width = Math.max(300, $("graph").clientWidth || 376);
  const sources = [...new Set(slow.flow.map(([source]) => source || "?"))];
  const perTopic = new Map(slow.topics.map((topic) => [topic, 0]));
  const perSource = new Map(sources.map((source) => [source, 0]));
  for (const [source, topic, perSecond] of slow.flow) {
    perTopic.set(topic, (perTopic.get(topic) ?? 0) + perSecond);
    perSource.set(source || "?", perSource.get(source || "?") + perSecond);
  }
  const seen = new Set(slow.flow.map(([, topic]) => topic));
  const topics = slow.topics.filter((topic) => seen.has(topic));
  const rows = Math.max(topics.length, sources.length, slow.groups.length, 1);
  const [step, box, top] = [21, 17, 18];
  const height = top + rows * step;
  const columns = { source: [0, width * 0.23], topic: [width * 0.29, width * 0.42], group: [width * 0.77, width * 0.23] };
  const parts = [];
  const place = (index, total) => top + ((rows - total) * step) / 2 + index * step + box / 2;
  const y = {
    source: new Map(sources.map((name, i) => [name, place(i, sources.length)])),
    topic: new Map(topics.map((name, i) => [name, place(i, topics.length)])),
    group: new Map(slow.groups.map(({ group }, i) => [group, place(i, slow.groups.length)])),
  };
  const link = (x0, y0, x1, y1, perSecond) => {
    const bend = (x1 - x0) / 2;
    const thick = perSecond > 0.05 ? Math.min(7, 1 + Math.log10(1 + perSecond) * 1.8) : 1;
    parts.push(svg("path", { d: `M${x0} ${y0}C${x0 + bend} ${y0} ${x1 - bend} ${y1} ${x1} ${y1}`, "stroke-width": thick.toFixed(2), class: perSecond > 0.05 ? "busy" : "idle" }));
  };
  for (const [source, topic, perSecond] of slow.flow)
    if (y.topic.has(topic)) link(columns.source[1], y.source.get(source || "?"), columns.topic[0], y.topic.get(topic), perSecond);
  for (const group of slow.groups)
    for (const { topic } of group.topics)
      if (y.topic.has(topic)) link(columns.topic[0] + columns.topic[1], y.topic.get(topic), columns.group[0], y.group.get(group.group), perTopic.get(topic) ?? 0);
  const node = (column, name, text, perSecond) => {
    const [x, wide] = columns[column];
    const middle = y[column].get(name);
    parts.push(svg("rect", { x: x + 0.5, y: middle - box / 2, width: wide - 1, height: box, rx: 5 }));
    parts.push(svg("text", { x: x + 5, y: middle + 4 }, clip(text, wide - (perSecond === null ? 8 : 42))));
    if (perSecond !== null) parts.push(svg("text", { x: x + wide - 5, y: middle + 4, "text-anchor": "end", class: "rate" }, rate(perSecond)));
  };
  for (const name of sources) node("source", name, name.replace(/^\//, ""), null);
  for (const name of topics) node("topic", name, name.replace(/\.v1$/, ""), perTopic.get(name));
  for (const { group } of slow.groups) node("group", group, group, null);
  const head = (column, text) => parts.push(svg("text", { x: columns[column][0] + 1, y: 10, class: "column" }, text));
  head("source", "from"); head("topic", "topic"); head("group", "read by");
  if (!topics.length) parts.push(svg("text", { x: columns.topic[0], y: top + 13, class: "rate" }, "no event yet"));
  const graph = $("graph");
  graph.setAttribute("viewBox", `0 0 ${width} ${height}`);
  graph.setAttribute("height", height);
  graph.setAttribute("aria-label", topics.map((topic) => `${topic}: ${rate(perTopic.get(topic))} events per second`).join("; ") || "no event yet");
  graph.replaceChildren(...parts);
}

const measure = document.createElement("canvas").getContext("2d");
function clip(text, width) {
  measure.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  if (measure.measureText(text).width <= width) return text;
  let most = text.length - 1;
  while (most > 3 && measure.measureText(`${text.slice(0, most)}…`).width > width) most--;
  return `${text.slice(0, most)}…`;
}

function showHottest(state, surging) {
  const list = $("hottest");
  if (!surging.length) {
    list.replaceChildren(element("li", { class: "note" }, "no cell is above 1.0×"));
    return;
  }
  // Cells of one zone are one line here: the map has them all.
  const names = new Map();
  for (const [cell, value] of surging) {
    const name = nameOf(state, cell);
    if (!names.has(name)) names.set(name, [cell, value]);
  }
  list.replaceChildren(
    ...[...names].slice(0, HOT).map(([name, [cell, value]]) =>
      element("li", { title: cellName(state, cell) }, element("i", { color: showHottest.colour(value) }), element("span", { class: "name" }, name), element("b", {}, multiplier(value)))),
  );
}
showHottest.colour = () => "transparent";
export const useColours = (colour) => { showHottest.colour = colour; };

// The list holds still under a pointer or the keyboard, and long enough to aim at.
const RIDES_HOLD_MS = 4000;
let ridesShown = { ids: [], at: -Infinity };

export function showRides(state, open) {
  const list = $("rides");
  const held = list.matches(":hover") || list.contains(document.activeElement);
  const due = performance.now() - ridesShown.at > RIDES_HOLD_MS;
  if (state.latest.length && (!ridesShown.ids.length || (due && !held))) {
    ridesShown = { ids: state.latest.slice(0, RIDES), at: performance.now() };
    list.replaceChildren(
      ...ridesShown.ids.map((id) =>
        element("li", {}, element("button", { type: "button", "data-ride": id, on: { click: () => open(id) } },
          element("span", { class: "phase" }), element("span", { class: "way" })))),
    );
  } else if (!state.latest.length && state.slow?.ledger.requested) {
    list.querySelector(".note").textContent = "none since this page was opened";
  }
  for (const button of list.querySelectorAll("button")) {
    const { ride: id } = button.dataset;
    const ended = state.ends.get(id);
    const ride = state.rides.get(id) ?? ended?.ride;
    if (!ride) continue;
    const phase = ended?.phase ?? ride.phase;
    const words = { requested: "waiting", matched: "car coming", arrived: "car is there" }[phase] ?? phase;
    const [place, way] = button.children;
    place.dataset.phase = phase;
    if (place.textContent !== words) place.textContent = words;
    const route = `${zoneAt(state, ...ride.from)} → ${zoneAt(state, ride.toLat, ride.toLng)}`;
    if (way.textContent !== route) way.textContent = button.title = route;
  }
}

// The name of the nearest known cell; places are looked up once.
const placeNames = new Map();
export function zoneAt(state, lat, lng) {
  const key = `${lat},${lng}`;
  let name = placeNames.get(key);
  if (name !== undefined || !state.shapes.size) return name ?? "…";
  let best = Infinity;
  for (const { centre, name: candidate } of state.shapes.values()) {
    const away = (centre[0] - lat) ** 2 + ((centre[1] - lng) * 0.757) ** 2;
    if (away < best) [best, name] = [away, candidate];
  }
  // A place that is in no cell of the city is not in the nearest one either.
  if (best > OUTSIDE_DEGREES ** 2) name = `near ${name}`;
  if (placeNames.size > 5000) placeNames.clear();
  placeNames.set(key, name ?? "?");
  return name ?? "?";
}

export function showRecommendations(state) {
  const found = state.slow?.recommendations;
  if (!found?.served) return;
  put("rec-figures", `${count(found.served)} served · ${percent(found.chosen, found.served)} chosen`);
  $("rec-figures").title = found.chosen ? `${percent(found.chosen_first, found.chosen)} of those chosen were ranked first` : "";
  $("served").replaceChildren(
    ...found.recent.slice(0, 3).map((item) =>
      element("li", { title: item.rider }, element("span", { class: "to" }, `${item.from} → ${item.options.map((option) => option.name).join(", ") || "no destination"}`),
        element("span", { class: "why" }, item.reason))),
  );
}

export function showLake(state) {
  const lake = state.slow?.lake;
  if (!lake) return;
  const rows = $("lake-rows");
  if (!lake.progress) {
    put("lake-state", lake.expected ? (lake.error ?? "waiting") : "");
    rows.dataset.shown = "";
    rows.replaceChildren(element("p", { class: "note" }, lake.expected ? "the lake sink has not written its progress yet" : "no lake is connected to this page"));
    return;
  }
  const { progress } = lake;
  put("lake-state", `${progress.state ?? ""}${progress.lag_records ? ` · ${short(progress.lag_records)} to land` : ""}`);
  // Gold has the fewest rows and matters most: it comes first.
  const layer = (name) => ["gold", "silver", "bronze"].indexOf(name.split(".")[0]);
  const entries = Object.entries(progress.rows ?? {}).sort((a, b) => layer(a[0]) - layer(b[0]) || b[1] - a[1]);
  // Only what has changed is made anew: a selection and the pointer's place stay.
  const shown = JSON.stringify([entries, progress.message]);
  if (rows.dataset.shown === shown) return;
  rows.dataset.shown = shown;
  rows.replaceChildren(
    ...(entries.length ? entries.map(([name, total]) => element("div", {}, element("dt", { title: name }, name), element("dd", {}, count(total)))) : [element("p", { class: "note" }, progress.message || "no rows yet")]),
  );
}

/** What booking says of a ride's money: its payment's state, and what was paid and is owed. */
function money({ payment, paid, owed }) {
  const amount = ({ amount_minor: minor, currency }) => `${(minor / 100).toFixed(2)} ${currency}`;
  const parts = [paid?.amount_minor ? `${amount(paid)} paid` : "", owed?.amount_minor ? `${amount(owed)} owed` : ""].filter(Boolean);
  return payment ? ` · payment ${payment}${parts.length ? `: ${parts.join(", ")}` : ""}` : "";
}

export function showTimeline(found, state) {
  const events = found.events;
  const request = events.find((event) => event.type === "ride.requested")?.payload;
  const last = events.filter((event) => event.topic === "rides.v1").at(-1);
  put("ride-title", `Ride ${found.ride_id.slice(0, 8)}…`);
  const about = [];
  if (request) about.push(element("b", {}, `${nameOf(state, request.pickup_cell)} → ${nameOf(state, request.dropoff_cell)}`), ` · ${request.rider_id}`, request.fare ? ` · ${(request.fare.amount_minor / 100).toFixed(2)} ${request.fare.currency} at ${multiplier(request.multiplier)}` : "");
  if (last) about.push(` · by the log: ${last.type.replace("ride.", "")} (event ${last.payload?.seq})`);
  const { booking } = found;
  if (booking?.error) about.push(` · ${booking.error}`);
  else if (booking) about.push(` · booking says: ${booking.state} (event ${booking.seq})${booking.seq === last?.payload?.seq ? " ✓" : ""}${money(booking)}`);
  const line = element("p", {}, ...about);
  if (line.textContent !== $("ride-about").textContent) $("ride-about").replaceChildren(...line.childNodes);
  // Only what is new is added, so that nothing moves under a pointer.
  const list = $("timeline");
  if (list.dataset.ride !== found.ride_id) list.replaceChildren();
  list.dataset.ride = found.ride_id;
  shownEvents = new Map(events.map((event) => [placeOf(event), event]));
  events.forEach((event, index) => {
    // What was read late may belong before what is shown.
    const there = list.children[index] ?? null;
    if (there?.dataset.place !== placeOf(event)) list.insertBefore(eventItem(event), there);
  });
  events.forEach((event, index) => {
    const item = list.children[index];
    const since = index ? Date.parse(event.event_time) - Date.parse(events[index - 1].event_time) : NaN;
    const same = events.filter(({ id }) => id && id === event.id);
    const tries = same.length > 1 ? `attempt ${same.indexOf(event) + 1} of ${same.length}` : "";
    for (const [name, text] of [["after", Number.isFinite(since) ? after(since) : ""], ["tries", tries]]) {
      const place = item.querySelector(`.${name}`);
      if (place.textContent !== text) place.textContent = text;
    }
  });
}

let shownEvents = new Map();
const placeOf = (event) => `${event.topic} ${event.partition} ${event.offset}`;

function eventItem(event) {
  const headers = Object.fromEntries(event.headers);
  const trace = headers.ce_traceparent?.split("-")[1];
  return element("li", { "data-topic": event.topic, "data-place": placeOf(event) },
    element("div", { class: "what" }, element("span", {}, event.type), element("small", { class: "after" }), element("time", { datetime: event.event_time }, hour(Date.parse(event.event_time)))),
    element("div", { class: "where" }, `${event.topic}[${event.partition}] @ ${event.offset} · written ${new Date(event.written_ms).toISOString().slice(11, 23)}`,
      trace ? element("span", { title: `trace ${trace}` }, ` · trace ${trace.slice(0, 8)}…`) : null, element("span", { class: "tries" })),
    element("div", { class: "more" },
      element("details", {}, element("summary", {}, "headers and payload"),
        element("table", {}, element("tbody", {}, element("tr", {}, element("td", {}, "key"), element("td", {}, event.key ?? "none")),
          ...event.headers.map(([name, value]) => element("tr", {}, element("td", {}, name), element("td", {}, value))))),
        element("pre", { tabindex: "0", role: "group", "aria-label": `Payload of ${event.type}` }, JSON.stringify(event.payload, null, 2))),
      element("button", { type: "button", class: "copy", "aria-label": `Copy ${event.type}` }, "copy")));
}

/** One event as it was on the wire, or all of the ride. */
export function textOf(place) {
  const found = place ? shownEvents.get(place) : [...shownEvents.values()];
  return found ? JSON.stringify(found, null, 2) : "";
}

export async function copy(text, within) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch { /* no permission, or an address that is not secure: the old way may work */ }
  const area = element("textarea", { class: "hidden", "aria-hidden": "true" });
  area.value = text;
  within.append(area);
  const { activeElement } = document;
  area.select();
  const isDone = document.execCommand("copy");
  area.remove();
  activeElement?.focus?.();
  return isDone;
}

export function tipFor(state, hit) {
  const now = state.now();
  if (hit.ride) {
    const ride = state.rides.get(hit.ride);
    if (!ride) return null;
    const words = { requested: "waiting for a driver", matched: "driver on the way", arrived: "driver at the pickup", riding: "riding" }[ride.phase];
    return [element("b", {}, words), element("span", {}, `to ${zoneAt(state, ride.toLat, ride.toLng)} · click for its events`)];
  }
  const shape = state.shapes.get(hit.cell);
  const cell = state.cells.get(hit.cell);
  const valid = cell && cell.until > now;
  return [
    element("b", {}, nameOf(state, hit.cell)),
    element("span", {}, [shape?.borough, shape?.number && `cell ${shape.number[0]} of ${shape.number[1]}`].filter(Boolean).join(" · ")), element("br"),
    valid ? `${multiplier(cell.multiplier)} · demand ${cell.demand} · supply ${cell.supply}` : cell ? "1.0× · the last price has run out" : "1.0× · no price was ever needed here",
    valid ? element("br") : null, valid ? element("span", {}, `until ${hour(cell.until)}`) : null,
  ].filter((part) => part !== null);
}
