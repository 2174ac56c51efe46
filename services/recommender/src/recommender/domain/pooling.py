"""Pooled rides: requests that start within five minutes and go the same way."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import numpy as np

from recommender.domain.areas import Areas

WINDOW_S: Final = 300.0
"""Two rides can be pooled when their requests are at most this far apart."""
NEAR_KM: Final = 1.5
"""Areas whose centres are at most this far apart are near each other."""
_MAX_OPEN: Final = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRide:
    """A requested ride that may still be shared. `requested_s` is seconds on the wall clock."""

    ride_id: str
    rider_id: str
    origin: int
    destination: int
    requested_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledMatch:
    """An open ride that fits. `detour_km` is the distance between both origins plus that between both destinations."""

    ride: OpenRide
    is_same_route: bool
    detour_km: float
    apart_s: float


class OpenRides:
    """The open requests of the last minutes, at most 20,000; the oldest leave first."""

    def __init__(self, areas: Areas) -> None:
        self._areas = areas
        self._rides: OrderedDict[str, OpenRide] = OrderedDict()
        self._by_origin: dict[int, set[str]] = {}
        self._near_to: dict[int, list[int]] = {}
        self._near_known = 0

    def __len__(self) -> int:
        return len(self._rides)

    def open(self, ride: OpenRide) -> None:
        """Add a ride, and let go of those that no request can meet any more."""
        self.close(ride.ride_id)
        self._rides[ride.ride_id] = ride
        self._by_origin.setdefault(ride.origin, set()).add(ride.ride_id)
        while self._rides:
            oldest = next(iter(self._rides.values()))
            if oldest.requested_s >= ride.requested_s - 2 * WINDOW_S and len(self._rides) <= _MAX_OPEN:
                break
            self.close(oldest.ride_id)

    def close(self, ride_id: str) -> None:
        """Remove a ride that ended or was cancelled, if it is here."""
        ride = self._rides.pop(ride_id, None)
        if ride is not None:
            self._by_origin[ride.origin].discard(ride_id)

    def matches(
        self, origin: int, destination: int, at_s: float, *, rider_id: str | None = None, limit: int = 3
    ) -> list[PooledMatch]:
        """Return open rides of others that fit a request at `at_s`: equal routes first, then by detour and time."""
        from_origin = self._areas.distance_km[origin]
        from_destination = self._areas.distance_km[destination]
        found = []
        for start in self._near(origin):
            for ride_id in self._by_origin.get(start, ()):
                ride = self._rides[ride_id]
                apart_s = abs(ride.requested_s - at_s)
                if ride.rider_id == rider_id or apart_s > WINDOW_S or from_destination[ride.destination] > NEAR_KM:
                    continue
                is_same = ride.origin == origin and ride.destination == destination
                detour = float(from_origin[ride.origin] + from_destination[ride.destination])
                found.append(PooledMatch(ride=ride, is_same_route=is_same, detour_km=detour, apart_s=apart_s))
        found.sort(key=lambda match: (not match.is_same_route, match.detour_km, match.apart_s, match.ride.ride_id))
        return found[:limit]

    def _near(self, area: int) -> list[int]:
        """Return the areas near one, itself included; looked up once per set of areas."""
        if self._near_known != len(self._areas):
            self._near_known = len(self._areas)
            self._near_to.clear()
        near = self._near_to.get(area)
        if near is None:
            distances = self._areas.distance_km[area, : len(self._areas)]
            near = self._near_to[area] = [int(other) for other in np.flatnonzero(distances <= NEAR_KM)]
        return near


__all__ = ["NEAR_KM", "WINDOW_S", "OpenRide", "OpenRides", "PooledMatch"]
