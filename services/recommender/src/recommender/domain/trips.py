"""What the models learn from."""

from dataclasses import dataclass
from datetime import UTC, datetime

HOUR_S = 3600
DAY_S = 24 * HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Trip:
    """A completed trip between two areas (indices of `Areas`).

    Times are seconds since 1970-01-01 on the city's wall clock: hours of the day are read off them as they are.
    """

    origin: int
    destination: int
    started_s: float
    rider_id: str | None = None


def wall_seconds(time: datetime) -> float:
    """Return the seconds since 1970-01-01 of a wall time; a naive time counts as UTC, as the recordings' times do."""
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def is_weekend(seconds: float) -> bool:
    """Return whether a wall time lies on a Saturday or Sunday."""
    return int(seconds // DAY_S + 3) % 7 >= 5  # 1970-01-01 was a Thursday


def hour_of_day(seconds: float) -> float:
    """Return the hour of the day, 0 ≤ hour < 24, of a wall time."""
    return seconds % DAY_S / HOUR_S


__all__ = ["DAY_S", "HOUR_S", "Trip", "hour_of_day", "is_weekend", "wall_seconds"]
