"""Where riders go next: counts that back off from this rider at this hour to how far the city travels.

Five layers, each a smoothed share of destinations that takes the next, coarser one as its prior
(`(counts + strength · prior) / (total + strength)`):

1. this rider from here at this hour, this rider from here, this rider from anywhere
2. everyone from this area at this time: a kernel over half-hours of the day, weekdays and weekends apart
3. everyone from this area
4. everyone from the areas around it, by a kernel of distance
5. gravity: how popular a destination is, and how often trips go that far

Counts decay with event time (half-life 240 days) by letting new trips weigh more, so nothing is swept.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import exp
from typing import Final

import numpy as np
from numpy.typing import NDArray

from recommender.domain.areas import Areas
from recommender.domain.trips import DAY_S, Trip, hour_of_day, is_weekend

Floats = NDArray[np.float64]

SLOTS: Final = 48
"""Half-hours of a day."""
_DISTANCE_BUCKETS: Final = 61
_BUCKET_KM: Final = 0.5
_RESCALE_AT_HALF_LIVES: Final = 16.0  # float32 counts keep 24 bits: old ones have long faded by then
_PRIOR_AGE_TRIPS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationSettings:
    """Strengths of the priors (in trips) and widths of the kernels; chosen on February 2023, judged on March."""

    half_life_days: float = 240.0
    kernel_slots: float = 2.5
    kernel_reach_slots: int = 6
    other_day_share: float = 0.0
    neighbour_km: float = 1.2
    neighbour_strength: float = 20.0
    origin_strength: float = 10.0
    slot_strength: float = 40.0
    rider_strength: float = 3.0
    rider_anywhere_share: float = 0.25
    trips_per_rider: int = 64
    riders: int = 50_000


class Reason(StrEnum):
    """Why a destination is recommended."""

    RIDER_AT_THIS_HOUR = "rider_at_this_hour"
    RIDER_FROM_HERE = "rider_from_here"
    RIDER_BEFORE = "rider_before"
    USUAL_AT_THIS_HOUR = "usual_at_this_hour"
    USUAL_FROM_HERE = "usual_from_here"
    USUAL_AROUND_HERE = "usual_around_here"
    NEAR_AND_POPULAR = "near_and_popular"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedDestination:
    """A destination area, its estimated share of trips (0 to 1), and the layer that speaks for it most."""

    area: int
    share: float
    reason: Reason


@dataclass(frozen=True, slots=True)
class _Habit:
    origin: int
    destination: int
    started_s: float


@dataclass(slots=True)
class _Prior:
    """The share of destinations from the areas around an origin, and how many trips the model knew when it was made."""

    share: Floats
    trips: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layers:
    """The shares that led to an answer, coarse to fine."""

    around: Floats
    origin: Floats
    origin_counts: Floats
    slot: Floats
    slot_counts: Floats
    answer: Floats
    habits: Sequence[_Habit] = field(default=())


class DestinationModel:
    """Learns trips one by one and ranks destinations. Not durable: rebuilt by observing the stored trips again."""

    def __init__(self, areas: Areas, settings: DestinationSettings | None = None) -> None:
        self.settings = settings or DestinationSettings()
        self.trips = 0
        self._areas = areas
        size = areas.capacity
        self._origin_s: float | None = None  # the time at which a trip weighs 1
        self._city = np.zeros(size)
        self._flow = np.zeros((size, size))
        self._slots = np.zeros((size, 2, SLOTS, size), dtype=np.float32)
        self._travelled = np.ones(_DISTANCE_BUCKETS)
        reach = np.arange(-self.settings.kernel_reach_slots, self.settings.kernel_reach_slots + 1)
        self._reach = reach
        self._kernel = np.exp(-0.5 * (reach / self.settings.kernel_slots) ** 2).astype(np.float32)
        self._priors: dict[int, _Prior] = {}
        self._rings = np.zeros((size, size), dtype=np.int64)
        self._areas_per_ring = np.ones(_DISTANCE_BUCKETS)
        self._ringed = -1  # how many areas the two above were made for
        self._riders: OrderedDict[str, deque[_Habit]] = OrderedDict()

    def observe(self, trip: Trip) -> None:
        """Learn one completed trip, in any order of time."""
        weight = self._weight(trip.started_s)
        origin, destination = trip.origin, trip.destination
        slot = int(hour_of_day(trip.started_s) * 2)
        self._city[destination] += weight
        self._flow[origin, destination] += weight
        self._slots[origin, int(is_weekend(trip.started_s)), slot, destination] += weight
        ring = min(int(self._areas.distance_km[origin, destination] / _BUCKET_KM), _DISTANCE_BUCKETS - 1)
        self._travelled[ring] += weight
        self.trips += 1
        if trip.rider_id is not None:
            self._remember(trip.rider_id, _Habit(origin, destination, trip.started_s))

    def rank(
        self, origin: int, at_s: float, *, rider_id: str | None = None, limit: int = 10
    ) -> list[RankedDestination]:
        """Return up to `limit` destinations, best first; ties go to the lower index.

        Args:
            origin: The area where the rider is.
            at_s: When the rider wants to go, seconds on the wall clock.
            rider_id: Whose habits to look at.
            limit: How many destinations to return, at most.
        """
        layers = self._layers(origin, at_s, rider_id)
        best = self._best(layers.answer, limit)
        return [
            RankedDestination(
                area=area, share=float(layers.answer[area]), reason=self._reason(layers, area, origin, at_s)
            )
            for area in best
        ]

    def best(self, origin: int, at_s: float, *, limit: int = 10) -> list[int]:
        """Return only the areas of `rank` for a rider without habits: what the scoring needs."""
        return self._best(self._layers(origin, at_s, None).answer, limit)

    def _best(self, share: Floats, limit: int) -> list[int]:
        known = share[: len(self._areas)]
        if len(known) <= limit:
            return [int(area) for area in np.argsort(-known, kind="stable")]
        candidates = np.sort(np.argpartition(-known, limit - 1)[:limit])
        return [int(area) for area in candidates[np.argsort(-known[candidates], kind="stable")]]

    def _weight(self, at_s: float) -> float:
        """Return what a trip at `at_s` weighs; 2 for one that is a half-life younger than one that weighs 1."""
        half_life_s = self.settings.half_life_days * DAY_S
        if self._origin_s is None:
            self._origin_s = at_s
        if (at_s - self._origin_s) / half_life_s > _RESCALE_AT_HALF_LIVES:
            fade = 2.0 ** ((self._origin_s - at_s) / half_life_s)
            self._city *= fade
            self._flow *= fade
            self._slots *= np.float32(fade)
            self._travelled *= fade
            self._priors.clear()
            self._origin_s = at_s
        return float(2.0 ** max((at_s - self._origin_s) / half_life_s, -_RESCALE_AT_HALF_LIVES))

    def _unit(self, at_s: float) -> float:
        """Return what a trip at `at_s` would weigh, without learning anything: a question must not change the model."""
        if self._origin_s is None:
            return 1.0
        half_lives = (at_s - self._origin_s) / (self.settings.half_life_days * DAY_S)
        return float(2.0 ** min(max(half_lives, -_RESCALE_AT_HALF_LIVES), 2 * _RESCALE_AT_HALF_LIVES))

    def _layers(self, origin: int, at_s: float, rider_id: str | None) -> _Layers:
        settings = self.settings
        # One trip of today weighs `unit`, so counts are divided by it: strengths are in trips of today.
        unit = self._unit(at_s)
        around = self._around(origin, unit)
        origin_counts = self._flow[origin] / unit
        origin_share = _smoothed(origin_counts, settings.origin_strength, around)
        slots = (int(hour_of_day(at_s) * 2) + self._reach) % SLOTS
        weekend = int(is_weekend(at_s))
        slot_counts = self._kernel @ self._slots[origin, weekend].take(slots, axis=0)
        if settings.other_day_share:
            slot_counts = slot_counts + settings.other_day_share * (
                self._kernel @ self._slots[origin, 1 - weekend, slots]
            )
        slot_counts = slot_counts / unit
        slot_share = _smoothed(slot_counts, settings.slot_strength, origin_share)
        habits = tuple(self._riders.get(rider_id, ())) if rider_id is not None else ()
        return _Layers(
            around=around,
            origin=origin_share,
            origin_counts=origin_counts,
            slot=slot_share,
            slot_counts=slot_counts,
            answer=self._personal(slot_share, habits, origin, at_s) if habits else slot_share,
            habits=habits,
        )

    def _around(self, origin: int, unit: float) -> Floats:
        """Return layers 4 and 5 for an origin: they move slowly, so they are kept for some trips."""
        prior = self._priors.get(origin)
        if prior is not None and self.trips - prior.trips < _PRIOR_AGE_TRIPS:
            return prior.share
        known = len(self._areas)
        self._measure_rings()
        is_area = np.arange(self._areas.capacity) < known
        city = np.where(is_area, self._city / unit + 0.01, 0.0)
        gravity = city * (self._travelled / self._areas_per_ring)[self._rings[origin]]
        gravity /= gravity.sum()
        nearness = np.where(is_area, np.exp(-self._areas.distance_km[origin] / self.settings.neighbour_km), 0.0)
        nearness[origin] = 0.0
        close = np.flatnonzero(nearness > 1e-3)
        share = _smoothed(nearness[close] @ self._flow[close] / unit, self.settings.neighbour_strength, gravity)
        self._priors[origin] = _Prior(share, self.trips)
        return share

    def _measure_rings(self) -> None:
        """Find the ring that each area lies in around each other, once per set of areas.

        Trips per area of a ring, not per ring, are what attracts: so the areas of each ring are counted, too.
        """
        known = len(self._areas)
        if self._ringed != known:
            self._rings = np.minimum((self._areas.distance_km / _BUCKET_KM).astype(np.int64), _DISTANCE_BUCKETS - 1)
            inside = self._rings[:known, :known].ravel()
            self._areas_per_ring[:] = np.bincount(inside, minlength=_DISTANCE_BUCKETS) + 1.0
            self._ringed = known

    def _personal(self, share: Floats, habits: Sequence[_Habit], origin: int, at_s: float) -> Floats:
        """Return the share with the rider's own trips on top: anywhere → from here → from here at this hour."""
        half_life_s = self.settings.half_life_days * DAY_S
        anywhere, here, now = (np.zeros_like(share) for _ in range(3))
        for habit in habits:
            weight = 2.0 ** -(max(at_s - habit.started_s, 0.0) / half_life_s)
            if habit.destination != origin:
                anywhere[habit.destination] += weight * self.settings.rider_anywhere_share
            if habit.origin == origin:
                here[habit.destination] += weight
                now[habit.destination] += weight * _same_hour(habit.started_s, at_s)
        for counts in (anywhere, here, now):
            share = _smoothed(counts, self.settings.rider_strength, share)
        return share

    def _remember(self, rider_id: str, habit: _Habit) -> None:
        habits = self._riders.get(rider_id)
        if habits is None:
            habits = self._riders[rider_id] = deque(maxlen=self.settings.trips_per_rider)
            if len(self._riders) > self.settings.riders:
                self._riders.popitem(last=False)  # the rider who has been away for longest
        else:
            self._riders.move_to_end(rider_id)
        habits.append(habit)

    def _reason(self, layers: _Layers, area: int, origin: int, at_s: float) -> Reason:
        mine = [habit for habit in layers.habits if habit.destination == area]
        if any(habit.origin == origin and _same_hour(habit.started_s, at_s) > 0.3 for habit in mine):
            return Reason.RIDER_AT_THIS_HOUR
        if any(habit.origin == origin for habit in mine):
            return Reason.RIDER_FROM_HERE
        if mine:
            return Reason.RIDER_BEFORE
        if layers.slot_counts[area] >= 1.0 and layers.slot[area] > layers.origin[area]:
            return Reason.USUAL_AT_THIS_HOUR
        if layers.origin_counts[area] >= 1.0:
            return Reason.USUAL_FROM_HERE
        if layers.around[area] > 0.01:
            return Reason.USUAL_AROUND_HERE
        return Reason.NEAR_AND_POPULAR


def _smoothed(counts: Floats, strength: float, prior: Floats) -> Floats:
    return np.asarray((counts + strength * prior) / (counts.sum() + strength))


def _same_hour(then_s: float, now_s: float) -> float:
    """Return how alike two times of the week are: 1 at the same time of day, 0.3 of it on the other kind of day."""
    apart = abs(hour_of_day(then_s) - hour_of_day(now_s))
    apart = min(apart, 24 - apart)
    alike = exp(-0.5 * apart * apart)
    return alike if is_weekend(then_s) == is_weekend(now_s) else 0.3 * alike


__all__ = ["DestinationModel", "DestinationSettings", "RankedDestination", "Reason"]
