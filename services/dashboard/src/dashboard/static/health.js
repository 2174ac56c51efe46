// The health strip: the worst truth in words, and a chip for each process and group. The server judges.

import { element } from "./format.js";

const $ = (id) => document.getElementById(id);
const SIGNS = { ok: "✓", late: "▲", bad: "✗", off: "○" };
const HOLDS_MS = 2000; // before it is announced: what comes and goes is not worth an interruption

const put = (id, text) => {
  const place = $(id);
  if (place.textContent !== text) place.textContent = text;
};

export function healthOf(state) {
  if (state.link === "connecting") return { level: "off", words: "connecting", subject: "link", others: [], chips: null };
  if (state.link !== "open") return { level: "bad", words: "page disconnected, trying again", subject: "link", others: [], chips: null };
  return state.slow?.health ?? { level: "off", words: "connecting", subject: "link", others: [], chips: null };
}

// Seconds change all the time; a screen reader is told when something else is the worst, or when it got worse or better.
let pending = { key: null, since: 0, isSaid: true };
function announce({ level, subject, words }) {
  const key = `${level} ${subject}`;
  const now = performance.now();
  if (key !== pending.key) pending = { key, since: now, isSaid: false };
  else if (!pending.isSaid && now - pending.since > HOLDS_MS) {
    pending.isSaid = true;
    put("health-said", words);
  }
}

export function showHealth(state) {
  const health = healthOf(state);
  const { level, words, others, chips } = health;
  $("health").dataset.level = level;
  put("health-sign", SIGNS[level]);
  put("status", words);
  put("health-others", others.length ? `+${others.length} more` : "");
  $("health-others").title = others.join("\n");
  announce(health);
  if (chips) showChips(chips);
}

let shownChips = "";
function showChips(chips) {
  const text = JSON.stringify(chips);
  if (text === shownChips) return;
  shownChips = text;
  $("chips").replaceChildren(
    ...chips.map(([name, level, words, about]) =>
      element("li", { "data-chip": name, "data-level": level, title: `${name}: ${about}` },
        element("i", { "aria-hidden": "true" }, SIGNS[level]), words ? `${name} ${words}` : name)),
  );
}
