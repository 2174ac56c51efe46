"""Who is near: free drivers and waiting riders by H3 cell, looked up ring by ring."""

from collections.abc import Callable, Iterator
from datetime import datetime
from functools import lru_cache
from typing import Generic, TypeVar

import h3

from booking.domain.driver import Driver
from booking.domain.place import Place, great_circle_m
from booking.domain.ride import Ride

T = TypeVar("T")


@lru_cache(maxsize=16_384)
def ring(cell: str, k: int) -> tuple[str, ...]:
    """Return the cells at grid distance `k`; 6·k of them, fewer beside a pentagon."""
    return tuple(h3.grid_ring(cell, k))


class CellIndex(Generic[T]):
    """Things by key and by cell. Bounded by what is free or waiting in the city; order of insertion is kept."""

    def __init__(self) -> None:
        self._by_cell: dict[str, dict[str, T]] = {}
        self._cell_of: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._cell_of)

    def __contains__(self, key: object) -> bool:
        return key in self._cell_of

    def put(self, key: str, cell: str, thing: T) -> None:
        """Add a thing, or replace it; in the same cell it keeps its turn."""
        if self._cell_of.get(key) != cell:
            self.discard(key)
        self._by_cell.setdefault(cell, {})[key] = thing
        self._cell_of[key] = cell

    def discard(self, key: str) -> None:
        """Take a thing out, if it is in."""
        cell = self._cell_of.pop(key, None)
        if cell is not None:
            there = self._by_cell[cell]
            del there[key]
            if not there:
                del self._by_cell[cell]

    def rings(self, cell: str, rings: int) -> Iterator[list[T]]:
        """Yield what is in the cell itself, then what is in each ring around it, up to `rings`; empty ones left out."""
        if not self._by_cell:
            return
        if len(self._by_cell) <= 6 * rings:
            # Fewer taken cells than one outer ring has: measure to those instead of walking the rings.
            by_distance: dict[int, list[T]] = {}
            for taken, there in self._by_cell.items():
                distance = _grid_distance(cell, taken)
                if distance is not None and distance <= rings:
                    by_distance.setdefault(distance, []).extend(there.values())
            for distance in sorted(by_distance):
                yield by_distance[distance]
            return
        for k in range(rings + 1):
            found = [thing for near in ring(cell, k) for thing in self._by_cell.get(near, {}).values()]
            if found:
                yield found


@lru_cache(maxsize=65_536)
def _grid_distance(a: str, b: str) -> int | None:
    try:
        return int(h3.grid_distance(a, b))
    except h3.H3BaseException:  # too far apart, or a pentagon between them: not near
        return None


def nearest_driver(
    free: CellIndex[Driver], pickup: Place, *, rings: int, heard_since: datetime, allowed: Callable[[Driver], bool]
) -> Driver | None:
    """Return the allowed free driver who is the first to arrive, of those heard of since a moment.

    Estimated arrivals are distances at the speed and detour of the whole city, so the shortest distance decides, then
    the id, so that a replay decides alike. The rings only bound who is looked at: a driver beyond a cell's border is
    often nearer than one in the same cell.
    """
    candidates = (
        (great_circle_m(driver.position, pickup), driver.driver_id, driver)
        for found in free.rings(pickup.cell, rings)
        for driver in found
        if driver.position is not None and driver.heard_at >= heard_since and allowed(driver)
    )
    first = min(candidates, key=lambda candidate: candidate[:2], default=None)
    return None if first is None else first[2]


def nearest_waiting(waiting: CellIndex[Ride], driver: Driver, *, rings: int, heard_since: datetime) -> Ride | None:
    """Return the waiting ride for a free driver: by ring, then who waits longest, then by id.

    A driver who was not heard of since a moment gets none.
    """
    if driver.position is None or driver.heard_at < heard_since:
        return None
    for found in waiting.rings(driver.position.cell, rings):
        candidates = [ride for ride in found if driver.driver_id not in ride.declined]
        if candidates:
            return min(candidates, key=lambda ride: (ride.requested_at, ride.ride_id))
    return None
