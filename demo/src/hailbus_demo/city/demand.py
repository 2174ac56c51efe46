"""More riders than the source of the rides has: a factor on all of them, and crowds at one place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Final

from hailbus_demo.city.plan import Plan, RidePlan, hour_of_week
from hailbus_demo.city.table import City

LEAST_FACTOR: Final = 1.0
MOST_FACTOR: Final = 4.0
CROWD_ZONE: Final = 230
"""Times Sq/Theatre District."""
SPREAD_MS: Final = 20_000
"""A crowd asks within this event time, and so do the further riders of one rider."""


class Demand:
    """Adds riders to the plans of a run. No driver is added for them: they wait, and prices rise.

    Args:
        city: Where they go.

    Attributes:
        factor: Riders for each rider of the source, from `LEAST_FACTOR` to `MOST_FACTOR`.
    """

    def __init__(self, city: City) -> None:
        self.city = city
        self.factor = LEAST_FACTOR
        self._visitors = 0
        self._crowd = 0

    def gather(self, riders: int) -> None:
        """Have a crowd at Times Square ask for rides, soon after the next rider of the source."""
        self._crowd += riders

    @property
    def gathering(self) -> int:
        """Riders of a crowd who have not been planned yet."""
        return self._crowd

    def added_to(self, plans: Iterator[Plan]) -> Iterator[Plan]:
        """Yield the plans of the source, each rider's followed by those who come on top."""
        for plan in plans:
            yield plan
            if not isinstance(plan, RidePlan):
                continue
            random = Random(f"{plan.key}:visitors")
            crowd, self._crowd = self._crowd, 0
            for _ in range(crowd):
                yield self._visitor(plan, CROWD_ZONE, random)
            extra = self.factor - 1
            for _ in range(int(extra) + (random.random() < extra % 1)):
                yield self._visitor(plan, self.city.zone_of(plan.pickup), random)

    def _visitor(self, like: RidePlan, zone: int, random: Random) -> RidePlan:
        """One more rider, who asks in a zone soon after another one, and takes what it costs."""
        self._visitors += 1
        pickup = self.city.place_in_zone(zone, random)
        dropoff = self.city.place_in_zone(self.city.destination_zone(zone, random), random)
        distance_m, duration_s = self.city.trip(pickup, dropoff, hour_of_week(like.asks_at_ms), random)
        return replace(
            like,
            key=f"{like.key}-visitor-{self._visitors}",
            rider_id=f"visitor-{like.key}-{self._visitors}",
            asks_at_ms=like.asks_at_ms + random.randrange(SPREAD_MS),
            pickup=pickup,
            dropoff=dropoff,
            distance_m=distance_m,
            duration_s=duration_s,
            accepts=True,
            max_multiplier=99.0,
            shares=False,
            simulated=True,
        )
