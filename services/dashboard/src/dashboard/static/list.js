// The map as a list: all cells and all rides in tables that can be sorted, as they were when the list was drawn up.

import { count, element, eventTime, hour, multiplier } from "./format.js";

const $ = (id) => document.getElementById(id);
const MOST = 2000; // rows
const ORDER = ["requested", "matched", "arrived", "riding"];
const WORDS = { requested: "waiting", matched: "driver coming", arrived: "driver is there", riding: "riding" };

const TABLES = {
  cells: {
    columns: [["place", "text"], ["borough", "text"], ["price", "number"], ["demand", "number"], ["supply", "number"], ["until", "number"]],
    sort: ["price", -1],
    rows(state, { cellName }) {
      const now = state.now();
      return [...state.shapes.values()].map(({ id, borough }) => {
        const found = state.cells.get(id);
        const valid = found && found.until > now;
        return {
          hit: { cell: id },
          keys: [cellName(state, id), borough, valid ? found.multiplier : 1, valid ? found.demand : -1, valid ? found.supply : -1, valid ? found.until : 0],
          texts: [cellName(state, id), borough, multiplier(valid ? found.multiplier : 1), valid ? String(found.demand) : "—", valid ? String(found.supply) : "—", valid ? hour(found.until) : "—"],
        };
      });
    },
  },
  rides: {
    columns: [["state", "number"], ["from", "text"], ["to", "text"], ["ride", "text"]],
    sort: ["state", 1],
    rows(state, { zoneAt }) {
      return [...state.rides.values()].map((ride) => {
        const texts = [WORDS[ride.phase] ?? ride.phase, zoneAt(state, ...ride.from), zoneAt(state, ride.toLat, ride.toLng), `${ride.id.slice(0, 8)}…`];
        return { hit: { ride: ride.id }, keys: [ORDER.indexOf(ride.phase), texts[1], texts[2], ride.id], texts };
      });
    },
  },
};

export class List {
  constructor(state, names, onPick) {
    this.state = state;
    this.names = names;
    this.onPick = onPick;
    this.shown = "cells";
    $("list-cells").addEventListener("click", () => this.show("cells"));
    $("list-rides").addEventListener("click", () => this.show("rides"));
    $("list-again").addEventListener("click", () => this.draw());
    $("list-close").addEventListener("click", () => $("list").close());
  }

  open() {
    $("list").showModal();
    this.show(this.shown);
  }

  show(name) {
    this.shown = name;
    for (const each of Object.keys(TABLES)) $(`list-${each}`).setAttribute("aria-pressed", String(each === name));
    this.draw();
  }

  draw() {
    const table = TABLES[this.shown];
    const [by, direction] = table.sort;
    const at = table.columns.findIndex(([name]) => name === by);
    const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b) : a - b);
    const rows = table.rows(this.state, this.names)
      .sort((one, other) => direction * compare(one.keys[at], other.keys[at]) || compare(one.keys[0], other.keys[0]));
    $("list-about").textContent = `${count(rows.length)} ${this.shown} as of ${eventTime(this.state.now())}`;
    $("list-head").replaceChildren(element("tr", {}, ...table.columns.map(([name], index) =>
      element("th", { scope: "col", "aria-sort": index === at ? (direction > 0 ? "ascending" : "descending") : null },
        element("button", { type: "button", "data-sort": name, on: { click: () => this.#sort(name) } }, name, element("i", { "aria-hidden": "true" }, index === at ? (direction > 0 ? " ▲" : " ▼") : ""))))));
    $("list-rows").replaceChildren(...rows.slice(0, MOST).map(({ hit, texts }) =>
      element("tr", {}, ...texts.map((text, index) => (index ? element("td", {}, text)
        : element("th", { scope: "row" }, element("button", { type: "button", on: { click: () => this.#pick(hit) } }, text)))))));
  }

  #sort(name) {
    const table = TABLES[this.shown];
    const isNumber = table.columns.some(([column, kind]) => column === name && kind === "number");
    table.sort = [name, table.sort[0] === name ? -table.sort[1] : isNumber && name !== "state" ? -1 : 1];
    this.draw();
    document.querySelector(`#list-head [data-sort="${name}"]`).focus();
  }

  #pick(hit) {
    $("list").close();
    this.onPick(hit);
  }
}
