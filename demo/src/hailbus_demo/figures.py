"""The state of a run as one JSON object: for the dashboard while it runs, for `--summary` at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ride_events.zones import zone_of_cell

from hailbus_demo.chaos import Chaos
from hailbus_demo.city.plan import to_datetime, to_text
from hailbus_demo.ledger.draw import Ledger
from hailbus_demo.ledger.model import Finding, Line
from hailbus_demo.options import RideOptions
from hailbus_demo.replay.book import Book
from hailbus_demo.replay.stage import Stage
from hailbus_demo.replay.sure import Traffic
from hailbus_demo.sabotage.deeds import Deed
from hailbus_demo.services import AT_MOST_ONCE
from hailbus_demo.supervise.processes import Supervisor
from hailbus_demo.watch import Watch, utc_now_text


@dataclass(slots=True)
class Timings:
    """Moments of a run, as monotonic seconds."""

    started: float = field(default_factory=time.monotonic)
    services_ready: float | None = None
    first_ride: float | None = None
    rides_done: float | None = None
    caught_up: float | None = None


@dataclass(slots=True)
class Audit:
    """The ledgers that were drawn up during the run: how many, when the last one, and what they cost."""

    rounds: int = 0
    at: float | None = None
    took_s: float = 0.0
    cpu_s: float = 0.0

    def note(self, *, took_s: float, cpu_s: float) -> None:
        """Note one that was drawn up just now; `cpu_s` is the CPU time of all so far."""
        self.rounds += 1
        self.at = time.monotonic()
        self.took_s, self.cpu_s = took_s, cpu_s


@dataclass(slots=True, kw_only=True)
class Sabotage:
    """The fault that the run was asked for, and what was done; `found_by` are the lines that name it at the end."""

    fault: str
    deed: Deed | None = None
    found_by: tuple[str, ...] = ()

    def find(self, ledger: Ledger) -> None:
        """Note which lines disagree and name what was done: its place in the log, or its id."""
        deed = self.deed
        if deed is not None:
            self.found_by = tuple(
                line.name
                for line in ledger.lines
                if line.verdict == "disagrees" and any(_names(deed, finding) for finding in line.findings)
            )

    def verdict(self) -> str:
        """Return in a sentence whether the ledger found it."""
        if self.deed is None:
            return f"sabotage: {self.fault} was not done"
        if self.found_by:
            return f"sabotage: {self.fault} was found by: {'; '.join(self.found_by)}"
        return f"sabotage: {self.fault} was NOT found: no line that disagrees names that {self.deed.sentence}"

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values; all but the fault are null before it was done."""
        deed = self.deed
        return {
            "fault": self.fault,
            "sentence": None if deed is None else deed.sentence,
            "topic": None if deed is None else deed.topic,
            "partition": None if deed is None else deed.partition,
            "offset": None if deed is None else deed.offset,
            "id": None if deed is None else deed.id,
            "found_by": list(self.found_by),
        }


