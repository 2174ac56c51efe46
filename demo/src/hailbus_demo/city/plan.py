"""What riders and drivers will do: plans in event time, made before anything is sent, the same for the same seed."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

Place = tuple[float, float]
"""Latitude and longitude in WGS-84 degrees."""
HOURS_PER_WEEK = 168
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MONDAY = datetime(1970, 1, 5, tzinfo=UTC)
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RidePlan:
    """One rider's wish, and what the rider and the drivers who take it will do about it.

    Times are event times in milliseconds since 1970 (local wall time read as UTC). `key` is unique in its source and
    names the rider's requests. A rider whose `accepts` is false only looks at a quote; one whose quote is dearer than
    `max_multiplier` asks once more some minutes later and takes that. `gives_up` is the stage in which the rider
    cancels, so long after it began.
    A rider who `shares` would go with somebody who goes the same way, and asks the recommender for such a rider.
    The first `driver_cancels` drivers cancel `driver_cancels_after_ms` after they were matched.
    `simulated` is false for a ride whose pickup a recording holds.
    """

    key: str
    asks_at_ms: int
    rider_id: str
    pickup: Place
    dropoff: Place
    passengers: int
    distance_m: int
    duration_s: int
    fleet: str
    asks_recommender: bool
    shares: bool
    accepts: bool
    accepts_after_ms: int
    max_multiplier: float
    gives_up: Literal["requested", "matched", "arrived"] | None
    gives_up_after_ms: int
    driver_cancels: int
    driver_cancels_after_ms: int
    boards_after_ms: int
    simulated: bool

    @property
    def at_ms(self) -> int:
        """When it begins."""
        return self.asks_at_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverStarts:
    """A driver goes online at a place."""

    at_ms: int
    driver_id: str
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverStops:
    """A driver's shift ends: offline, after the ride if there is one."""

    at_ms: int
    driver_id: str


Plan = RidePlan | DriverStarts | DriverStops


def as_line(plan: Plan) -> str:
    """Return a plan as one line of JSON, keys in order of declaration: equal plans give equal bytes."""
    return json.dumps({"plan": type(plan).__name__, **asdict(plan)}, separators=(",", ":"))


def to_ms(time: datetime) -> int:
    """Return milliseconds since 1970 of a time; one without zone is read as UTC."""
    aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return (aware - EPOCH) // timedelta(milliseconds=1)


def to_datetime(ms: int) -> datetime:
    """Return the time of milliseconds since 1970."""
    return EPOCH + timedelta(milliseconds=ms)


def to_text(ms: int) -> str:
    """Return the time as ISO 8601 with milliseconds and Z."""
    return to_datetime(ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def hour_of_week(ms: int) -> int:
    """Return 0 for Monday 00:00–00:59 to 167 for Sunday 23:00–23:59."""
    return ((ms - to_ms(MONDAY)) // HOUR_MS) % HOURS_PER_WEEK
