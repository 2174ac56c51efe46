// Numbers, times and names as people read them.

const counts = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
// Event time is the city's wall clock, written as if it were UTC.
const clock = new Intl.DateTimeFormat("en-GB", {
  weekday: "short", day: "numeric", month: "short", year: "numeric",
  hour: "2-digit", minute: "2-digit", second: "2-digit", timeZone: "UTC",
});
const timeOfDay = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit", timeZone: "UTC" });

export const count = (n) => counts.format(n);
export const short = (n) => (Math.abs(n) < 10000 ? counts.format(n) : compact.format(n));
export const rate = (n) => (n >= 100 ? counts.format(n) : n >= 0.05 ? tenths.format(n) : "0");
export const multiplier = (n) => `${n.toFixed(1)}×`;
export const eventTime = (ms) => (ms ? clock.format(ms).replace(",", "") : "—");
export const hour = (ms) => timeOfDay.format(ms);
export const percent = (part, whole) => (whole ? `${Math.round((100 * part) / whole)} %` : "—");

export function seconds(s) {
  if (s < 0.05) return "0 s";
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 120) return `${Math.round(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  return `${Math.round(s / 3600)} h`;
}

/** How long after the one before an event was: "+4.2 s". */
export function after(ms) {
  const s = Math.abs(ms) / 1000;
  const sign = ms < 0 ? "−" : "+";
  if (s < 60) return `${sign}${s.toFixed(1)} s`;
  return s < 7200 ? `${sign}${Math.floor(s / 60)} min ${Math.round(s % 60)} s` : `${sign}${(s / 3600).toFixed(1)} h`;
}

export function speed(rateOfTime) {
  if (rateOfTime < 0.05) return "paused";
  return rateOfTime >= 10 ? `×${counts.format(rateOfTime)}` : `×${tenths.format(rateOfTime)}`;
}

// Build an element: text is always text, never markup.
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [type, act] of Object.entries(value)) made.addEventListener(type, act);
    else if (name === "color") made.style.background = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}
