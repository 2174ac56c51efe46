"""Demand and supply per cell in event time: one-minute buckets, closed by the watermark, summed over five minutes."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from surge.domain.cells import parent

MINUTE_MS = 60_000
WINDOW_MS = 5 * MINUTE_MS
"""Demand counts who asked in the five minutes before the window's end."""
FRESH_MS = 30_000
"""Supply counts drivers who were seen less than this before the window's end."""
REQUEST_WEIGHT = 1.0
QUOTE_WEIGHT = 0.3
RING_SHARE = 0.5
"""What a free driver in a neighbouring cell counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested:
    """A rider asked for a ride: the pricing cell of the pickup, and the roll-up cell that holds the very point."""

    at_ms: int
    cell: str
    area: str
    ride_id: str
    rider_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Quoted:
    """A rider was shown a fare. A rider who accepts it makes a request in the same cell, which outweighs the quote."""

    at_ms: int
    cell: str
    rider_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A driver was seen. `cell` is None where the fact does not say, as for one who turned busy."""

    at_ms: int
    driver_id: str
    cell: str | None
    free: bool


Fact = Requested | Quoted | Seen

Sighting = tuple[int, bool, str]
"""When (Unix ms), whether not free, the cell or "": in this order, so that the larger one is what to believe."""


@dataclass(slots=True)
class CellDemand:
    """Who asked in one cell in one minute.

    H3 cells do not nest: near its edge a pricing cell reaches beyond its parent. `areas` holds the roll-up cell of
    rides whose pickup lies there.
    """

    rides: dict[str, str] = field(default_factory=dict)  # ride id → rider id
    areas: dict[str, str] = field(default_factory=dict)  # ride id → roll-up cell, if it is not the cell's parent
    quoted: set[str] = field(default_factory=set)  # rider ids


@dataclass(slots=True)
class Minute:
    """What happened in one minute. Sets and newest-wins entries only: the same fact twice changes nothing."""

    demand: dict[str, CellDemand] = field(default_factory=dict)  # cell → who asked
    sightings: dict[str, Sighting] = field(default_factory=dict)  # driver id → the last one


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Demand (weighted riders) and supply (weighted drivers) of one cell at a window's end."""

    demand: float
    supply: float


class Windows:
    """The minutes that are open, and the closed ones that a window still reaches back to.

    Facts may come in any order and more than once. A fact of a closed minute is late: counted, not applied.
    """

    __slots__ = ("closed_until_ms", "late_count", "minutes")

    def __init__(self, *, closed_until_ms: int | None = None, late_count: int = 0) -> None:
        self.closed_until_ms = closed_until_ms
        self.late_count = late_count
        self.minutes: dict[int, Minute] = {}

    def apply(self, fact: Fact) -> bool:
        """Count a fact in its minute; False when that minute is closed."""
        at_ms = fact.at_ms
        if self.closed_until_ms is not None and at_ms < self.closed_until_ms:
            self.late_count += 1
            return False
        start_ms = at_ms - at_ms % MINUTE_MS
        minute = self.minutes.get(start_ms)
        if minute is None:
            minute = self.minutes[start_ms] = Minute()
        if isinstance(fact, Seen):
            sighting = (at_ms, not fact.free, fact.cell or "")
            known = minute.sightings.get(fact.driver_id)
            if known is None or sighting > known:
                minute.sightings[fact.driver_id] = sighting
            return True
        cell = minute.demand.get(fact.cell)
        if cell is None:
            cell = minute.demand[fact.cell] = CellDemand()
        if isinstance(fact, Requested):
            cell.rides[fact.ride_id] = fact.rider_id
            if fact.area != parent(fact.cell):
                cell.areas[fact.ride_id] = fact.area
        else:
            cell.quoted.add(fact.rider_id)
        return True

    def demand(self, end_ms: int) -> dict[str, float]:
        """Weighted distinct riders per cell in the five minutes before `end_ms`."""
        asked: dict[str, set[str]] = {}
        quoted: dict[str, set[str]] = {}
        for start_ms in range(end_ms - WINDOW_MS, end_ms, MINUTE_MS):
            minute = self.minutes.get(start_ms)
            if minute is None:
                continue
            for cell, who in minute.demand.items():
                if who.rides:
                    asked.setdefault(cell, set()).update(who.rides.values())
                if who.quoted:
                    quoted.setdefault(cell, set()).update(who.quoted)
        weighted = {cell: REQUEST_WEIGHT * len(riders) for cell, riders in asked.items()}
        for cell, riders in quoted.items():
            only_quoted = len(riders - asked.get(cell, set()))
            weighted[cell] = weighted.get(cell, 0.0) + QUOTE_WEIGHT * only_quoted
        return weighted

    def free_drivers(self, end_ms: int) -> dict[str, int]:
        """Distinct drivers per cell who were last seen free, less than 30 s before `end_ms`."""
        minute = self.minutes.get(end_ms - MINUTE_MS)
        counts: dict[str, int] = {}
        if minute is not None:
            for at_ms, busy, cell in minute.sightings.values():
                if not busy and cell and end_ms - at_ms < FRESH_MS:
                    counts[cell] = counts.get(cell, 0) + 1
        return counts

    def activity(
        self, end_ms: int, *, also: Iterable[str], ring: Callable[[str], Sequence[str]]
    ) -> dict[str, Activity]:
        """Demand and supply at `end_ms` of every cell with demand, and of the cells in `also`."""
        demand = self.demand(end_ms)
        free = self.free_drivers(end_ms)
        return {
            cell: Activity(
                demand=demand.get(cell, 0.0),
                supply=free.get(cell, 0) + RING_SHARE * sum(free.get(other, 0) for other in ring(cell)),
            )
            for cell in sorted(demand.keys() | set(also))
        }

    def rides(self, start_ms: int, end_ms: int) -> dict[str, int]:
        """Rides requested per cell in the minutes of `[start_ms, end_ms)`, sorted by cell."""
        counts: dict[str, int] = {}
        for at_ms in range(start_ms, end_ms, MINUTE_MS):
            minute = self.minutes.get(at_ms)
            if minute is not None:
                for cell, who in minute.demand.items():
                    if who.rides:
                        counts[cell] = counts.get(cell, 0) + len(who.rides)
        return dict(sorted(counts.items()))

    def areas(self, start_ms: int, end_ms: int) -> dict[str, int]:
        """Rides requested per roll-up cell in the minutes of `[start_ms, end_ms)`, sorted by cell."""
        counts: dict[str, int] = {}
        for at_ms in range(start_ms, end_ms, MINUTE_MS):
            minute = self.minutes.get(at_ms)
            for cell, who in minute.demand.items() if minute is not None else ():
                for ride_id in who.rides:
                    area = who.areas.get(ride_id) or parent(cell)
                    counts[area] = counts.get(area, 0) + 1
        return dict(sorted(counts.items()))

    def close(self, end_ms: int) -> None:
        """Take no more facts before `end_ms`."""
        self.closed_until_ms = end_ms

    def forget_before(self, start_ms: int) -> None:
        """Drop the minutes that start before `start_ms`."""
        for gone in [start for start in self.minutes if start < start_ms]:
            del self.minutes[gone]
