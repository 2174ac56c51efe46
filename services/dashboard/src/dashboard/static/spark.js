// The last 60 seconds of a figure as a line, with marks where a process was restarted and where the accounts were compared.

import { element } from "./format.js";
import { svg } from "./svg.js";

const SPAN_S = 60;
const HEIGHT = 16;
const series = new Map(); // name -> [[seconds, value]]
const marks = []; // {at, kind, about}
let restarts = null;
let auditedAt = null;
let read = null; // the last content of the demo's file
const now = () => performance.now() / 1000;

export function note(name, value) {
  const at = now();
  const known = series.get(name);
  if (!known) series.set(name, [[at, value]]);
  else if (at - known.at(-1)[0] > 0.5) known.push([at, value]);
  else known.at(-1)[1] = value;
  while (series.get(name)[0][0] < at - SPAN_S) series.get(name).shift();
}

// What happened: a process that was restarted once more, a ledger that was drawn up anew.
export function noteMarks(state) {
  const at = now();
  const chips = state.slow?.health?.chips ?? [];
  const counts = new Map(chips.map(([name, , , , count]) => [name, count]));
  if (restarts) for (const [name, count] of counts) if (count > (restarts.get(name) ?? count)) marks.push({ at, kind: "restart", about: `${name} restarted` });
  if (counts.size) restarts = counts;
  const content = state.full?.content ?? null;
  if (content === read) return;
  read = content; // the file was just written: its times are those of now
  if (typeof content?.audited_s_ago !== "number") return;
  const audited = at - content.audited_s_ago;
  if (auditedAt !== null && audited - auditedAt < 1.5) return;
  if (auditedAt !== null) marks.push({ at, kind: "check", about: "accounts compared" });
  auditedAt = audited;
}


export function spark(name) {
  const known = series.get(name) ?? [];
  const at = now();
  const most = Math.max(1e-9, ...known.map(([, value]) => value));
  const x = (seconds) => (SPAN_S - (at - seconds)).toFixed(1);
  const points = known.map(([seconds, value]) => `${x(seconds)} ${(HEIGHT - 1.5 - (value / most) * (HEIGHT - 3)).toFixed(1)}`);
  while (marks.length && (marks[0].at < at - SPAN_S || marks.length > 60)) marks.shift();
  const parts = marks.map(({ at: seconds, kind, about }) => {
    const mark = svg("path", { d: kind === "restart" ? `M${x(seconds)} 0V${HEIGHT}` : `M${x(seconds)} ${HEIGHT}v-5`, class: kind });
    mark.append(svg("title", {}, about));
    return mark;
  });
  if (points.length > 1) parts.push(svg("path", { d: `M${points.join("L")}`, class: "line" }));
  const drawn = svg("svg", { class: "spark", viewBox: `0 0 ${SPAN_S} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  drawn.append(...parts);
  return drawn;
}

/** Put a line below a figure. */
export function show(id, value) {
  note(id, value);
  const place = document.getElementById(id).parentElement;
  place.querySelector(".spark")?.remove();
  place.append(spark(id));
}

export const sparkCell = (name, value) => {
  note(name, value);
  return element("td", { class: "graph" }, spark(name));
};
