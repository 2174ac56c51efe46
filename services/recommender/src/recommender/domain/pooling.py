"""Pooled rides: requests that start within five minutes and go from the same area to the same area."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

WINDOW_S: Final = 300.0
"""Two rides can be pooled when their requests are at most this far apart."""
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
    """An open ride that fits."""

    ride: OpenRide
    apart_s: float


class OpenRides:
    """The open requests of the last minutes, at most 20,000; the oldest leave first."""

    def __init__(self) -> None:
        self._rides: OrderedDict[str, OpenRide] = OrderedDict()
        self._by_route: dict[tuple[int, int], dict[str, OpenRide]] = {}

    def __len__(self) -> int:
        return len(self._rides)

    def open(self, ride: OpenRide) -> None:
        """Add a ride, and let go of those that no request can meet any more."""
        self.close(ride.ride_id)
        self._rides[ride.ride_id] = ride
        self._by_route.setdefault((ride.origin, ride.destination), {})[ride.ride_id] = ride
        while self._rides:
            oldest = next(iter(self._rides.values()))
            if oldest.requested_s >= ride.requested_s - 2 * WINDOW_S and len(self._rides) <= _MAX_OPEN:
                break
            self.close(oldest.ride_id)

    def close(self, ride_id: str) -> None:
        """Remove a ride that was pooled, ended or was cancelled, if it is here."""
        ride = self._rides.pop(ride_id, None)
        if ride is not None:
            route = (ride.origin, ride.destination)
            del self._by_route[route][ride_id]
            if not self._by_route[route]:
                del self._by_route[route]

    def matches(
        self, origin: int, destination: int, at_s: float, *, rider_id: str | None = None, limit: int = 3
    ) -> list[PooledMatch]:
        """Return open rides of others that go the same way as a request at `at_s`: who waits longest comes first.

        The next to leave the window is offered first, so that no pair is lost by waiting.
        """
        found = [
            PooledMatch(ride=ride, apart_s=abs(ride.requested_s - at_s))
            for ride in self._by_route.get((origin, destination), {}).values()
            if ride.rider_id != rider_id and abs(ride.requested_s - at_s) <= WINDOW_S
        ]
        found.sort(key=lambda match: (match.ride.requested_s, match.ride.ride_id))
        return found[:limit]


__all__ = ["WINDOW_S", "OpenRide", "OpenRides", "PooledMatch"]
