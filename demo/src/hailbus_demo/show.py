"""What the terminal shows: a live table where there is one, plain lines where there is none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hailbus_demo.figures import Figures
from hailbus_demo.health import COLOURS, health, level_of_lag, process_state
from hailbus_demo.ledger.model import Line

PLAIN_EVERY_S = 5.0
STILL_EVERY_S = 60.0
"""A plain line that says the same as the last one is printed this seldom: it shows that the demo is alive."""
LIVE_EVERY_S = 1.0
SIGNS: Final[Mapping[str, str]] = {"ok": "✓", "late": "▲", "bad": "✗"}
"""So that colour is never the only sign of how well the city is."""


class Screen:
    """Shows a run's progress until closed.

    Args:
        console: Where; `console.is_terminal` decides between a live table and plain lines.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.figures: Figures | None = None
        self.dashboard_url: str | None = None
        self._live: Live | None = None
        self._task: asyncio.Task[None] | None = None
        self._began = time.monotonic()

    def say(self, line: str) -> None:
        """Show a line that stays."""
        self.console.print(Text(f"[{time.monotonic() - self._began:6.1f} s] {line}"), soft_wrap=True)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._refresh())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop showing progress."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._live is not None:
            self._live.stop()
            self._live = None

    async def _refresh(self) -> None:
        shown, shown_at = "", 0.0
        while True:
            figures = self.figures
            if figures is not None:
                state = figures.as_json()
                if self.console.is_terminal:
                    if self._live is None:
                        self._live = Live(console=self.console, auto_refresh=False, transient=True)
                        self._live.start()
                    self._live.update(self._table(state), refresh=True)
                else:
                    line, now = plain_line(state), time.monotonic()
                    if line != shown or now - shown_at >= STILL_EVERY_S:
                        shown, shown_at = line, now
                        self.console.print(line, soft_wrap=True, highlight=False, markup=False)
            await asyncio.sleep(LIVE_EVERY_S if self.console.is_terminal else PLAIN_EVERY_S)

    def _table(self, state: dict[str, Any]) -> Group:
        rides = state["rides"]
        level, words = health(state)
        head = Table.grid(padding=(0, 3))
        head.add_row("health", Text(f"{SIGNS[level]} {words}", style=f"bold {COLOURS[level]}"))
        head.add_row(
            f"[bold]{(state['event_time'] or '—')[:19].replace('T', ' ')}[/]",
            f"{rides['requested']:,} rides: {rides['completed']:,} completed, {rides['cancelled']:,} cancelled, "
            f"{rides['unmatched']:,} unmatched, {rides['in_flight']:,} in flight",
        )
        lake = "—" if state["lake_rows"] is None else f"{state['lake_rows']:,}"
        if state["share_done"] is not None:
            bar = Table.grid(padding=(0, 1))
            bar.add_row(
                ProgressBar(total=1, completed=state["share_done"], width=40, complete_style="blue"),
                f"{state['share_done']:.0%}",
            )
            head.add_row(state["phase"].replace("_", " "), bar)
        head.add_row(
            f"{state['events_per_s']:,.0f} events/s",
            f"{state['events']:,} events · {state['recommendations_served']:,} recommendations · "
            f"{lake} rows in the lake",
        )
        hottest = "  ".join(f"{zone} {multiplier:.1f}×" for zone, multiplier in hottest_zones(state)) or "no surge"
        head.add_row("highest prices", hottest)
        if state["so_far"]:
            head.add_row("ledger so far", Text(so_far(state), style="bold red" if state["balanced"] is False else ""))
        if self.dashboard_url:
            head.add_row("dashboard", f"[link={self.dashboard_url}]{self.dashboard_url}[/link]")
        lags = Table(box=None, padding=(0, 2, 0, 0))
        for title in ("group", "behind", "seconds"):
            lags.add_column(title, justify="left" if title == "group" else "right")
        for group in state["groups"]:
            late = level_of_lag(group["lag_s"])
            style = "" if late == "ok" else COLOURS[late]
            lags.add_row(group["group"], f"{group['lag_records']:,}", Text(f"{group['lag_s']:.1f}", style=style))
        processes = Table(box=None, padding=(0, 2, 0, 0))
        for title in ("process", "state", "memory", "restarts"):
            processes.add_column(title, justify="left" if title in ("process", "state") else "right")
        for process in state["processes"]:
            of_process, says = process_state(process, state)
            processes.add_row(
                process["name"],
                Text(says, style="" if of_process is None else COLOURS[of_process]),
                f"{process['memory_mb']:,.0f} MB",
                str(process["restarts"] or ""),
            )
        both = Table.grid(padding=(0, 6))
        both.add_row(lags, processes)
        shown: list[RenderableType] = [Text(), head, Text(), both]
        if state["kills"]:
            shown += [Text(), kills_table(state)]
        if state["share_done"] is None:
            shown.append(Text(state["phase"].replace("_", " "), style="dim"))
        return Group(*shown)


