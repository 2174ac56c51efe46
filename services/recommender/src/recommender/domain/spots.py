"""Better pickup spots: the res-11 cells of the passenger's res-9 cell where pickups work out most often."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import h3

from recommender.domain.trips import DAY_S, hour_of_day, is_weekend

SPOT_RESOLUTION: Final = 11
BLOCK_RESOLUTION: Final = 9
_DAY_PART_HOURS: Final = 4
_ALL_DAY_SHARE: Final = 0.1
_HALF_LIFE_DAYS: Final = 21.0
_RESCALE_AT_HALF_LIVES: Final = 500.0  # Python floats reach 2**1023


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedSpot:
    """A res-11 cell and its share (0 to 1) of the pickups of its block at this time of day."""

    cell: str
    share: float


class PickupSpots:
    """Counts of pickups per res-11 cell with a half-life of 21 days, by part of the day and over all.

    Bounded by the city: 49 cells of 12 parts per block at most.
    """

    def __init__(self) -> None:
        self.pickups = 0
        self._origin_s: float | None = None
        self._all_day: dict[str, dict[str, float]] = {}
        self._by_part: dict[tuple[str, int], dict[str, float]] = {}

    def observe(self, cell: str, at_s: float) -> None:
        """Learn one pickup. `cell` is res 11 or finer, `at_s` seconds on the wall clock."""
        if h3.get_resolution(cell) > SPOT_RESOLUTION:
            cell = h3.cell_to_parent(cell, SPOT_RESOLUTION)
        weight = self._weight(at_s)
        block = h3.cell_to_parent(cell, BLOCK_RESOLUTION)
        for counts in (self._all_day.setdefault(block, {}), self._by_part.setdefault((block, _day_part(at_s)), {})):
            counts[cell] = counts.get(cell, 0.0) + weight
        self.pickups += 1

    def rank(self, block: str, at_s: float, *, limit: int = 3) -> list[RankedSpot]:
        """Return up to `limit` spots in a res-9 cell, best first; none where no pickup was seen yet."""
        all_day = self._all_day.get(block)
        if not all_day:
            return []
        part = self._by_part.get((block, _day_part(at_s)), {})
        scores = {cell: part.get(cell, 0.0) + _ALL_DAY_SHARE * count for cell, count in all_day.items()}
        total = sum(scores.values())
        best = sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:limit]
        return [RankedSpot(cell=cell, share=score / total) for cell, score in best]

    def _weight(self, at_s: float) -> float:
        if self._origin_s is None:
            self._origin_s = at_s
        half_lives = (at_s - self._origin_s) / (_HALF_LIFE_DAYS * DAY_S)
        if half_lives > _RESCALE_AT_HALF_LIVES:
            fade = 2.0**-half_lives if half_lives < 1000 else 0.0
            tables: Iterable[dict[str, float]] = (*self._all_day.values(), *self._by_part.values())
            for counts in tables:
                for cell in counts:
                    counts[cell] *= fade
            self._origin_s, half_lives = at_s, 0.0
        return float(2.0 ** max(half_lives, -_RESCALE_AT_HALF_LIVES))


def _day_part(at_s: float) -> int:
    return int(hour_of_day(at_s) // _DAY_PART_HOURS) + (6 if is_weekend(at_s) else 0)


__all__ = ["BLOCK_RESOLUTION", "SPOT_RESOLUTION", "PickupSpots", "RankedSpot"]
