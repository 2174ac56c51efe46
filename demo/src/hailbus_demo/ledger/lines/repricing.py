"""Surge's prices, worked out anew from the events that surge read: the ledger's second account of surge.v1.

The formula is the published one: demand and supply per cell and minute, an exponential average, a share of the
neighbours', a limited step, tenths with hysteresis.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import h3
from ride_events.geo import PRICING_RESOLUTION

from hailbus_demo.ledger.log import FRESH_MS, LogReader, Step

MINUTE_MS: Final = 60_000
WINDOW_MINUTES: Final = 5
REQUEST_WEIGHT: Final = 1.0
QUOTE_WEIGHT: Final = 0.3
RING_SUPPLY_SHARE: Final = 0.5
ALPHA: Final = 3.0
BETA: Final = 0.5
CAP: Final = 3.0
KEEP_PER_MINUTE: Final = 0.5 ** (60 / 180.0)
"""What an average keeps in a minute, at a half-life of three."""
RING_PRICE_SHARE: Final = 0.25
STEP_PER_MINUTE: Final = 0.3
HYSTERESIS: Final = 0.1
QUANTUM: Final = 0.1
VALID_MS: Final = 300_000
REFRESH_MS: Final = 60_000
REST: Final = 1.005
EPSILON: Final = 1e-9

Riders = dict[tuple[str, int], set[str]]
"""Cell and minute → riders."""


class Update(NamedTuple):
    """An update that surge must have published."""

    cell: str
    version: int
    multiplier: float
    demand: float
    supply: float


class _Price(NamedTuple):
    average: float = 1.0
    level: float = 1.0
    multiplier: float = 1.0
    valid_until_ms: int = 0


def pricing_cell(cell: str) -> str | None:
    """Return the cell of the pricing resolution that holds a cell, `None` for one that is larger."""
    resolution = h3.get_resolution(cell)
    if resolution < PRICING_RESOLUTION:
        return None
    return cell if resolution == PRICING_RESOLUTION else str(h3.cell_to_parent(cell, PRICING_RESOLUTION))


@lru_cache(maxsize=100_000)
def _ring(cell: str) -> tuple[str, ...]:
    return tuple(sorted(str(other) for other in h3.grid_ring(cell, 1)))


def riders(trails: Iterable[list[Step]], kind: str) -> Riders:
    """Return who did something, by cell and minute, of the events of one type."""
    found: Riders = {}
    for steps in trails:
        for step in steps:
            if step.type == kind and (cell := pricing_cell(str(step.data["pickup_cell"]))) is not None:
                found.setdefault((cell, step.time_ms // MINUTE_MS), set()).add(str(step.data["rider_id"]))
    return found


def demand_at(asked: Riders, quoted: Riders, cell: str, end_minute: int) -> float:
    """Return the weighted riders of the five minutes before a minute begins."""
    minutes = range(end_minute - WINDOW_MINUTES, end_minute)
    requests: set[str] = set().union(*(asked.get((cell, minute), ()) for minute in minutes))
    quotes: set[str] = set().union(*(quoted.get((cell, minute), ()) for minute in minutes))
    return REQUEST_WEIGHT * len(requests) + QUOTE_WEIGHT * len(quotes - requests)


def reprice(reader: LogReader, asked: Riders, quoted: Riders, *, until_ms: int) -> list[Update]:
    """Return every update due until a moment, in order of time."""
    by_minute: dict[int, set[str]] = {}
    for cell, minute in asked.keys() | quoted.keys():
        for end in range(minute + 1, minute + WINDOW_MINUTES + 1):
            by_minute.setdefault(end, set()).add(cell)
    prices: dict[str, _Price] = {}
    updates: list[Update] = []
    pending = sorted(by_minute)
    if not pending:
        return []
    end = pending[0]
    while end * MINUTE_MS <= until_ms:
        cells = by_minute.get(end, set())
        if not cells and not prices:
            later = next((one for one in pending if one > end), None)
            if later is None:
                break
            end = later
            continue
        free = free_drivers(reader, end * MINUTE_MS)
        demand = {cell: demand_at(asked, quoted, cell, end) for cell in cells}
        after = _next_prices(prices, demand, free)
        for cell, price in after.items():
            due = price.multiplier != prices.get(cell, _Price()).multiplier
            if not due and (price.multiplier == 1.0 or price.valid_until_ms - end * MINUTE_MS > REFRESH_MS):
                continue
            after[cell] = price._replace(valid_until_ms=end * MINUTE_MS + VALID_MS)
            updates.append(Update(cell, end, price.multiplier, demand.get(cell, 0.0), _supply(free, cell)))
        prices = after
        end += 1
    return updates


def free_drivers(reader: LogReader, end_ms: int) -> dict[str, int]:
    """Return how many drivers were free in each pricing cell at the end of a minute."""
    free: dict[str, int] = {}
    for at_ms, busy, cell in reader.sightings.get(end_ms // MINUTE_MS - 1, {}).values():
        if not busy and cell and end_ms - at_ms < FRESH_MS and (priced := pricing_cell(cell)) is not None:
            free[priced] = free.get(priced, 0) + 1
    return free


def _supply(free: Mapping[str, int], cell: str) -> float:
    return free.get(cell, 0) + RING_SUPPLY_SHARE * sum(free.get(other, 0) for other in _ring(cell))


def _next_prices(
    prices: Mapping[str, _Price], demand: Mapping[str, float], free: Mapping[str, int]
) -> dict[str, _Price]:
    averages: dict[str, float] = {}
    for cell in prices.keys() | demand.keys():
        ratio = (demand.get(cell, 0.0) + ALPHA) / (_supply(free, cell) + ALPHA)
        raw = min(CAP, 1.0 + BETA * max(0.0, ratio - 1.0))
        averages[cell] = raw + (prices.get(cell, _Price()).average - raw) * KEEP_PER_MINUTE
    reached = set(averages)
    for cell, average in averages.items():
        if average > 1.0 + EPSILON:
            reached.update(_ring(cell))
    result: dict[str, _Price] = {}
    for cell in sorted(reached):
        before, average, around = prices.get(cell, _Price()), averages.get(cell, 1.0), _ring(cell)
        neighbours = sum(averages.get(other, 1.0) for other in around) / len(around)
        smoothed = (1 - RING_PRICE_SHARE) * average + RING_PRICE_SHARE * neighbours
        level = min(max(smoothed, before.level - STEP_PER_MINUTE), before.level + STEP_PER_MINUTE)
        multiplier = _quantised(level, before.multiplier)
        rests = multiplier == 1.0 and average < REST and level < REST
        if not rests or multiplier != before.multiplier:
            result[cell] = _Price(average, level, multiplier, before.valid_until_ms)
    return result


def _quantised(level: float, published: float) -> float:
    level = round(level, 2)
    if level >= published + HYSTERESIS - EPSILON:
        return round(math.floor(level / QUANTUM + EPSILON) * QUANTUM, 6)
    if level <= published - HYSTERESIS + EPSILON:
        return round(math.ceil(level / QUANTUM - EPSILON) * QUANTUM, 6)
    return published


__all__ = ["Riders", "Update", "demand_at", "pricing_cell", "reprice", "riders"]