def plain_line(state: dict[str, Any]) -> str:
    """Return the state in one line, for logs and pipes: how well the city is, then how far it has come."""
    rides = state["rides"]
    level, words = health(state)
    share = "" if state["share_done"] is None else f" {state['share_done']:.0%}"
    restarted = " ".join(f"{p['name']}:{p['restarts']}" for p in state["processes"] if p["restarts"])
    parts = [
        f"{SIGNS[level]} {words}",
        f"{state['phase'].replace('_', ' ')}{share} {(state['event_time'] or '-')[:19].replace('T', ' ')}",
        f"{rides['requested']:,} rides ({rides['in_flight']:,} in flight)",
        f"{state['events']:,} events, {state['events_per_s']:,.0f}/s",
    ]
    hottest = hottest_zones(state)
    if hottest:
        parts.append(f"{hottest[0][0]} {hottest[0][1]:.1f}×")
    if state["so_far"] and state["balanced"] is False:
        parts.append(f"ledger so far {so_far(state)}")
    if restarted:
        parts.append(f"restarts {restarted}")
    return " | ".join(parts)


def hottest_zones(state: dict[str, Any]) -> list[tuple[str, float]]:
    """Return the zones with the highest prices, each once, highest first."""
    found: dict[str, float] = {}
    for hot in state["hottest"]:
        found.setdefault(hot["zone"], hot["multiplier"])
    return list(found.items())


def so_far(state: dict[str, Any]) -> str:
    """Return the verdict during a run."""
    if not state["lines"]:
        return "-"
    wrong = [line["name"] for line in state["lines"] if line["verdict"] == "disagrees"]
    return f"NOT balanced: {'; '.join(wrong)}" if wrong else "agrees"


MARKS: Final[Mapping[str, str]] = {
    "agrees": "[green]ok[/]",
    "disagrees": "[bold red]NO[/]",
    "not_checked": "[bold red]??[/]",
    "shown": "[dim]–[/]",
}


def ledger_table(state: dict[str, Any]) -> Table:
    """Return the ledger's lines as a table."""
    # Books that balance are no reason for green while a group has not read to the end.
    agreed = COLOURS["ok" if all(level_of_lag(group["lag_s"]) == "ok" for group in state["groups"]) else "late"]
    verdict = {True: f"[bold {agreed}]balanced[/]", False: "[bold red]not balanced[/]", None: "not checked"}
    left_out = f"; not part of this run: {'; '.join(state['left_out'])}" if state["left_out"] else ""
    table = Table(title=f"Ledger: {verdict[state['balanced']]}", title_justify="left", caption=left_out.lstrip("; "))
    table.add_column("")
    table.add_column("line", overflow="fold", ratio=2)
    table.add_column("between", overflow="fold", ratio=2)
    table.add_column("found", overflow="fold", ratio=3)
    for line in state["lines"]:
        table.add_row(MARKS[line["verdict"]], line["name"], " = ".join(line["between"]), Text(line["detail"]))
    return table


def what_is_wrong(lines: Sequence[Line]) -> str:
    """Return in one sentence which lines disagree, and which could not be checked."""
    parts = []
    for verdict, words in (("disagrees", "the accounts disagree"), ("not_checked", "not checked")):
        wrong = [f"{line.name} ({line.detail})" for line in lines if line.verdict == verdict]
        if wrong:
            parts.append(f"{words}: {', '.join(wrong)}")
    return "; ".join(parts)


def kills_table(state: dict[str, Any], *, title: str | None = None) -> Table:
    """Return which processes were killed, what they were, and how long they were away."""
    table = Table(box=None, padding=(0, 2, 0, 0)) if title is None else Table(title=title, title_justify="left")
    for heading in ("killed", "was", "back after"):
        table.add_column(heading, justify="right" if heading == "back after" else "left")
    for kill in state["kills"]:
        after_s = kill["back_after_s"]
        table.add_row(
            kill["process"],
            kill["role"] if kill["role"] != kill["process"] else "",
            Text("not yet", style=COLOURS["late"]) if after_s is None else f"{after_s:.1f} s",
        )
    return table


def figures_table(state: dict[str, Any]) -> Table:
    """Return what was measured as a table."""
    figures = state["figures"]
    table = Table(title="Measured", title_justify="left")
    table.add_column("figure", no_wrap=True)
    table.add_column("value", overflow="fold")

    def row(name: str, value: Any, unit: str = "") -> None:
        if value is not None:
            table.add_row(name, f"{value:,}{unit}" if isinstance(value, int | float) else str(value))

    row("services ready after", figures["services_ready_s"], " s")
    row("first event after", figures["first_event_s"], " s")
    row("rides played for", figures["rides_s"], " s")
    row("then until all had caught up", figures["caught_up_s"], " s")
    row("rides booked", figures["rides_per_s"], " per second")
    row("rides that shared a car", figures["rides_pooled"])
    row("events through the whole chain", figures["chain_events_per_s"], " per second")
    row("requests", f"{figures['requests']:,}, {figures['requests_retried']:,} repeated after a failure")
    row("answers", f"half within {figures['latency_p50_ms']} ms, 99 % within {figures['latency_p99_ms']} ms")
    if figures["audits"]:
        row("ledgers during the run", f"{figures['audits']:,}, with {figures['audit_cpu_s']:,} s of CPU time in all")
    if state["processes"]:
        peaks = ", ".join(f"{p['name']} {p['memory_peak_mb']:,.0f}" for p in state["processes"])
        row("memory at most, MB", peaks)
        row("CPU time, s", ", ".join(f"{p['name']} {p['cpu_s']:,.1f}" for p in state["processes"]))
    return table
