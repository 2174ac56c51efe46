"""What the model must beat: heuristics that need a line of arithmetic each. Learned once, never updated."""

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from recommender.domain.areas import Areas
from recommender.domain.trips import Trip, hour_of_day, is_weekend

Floats = NDArray[np.float64]
_DECAY_KM: Final = 3.0


class Baseline(Protocol):
    """Ranks destinations for an origin and a time."""

    @property
    def name(self) -> str:
        """What the table calls it."""
        ...

    def scores(self, origin: int, at_s: float) -> Floats:
        """Return a score per area; more is better."""
        ...


class Popularity:
    """The city's most frequent destinations, wherever the rider is."""

    name = "global popularity"

    def __init__(self, areas: Areas, trips: Sequence[Trip]) -> None:
        self._scores = np.bincount([trip.destination for trip in trips], minlength=areas.capacity).astype(np.float64)

    def scores(self, origin: int, at_s: float) -> Floats:  # noqa: ARG002 a baseline needs less than the interface gives
        """Return trips per destination."""
        return self._scores


class Nearest:
    """The areas whose centres are nearest."""

    name = "nearest zones"

    def __init__(self, areas: Areas, trips: Sequence[Trip]) -> None:  # noqa: ARG002 a baseline needs less than the interface gives
        self._areas = areas

    def scores(self, origin: int, at_s: float) -> Floats:  # noqa: ARG002 a baseline needs less than the interface gives
        """Return the distance, negated."""
        return np.asarray(-self._areas.distance_km[origin])


class Gravity:
    """Popularity that decays with distance, e-fold per 3 km."""

    name = "gravity (popularity × distance decay)"

    def __init__(self, areas: Areas, trips: Sequence[Trip]) -> None:
        self._areas = areas
        self._popularity = Popularity(areas, trips).scores(0, 0.0)

    def scores(self, origin: int, at_s: float) -> Floats:  # noqa: ARG002 a baseline needs less than the interface gives
        """Return popularity times decay."""
        return np.asarray(self._popularity * np.exp(-self._areas.distance_km[origin] / _DECAY_KM))


class OriginPopularity:
    """The most frequent destinations from the rider's area."""

    name = "popularity by pickup zone"

    def __init__(self, areas: Areas, trips: Sequence[Trip]) -> None:
        self._flow = np.zeros((areas.capacity, areas.capacity))
        for trip in trips:
            self._flow[trip.origin, trip.destination] += 1

    def scores(self, origin: int, at_s: float) -> Floats:  # noqa: ARG002 a baseline needs less than the interface gives
        """Return trips per destination from the origin."""
        return np.asarray(self._flow[origin])


class OriginHourPopularity:
    """The most frequent destinations from the rider's area at this hour on this kind of day; ties by the area's own."""

    name = "pickup zone × hour × day type, raw counts"

    def __init__(self, areas: Areas, trips: Sequence[Trip]) -> None:
        self._counts = np.zeros((areas.capacity, 2, 24, areas.capacity), dtype=np.float32)
        for trip in trips:
            kind, hour = int(is_weekend(trip.started_s)), int(hour_of_day(trip.started_s))
            self._counts[trip.origin, kind, hour, trip.destination] += 1
        self._flow = OriginPopularity(areas, trips)

    def scores(self, origin: int, at_s: float) -> Floats:
        """Return trips per destination in this hour; an all-day trip counts a millionth, to break ties."""
        counts = self._counts[origin, int(is_weekend(at_s)), int(hour_of_day(at_s))]
        return np.asarray(counts + 1e-6 * self._flow.scores(origin, at_s))


BASELINES = (Popularity, Nearest, Gravity, OriginPopularity, OriginHourPopularity)

__all__ = ["BASELINES", "Baseline", "Gravity", "Nearest", "OriginHourPopularity", "OriginPopularity", "Popularity"]
