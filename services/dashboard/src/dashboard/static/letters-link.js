// The link to the page of dead letters says how many wait.

import { ask } from "./ask.js";
import { element } from "./format.js";

const EVERY_MS = 5000;

export function showWaiting(waiting) {
  const link = document.getElementById("letters-link");
  const words = waiting ? `Letters: ${waiting} waiting` : "Letters";
  if (link.textContent === words) return;
  link.replaceChildren(...(waiting ? [`Letters: ${waiting}`, element("span", {}, " waiting")] : [words]));
  link.toggleAttribute("data-some", Boolean(waiting));
}

// For a page without the stream.
export function watchWaiting() {
  const look = () => document.hidden || ask("api/letters/waiting").then(({ waiting }) => showWaiting(waiting)).catch(() => {});
  look();
  setInterval(look, EVERY_MS);
}
