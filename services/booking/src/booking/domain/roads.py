"""How long ways by street are, and how fast cars drive them: estimated first, then learnt from trips."""

from dataclasses import dataclass
from typing import Final

from booking.domain.place import Place, great_circle_m

SHORTEST_LESSON_M: Final = 500
"""Below this great-circle distance a trip says little about detours: the ends of the way weigh too much."""
DETOURS: Final = (1.0, 3.0)
SPEEDS_M_PER_S: Final = (1.0, 40.0)
"""Trips outside these ranges teach nothing: a driver stopped on the way, or the odometer is wrong."""
PRIOR_TRIPS: Final = 50
MEMORY_TRIPS: Final = 1_000
"""The first estimate weighs as much as 50 trips; later a trip weighs at least a thousandth, so old ones fade."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roads:
    """The streets of a city, as two numbers.

    Attributes:
        detour: Length of a way by street over the great circle. It is between 1 and √2 in a street grid.
        speed_m_per_s: Mean speed of a trip, stops included. The default is 18 km/h, a car in a busy city.
        trips: How many trips the numbers have been learnt from.
    """

    detour: float = 1.35
    speed_m_per_s: float = 5.0
    trips: int = 0

    def way_m(self, start: Place, end: Place) -> int:
        """Estimate the way by street in metres."""
        return round(great_circle_m(start, end) * self.detour)

    def drive_s(self, way_m: int) -> int:
        """Estimate how long a car takes for a way by street, in seconds."""
        return round(way_m / self.speed_m_per_s)

    def learn(self, start: Place, end: Place, *, driven_m: int, took_s: int) -> "Roads":
        """Return the roads after one more trip, or these where the trip teaches nothing.

        Args:
            start: Where the trip began.
            end: Where it ended.
            driven_m: What the odometer says.
            took_s: By booking's clock.
        """
        straight_m = great_circle_m(start, end)
        if straight_m < SHORTEST_LESSON_M or took_s <= 0:
            return self
        detour, speed = driven_m / straight_m, driven_m / took_s
        if not DETOURS[0] <= detour <= DETOURS[1] or not SPEEDS_M_PER_S[0] <= speed <= SPEEDS_M_PER_S[1]:
            return self
        weight = 1 / (min(self.trips + PRIOR_TRIPS, MEMORY_TRIPS) + 1)
        return Roads(
            detour=self.detour + (detour - self.detour) * weight,
            speed_m_per_s=self.speed_m_per_s + (speed - self.speed_m_per_s) * weight,
            trips=self.trips + 1,
        )
