// Demand of one cell: what was expected in 15 minutes, what came, and the naive forecast beside it.

import { count, hour } from "./format.js";
import { svg } from "./svg.js";

const $ = (id) => document.getElementById(id);
const put = (id, text) => {
  const place = $(id);
  if (place.textContent !== text) place.textContent = text;
};
let shown = null;

export function showForecast(state) {
  const found = state.slow?.forecast;
  const text = JSON.stringify([found ?? null, innerWidth]);
  if (text === shown) return;
  shown = text;
  $("forecast-chart").toggleAttribute("hidden", !found);
  $("forecast-key").hidden = !found;
  $("supply-expected").hidden = !found?.supply.expected;
  if (!found) return put("forecast-error", "no forecast yet");
  const last = found.points.at(-1);
  put("forecast-zone", found.zone);
  put("forecast-error", found.mae ? `MAE ${found.mae[0].toFixed(1)} against naive ${found.mae[1].toFixed(1)}` : "not scored yet");
  $("forecast-error").title = found.mae ? `mean absolute error of ${count(found.scored)} forecasts of all cells in the last day, as surge scored them, against "as many as in the 15 minutes before"` : "the first forecasts that have 15 minutes before them are not over";
  showSupply(found.supply);
  draw(found);
  $("forecast-chart").setAttribute("aria-label", `${found.zone}, from ${hour(last[0])} for 15 minutes: ${last[2]} requests expected, ${last[1]} to ${last[3]} likely` + (last[5] === null ? "" : `, naive ${last[5]}`));
}

function showSupply({ expected, mae, scored }) {
  if (!expected) return;
  const [p10, p50, p90] = expected;
  put("supply-expected", `drivers free then: ${p50} (${p10} to ${p90})`);
  $("supply-expected").title = mae ? `MAE ${mae[0].toFixed(1)} against naive ${mae[1].toFixed(1)}: mean absolute error of ${count(scored)} forecasts of all cells in the last day, as surge scored them, against "as many as are free now"` : "no forecast is over yet";
}

function draw({ points }) {
  const [width, height, bottom] = [Math.max(160, $("forecast-chart").clientWidth), 84, 15];
  const most = Math.max(4, ...points.map(([, , , p90, actual, naive]) => Math.max(p90, actual ?? 0, naive ?? 0)));
  const x = (i) => (points.length > 1 ? 18 + (i * (width - 24)) / (points.length - 1) : width / 2);
  const y = (value) => 4 + (1 - value / most) * (height - bottom - 8);
  const line = (at) => points.flatMap((point, i) => (point[at] === null ? [] : [`${x(i).toFixed(1)} ${y(point[at]).toFixed(1)}`])).join("L");
  const ridge = points.map((point, i) => `${x(i).toFixed(1)} ${y(point[3]).toFixed(1)}`);
  const floor = points.map((point, i) => `${x(i).toFixed(1)} ${y(point[1]).toFixed(1)}`).reverse();
  const parts = [svg("path", { d: `M${[...ridge, ...floor].join("L")}Z`, class: "band" })];
  for (const [at, name] of [[5, "naive"], [2, "median"]]) if (line(at)) parts.push(svg("path", { d: `M${line(at)}`, class: name }));
  points.forEach((point, i) => { if (point[4] !== null) parts.push(svg("circle", { cx: x(i), cy: y(point[4]), r: 2.4, class: "came" })); });
  parts.push(svg("text", { x: 0, y: y(most) + 8 }, String(Math.round(most))), svg("text", { x: 0, y: y(0) + 3 }, "0"));
  parts.push(svg("text", { x: 18, y: height - 1 }, hour(points[0][0]).slice(0, 5)), svg("text", { x: width - 4, y: height - 1, "text-anchor": "end" }, hour(points.at(-1)[0]).slice(0, 5)));
  $("forecast-chart").setAttribute("viewBox", `0 0 ${width} ${height}`);
  $("forecast-chart").replaceChildren(...parts);
}
