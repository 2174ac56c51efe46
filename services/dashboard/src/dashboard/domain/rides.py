"""Rides by the log: where each one is, and how many ended in which way."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final, Literal

from ride_events.geo import LatLng
from ride_events.rides import (
    RideCancelled,
    RideCompleted,
    RideDriverArrived,
    RideEvent,
    RideMatched,
    RideRedispatched,
    RideRepriced,
    RideRequested,
    RideStarted,
    RideUnmatched,
)

Phase = Literal["requested", "matched", "arrived", "riding", "completed", "cancelled", "unmatched"]
_ENDED_KEPT: Final = 200_000
_LATEST_ENDED: Final = 6
_METRES_PER_DEGREE: Final = 111_200.0
_CITY_SPEED_M_PER_S: Final = 5.5
_DETOUR: Final = 1.35


@dataclass(slots=True, kw_only=True)
class Ride:
    """An open ride. The moving thing goes from `start` to `end` between `t0_ms` and `t1_ms`, both event time."""

    ride_id: str
    seq: int
    phase: Phase
    pickup: LatLng
    dropoff: LatLng
    start: LatLng
    end: LatLng
    t0_ms: int
    t1_ms: int
    duration_ms: int


@dataclass(slots=True, kw_only=True)
class Counts:
    """Rides by their end. `unknown` are ends of rides whose request is not in the retained log."""

    requested: int = 0
    completed: int = 0
    cancelled: int = 0
    unmatched: int = 0
    unknown: int = 0
    repeated: int = 0


@dataclass(slots=True)
class RideBook:
    """All open rides, and how many ended in which way. Repeated events are counted, not applied."""

    counts: Counts = field(default_factory=Counts)
    open: dict[str, Ride] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    ended: list[tuple[str, Phase]] = field(default_factory=list)
    latest_ended: deque[Ride] = field(default_factory=lambda: deque(maxlen=_LATEST_ENDED))
    """For a page that is opened when no ride is under way any more."""
    _past: dict[int, None] = field(default_factory=dict)

    def is_new(self, ride_id: str) -> bool:
        """Return whether no event of a ride was applied."""
        return ride_id not in self.open and hash(ride_id) not in self._past

    def apply(self, event: RideEvent, at_ms: int, *, duration_s: int | None = None) -> None:
        """Take an event of a ride. `duration_s` is the quoted one of a request, where it is known."""
        ride = self.open.get(event.ride_id)
        if isinstance(event, RideRequested):
            if ride is not None or hash(event.ride_id) in self._past:
                self.counts.repeated += 1
                return
            self.counts.requested += 1
            self._open(event, at_ms, duration_s)
            return
        if ride is None:
            known = hash(event.ride_id) in self._past
            if known:
                self.counts.repeated += 1
            elif isinstance(event, (RideCompleted, RideCancelled, RideUnmatched)):
                self.counts.unknown += 1
                self._remember(event.ride_id)
            return
        if event.seq <= ride.seq:
            self.counts.repeated += 1
            return
        ride.seq = event.seq
        match event:
            case RideMatched():
                self._move(ride, "matched", event.driver_position, ride.pickup, at_ms, event.eta_s * 1000)
            case RideDriverArrived():
                self._move(ride, "arrived", ride.pickup, ride.pickup, at_ms, 0)
            case RideStarted():
                ride.pickup, ride.dropoff = event.pickup, event.dropoff
                self._move(ride, "riding", event.pickup, event.dropoff, at_ms, ride.duration_ms)
            case RideRedispatched():
                self._move(ride, "requested", ride.pickup, ride.pickup, at_ms, 0)
            case RideRepriced():
                ride.dropoff = event.dropoff
                if ride.phase == "riding":
                    ride.end = event.dropoff
                self.changed.add(ride.ride_id)
            case RideCompleted():
                self.counts.completed += 1
                self._close(ride.ride_id, "completed")
            case RideCancelled():
                self.counts.cancelled += 1
                self._close(ride.ride_id, "cancelled")
            case RideUnmatched():
                self.counts.unmatched += 1
                self._close(ride.ride_id, "unmatched")
            case _:
                pass  # a type that a later version of the language adds

    def _open(self, event: RideRequested, at_ms: int, duration_s: int | None) -> None:
        if duration_s is None:
            duration_s = int(_DETOUR * _metres(event.pickup, event.dropoff) / _CITY_SPEED_M_PER_S) + 60
        self.open[event.ride_id] = Ride(
            ride_id=event.ride_id,
            seq=event.seq,
            phase="requested",
            pickup=event.pickup,
            dropoff=event.dropoff,
            start=event.pickup,
            end=event.pickup,
            t0_ms=at_ms,
            t1_ms=at_ms,
            duration_ms=duration_s * 1000,
        )
        self.changed.add(event.ride_id)

    def _move(self, ride: Ride, phase: Phase, start: LatLng, end: LatLng, at_ms: int, lasts_ms: int) -> None:
        ride.phase, ride.start, ride.end = phase, start, end
        ride.t0_ms, ride.t1_ms = at_ms, at_ms + lasts_ms
        self.changed.add(ride.ride_id)

    def _close(self, ride_id: str, phase: Phase) -> None:
        ride = self.open.pop(ride_id)
        ride.phase = phase
        self.latest_ended.append(ride)
        self.changed.discard(ride_id)
        self.ended.append((ride_id, phase))
        self._remember(ride_id)

    def _remember(self, ride_id: str) -> None:
        self._past[hash(ride_id)] = None
        if len(self._past) > _ENDED_KEPT:
            del self._past[next(iter(self._past))]


def _metres(start: LatLng, end: LatLng) -> float:
    north = (end.lat - start.lat) * _METRES_PER_DEGREE
    east = (end.lng - start.lng) * _METRES_PER_DEGREE * 0.757  # cosine of New York's latitude
    return float((north * north + east * east) ** 0.5)


__all__ = ["Counts", "Phase", "Ride", "RideBook"]