@dataclass(slots=True)
class Figures:
    """Collects what is shown and written."""

    run: int
    speed: float | None
    book: Book
    stage: Stage
    watch: Watch
    supervisor: Supervisor | None
    traffic: Traffic
    timings: Timings
    phase: str = "starting"
    accounts: dict[str, dict[str, int]] = field(default_factory=dict)
    groups: dict[str, Mapping[str, int]] = field(default_factory=dict)
    ledger: Ledger | None = None
    so_far: bool = True
    """Whether the ledger was drawn up during the run."""
    audit: Audit = field(default_factory=Audit)
    sabotage: Sabotage | None = None
    chaos: Chaos | None = None
    share_done: Callable[[], float | None] = lambda: None
    """How much of the run is over, 0 to 1; None where it has no end."""
    rides_before: int = 0

    def share_of(self, rides: RideOptions, *, ran_s: float) -> float | None:
        """How much of a run is over, 0 to 1: by rides, seconds or event time, whichever ends it first.

        None where nothing ends it. Booked rides count, not drawn plans: those are drawn long before, to know how many
        drivers there must be.
        """
        shares = []
        if rides.limit is not None:
            shares.append(self._rides_of_run() / rides.limit)
        if rides.duration_s is not None:
            shares.append(ran_s / rides.duration_s)
        if rides.first_ms is not None and rides.until_ms is not None:
            shares.append(max(self.stage.now_ms - rides.first_ms, 0) / (rides.until_ms - rides.first_ms))
        return max(shares, default=None)

    def _rides_of_run(self) -> int:
        return len(self.book.rides) - self.rides_before

    def as_json(self) -> dict[str, Any]:
        """Return everything."""
        watch, timings = self.watch, self.timings
        event_ms = self.stage.now_ms
        share = self.share_done()
        records = {topic: watch.records_of(topic) for topic in watch.topics}
        return {
            "phase": self.phase,
            "share_done": None if share is None else round(min(share, 1.0), 3),
            "at": utc_now_text(),
            "event_time": to_text(event_ms) if event_ms else None,
            "run": self.run,
            "speed": self.speed,
            "so_far": self.so_far,
            "balanced": self.balanced,
            "rides": self.book.counts(),
            "accounts": self.accounts,
            "groups": [
                {
                    "group": lag.group,
                    "topics": list(lag.topics),
                    "lag_records": lag.records,
                    "lag_s": round(lag.seconds, 1),
                    "progress": lag.progress.words(),
                    **self.groups.get(lag.group, {"expected": None, "seen": None, "applied": None}),
                }
                for lag in watch.groups.values()
            ],
            "topics": [
                {"topic": topic, "records": n, "at_most_once": topic in AT_MOST_ONCE} for topic, n in records.items()
            ],
            "processes": self.processes(),
            "events_per_s": round(watch.per_second(), 1),
            "events": watch.records,
            "recommendations_served": watch.served,
            "lake_rows": watch.lake.rows if watch.lake_dir is not None else None,
            "hottest": [
                {"cell": cell, "zone": zone_name(cell), "multiplier": multiplier}
                for cell, multiplier in watch.hot_cells(to_datetime(event_ms) if event_ms else None)
            ],
            "lines": [line.as_json() for line in self.lines],
            "left_out": [] if self.ledger is None else list(self.ledger.left_out),
            "audited_s_ago": None if self.audit.at is None else round(time.monotonic() - self.audit.at, 1),
            "kills": [] if self.chaos is None else [kill.as_json() for kill in self.chaos.note_returns()],
            "sabotage": None if self.sabotage is None else self.sabotage.as_json(),
            "figures": {
                "rides_begin_s": _since(timings.started, timings.first_ride),
                "services_ready_s": _since(timings.started, timings.services_ready),
                "first_event_s": _since(timings.started, watch.first_record_at),
                "rides_s": _since(timings.first_ride, timings.rides_done),
                "caught_up_s": _since(timings.rides_done, timings.caught_up),
                "chain_events_per_s": self.chain_per_s(),
                "rides_per_s": self.rides_per_s(),
                "peak_events_per_s": round(watch.peak_per_s, 1),
                "requests": self.traffic.sent,
                "requests_retried": self.traffic.retried,
                "requests_refused": dict(self.book.refusals),
                "latency_p50_ms": round(self.traffic.percentile_ms(0.5), 1),
                "latency_p99_ms": round(self.traffic.percentile_ms(0.99), 1),
                "quotes_offered": self.book.quotes_offered,
                "quotes_not_accepted": self.book.quotes_left,
                "rides_pooled": len(self.book.pooled),
                "recommendations_asked": self.book.recommendations_asked,
                "recommendations_chosen": self.book.recommendations_chosen,
                "lake_tables": watch.lake.tables,
                "audits": self.audit.rounds,
                "audit_s": round(self.audit.took_s, 2),
                "audit_cpu_s": round(self.audit.cpu_s, 1),
            },
        }

    @property
    def balanced(self) -> bool | None:
        """The verdict. During the run it is either unbalanced or undecided: only the end shows whether it balances."""
        if self.ledger is None:
            return None
        if self.so_far:
            return False if any(line.verdict == "disagrees" for line in self.lines) else None
        return self.ledger.balanced

    @property
    def lines(self) -> tuple[Line, ...]:
        """The lines of the ledger, none before it is drawn up."""
        return () if self.ledger is None else self.ledger.lines

    def processes(self) -> list[dict[str, Any]]:
        """Return name, pid, state, restarts, CPU time and memory of each process."""
        if self.supervisor is None:
            return []
        self.supervisor.measure()
        return [
            {
                "name": name,
                "pid": child.pid,
                "state": child.state,
                "restarts": child.restarts,
                "cpu_s": round(child.cpu_s, 1),
                "memory_mb": round(child.memory_mb, 1),
                "memory_peak_mb": round(child.memory_peak_mb, 1),
                "ready_after_s": None if child.ready_after_s is None else round(child.ready_after_s, 1),
            }
            for name, child in self.supervisor.children.items()
        ]

    def chain_per_s(self) -> float | None:
        """Return events per second through the whole chain: from the first ride until every reader had every event."""
        timings = self.timings
        if timings.first_ride is None or timings.caught_up is None or timings.caught_up <= timings.first_ride:
            return None
        return round(self.watch.records / (timings.caught_up - timings.first_ride), 1)

    def rides_per_s(self) -> float | None:
        """Return booked rides per second while rides were played."""
        timings = self.timings
        end = timings.rides_done or time.monotonic()
        if timings.first_ride is None or end <= timings.first_ride:
            return None
        return round(self._rides_of_run() / (end - timings.first_ride), 1)


def zone_name(cell: str) -> str:
    """Return what people call the place of a cell."""
    zone = zone_of_cell(cell)
    return zone.name if zone is not None else "outside the city"


def _names(deed: Deed, finding: Finding) -> bool:
    where = (finding.topic, finding.partition, finding.offset)
    at_place = deed.offset is not None and where == (deed.topic, deed.partition, deed.offset)
    ids = [name for name in (deed.id, *deed.also) if name]
    return at_place or any(finding.id == name or name in finding.what for name in ids)


def _since(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else round(end - start, 2)
