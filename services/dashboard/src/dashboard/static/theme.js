// Dark or light: as the address says, else as chosen before, else as the system has it.

export function useTheme(button, changed = () => {}) {
  const root = document.documentElement;
  const stored = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const wanted = new URLSearchParams(location.search).get("theme") ?? stored();
  const ofSystem = matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark";
  root.dataset.theme = wanted === "light" || wanted === "dark" ? wanted : ofSystem;
  button.addEventListener("click", () => {
    const next = root.dataset.theme === "light" ? "dark" : "light";
    root.dataset.theme = next;
    try { localStorage.setItem("theme", next); } catch { /* private windows keep nothing */ }
    changed();
  });
}
