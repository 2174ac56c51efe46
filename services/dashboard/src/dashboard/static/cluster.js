// Brokers, leaders of each topic, and replicas that are not in sync.

import { count, element, seconds } from "./format.js";

const $ = (id) => document.getElementById(id);
const STALE_S = 10;

const put = (id, text) => {
  const place = $(id);
  if (place.textContent !== text) place.textContent = text;
};
const plural = (many, word) => `${count(many)} ${word}${many === 1 ? "" : "s"}`;

export function summaryOf(cluster) {
  const found = { partitions: 0, offline: [], behind: [], away: 0, copies: 0 };
  if (!cluster) return found;
  found.away = cluster.brokers.filter((broker) => !broker.up).length;
  for (const [topic, partitions] of cluster.topics)
    for (const [partition, leader, replicas, isr] of partitions) {
      found.partitions++;
      found.copies = Math.max(found.copies, replicas.length);
      const one = { topic, partition, leader, replicas, isr };
      if (leader < 0) found.offline.push(one);
      else if (isr.length < replicas.length) found.behind.push(one);
    }
  return found;
}

function verdictOf(cluster, summary, age) {
  if (!cluster) return ["none", "not described yet"];
  if (age > STALE_S) return ["none", `as of ${seconds(age)} ago`];
  if (summary.offline.length) return ["false", `✗ ${plural(summary.offline.length, "partition")} without a leader`];
  if (summary.behind.length) return ["late", `⚠ ${count(summary.behind.length)} of ${count(summary.partitions)} partitions under-replicated`];
  if (!summary.partitions) return ["none", "no partitions yet"];
  return summary.copies > 1 ? ["true", "✓ all replicas in sync"] : ["true", "✓ one copy of each record"];
}

let shown = null;

export function showCluster(state) {
  const { cluster } = state;
  const summary = summaryOf(cluster);
  const [ok, text] = verdictOf(cluster, summary, state.slow?.cluster_age_s ?? 0);
  $("replicas").dataset.ok = ok;
  put("replicas", text);
  if (!cluster || cluster === shown) return;
  shown = cluster;
  $("nodes").replaceChildren(...cluster.brokers.map(nodeItem));
  $("topics-open").hidden = !summary.partitions;
  if ($("topics").open) fillTopics(cluster, summary);
}

function nodeItem(broker) {
  const behind = broker.replicas - broker.in_sync;
  const state = !broker.up ? "away" : behind ? "late" : "up";
  const words = !broker.up ? "away" : behind ? `${count(behind)} of ${count(broker.replicas)} behind` : `leads ${count(broker.leads)}`;
  return element("li", { "data-broker": broker.id, "data-state": state, title: [broker.address, broker.rack && `rack ${broker.rack}`].filter(Boolean).join(" · ") },
    element("b", {}, element("i", { "aria-hidden": "true" }), `broker ${broker.id}`),
    element("span", { class: "does" }, words),
    broker.controller ? element("span", { class: "role" }, "controller") : null);
}

function fillTopics(cluster, summary) {
  const ids = cluster.brokers.map((broker) => broker.id);
  put("topics-about", `${plural(cluster.brokers.length, "broker")}${summary.away ? `, ${count(summary.away)} away` : ""} · ${plural(summary.partitions, "partition")} · controller ${cluster.controller === null ? "unknown" : `is broker ${cluster.controller}`}`);
  const missing = [...summary.offline, ...summary.behind];
  $("missing").hidden = !missing.length;
  $("missing-rows").replaceChildren(
    ...missing.map(({ topic, partition, leader, replicas, isr }) =>
      element("tr", { class: leader < 0 ? "offline" : "behind" },
        element("td", {}, `${topic}[${partition}]`),
        element("td", {}, leader < 0 ? "none" : String(leader)),
        element("td", {}, isr.join(", ") || "none"),
        element("td", {}, replicas.filter((id) => !isr.includes(id)).join(", ")))));
  $("leaders-head").replaceChildren(
    element("tr", {}, ...["topic", "partitions", ...ids.map((id) => `broker ${id}`), "in sync"].map((name) => element("th", { scope: "col" }, name))));
  $("leaders-rows").replaceChildren(
    ...cluster.topics.map(([topic, partitions]) => {
      const replicas = partitions.reduce((sum, [, , all]) => sum + all.length, 0);
      const inSync = partitions.reduce((sum, [, , , isr]) => sum + isr.length, 0);
      const offline = partitions.some(([, leader]) => leader < 0);
      return element("tr", { class: offline ? "offline" : inSync < replicas ? "behind" : null },
        element("th", { scope: "row" }, topic), element("td", {}, count(partitions.length)),
        ...ids.map((id) => element("td", {}, count(partitions.filter(([, leader]) => leader === id).length))),
        element("td", {}, `${inSync < replicas ? "⚠ " : ""}${count(inSync)} / ${count(replicas)}`));
    }));
}

export function openTopics(state) {
  if (!state.cluster) return;
  fillTopics(state.cluster, summaryOf(state.cluster));
  $("topics").showModal();
}
