"""What a run is asked to do, checked before anything is started."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path

from hailbus_demo.city.plan import to_ms
from hailbus_demo.errors import UsageError

DEFAULT_START = datetime(2014, 5, 2, 17, 0)  # noqa: DTZ001  # wall time, read as UTC; a Friday at five
DEFAULT_SPEED = 30.0


class Outage(StrEnum):
    """How the payment provider is away: it refuses, answers nothing, or acts and loses its answers."""

    REFUSE = "refuse"
    HANG = "hang"
    LOSE_ANSWERS = "lose_answers"
    HANG_AFTER = "hang_after"


@dataclass(frozen=True, slots=True, kw_only=True)
class RideOptions:
    """Which rides, in which period, how fast. Times are event times in milliseconds, `None` for no bound."""

    rides: Path | None = None
    first_ms: int | None = None
    until_ms: int | None = None
    limit: int | None = None
    seed: int = 1
    rate: float | None = None
    cells: int | None = None
    speed: float | None = DEFAULT_SPEED
    supply: float = 1.3
    location_every_s: float | None = None
    duration_s: float | None = None
    in_flight: int = 128

    @property
    def is_bounded(self) -> bool:
        """Whether it is known when the run ends."""
        has_period = self.first_ms is not None and self.until_ms is not None
        return has_period or self.limit is not None or self.duration_s is not None


def parse_speed(text: str) -> float | None:
    """Return event seconds per second, `None` for `max`.

    Raises:
        UsageError: Neither a positive number nor `max`.
    """
    if text.strip().lower() == "max":
        return None
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < 1e6:
        raise UsageError(f"--speed {text} is no speed: give a number above 0, such as 60, or max")
    return speed


def parse_time(text: str, *, option: str) -> int:
    """Return a local wall time such as 2014-05-01 or 2014-05-01T07:30 as event time.

    Raises:
        UsageError: It is none.
    """
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(f"{option} {text} is no time: write it as 2014-05-01 or 2014-05-01T07:30") from None
    return to_ms(time.replace(tzinfo=None))


def parse_period(day: str | None, first: str | None, until: str | None) -> tuple[int | None, int | None]:
    """Return the period that `--day`, or `--from` and `--until`, name.

    Raises:
        UsageError: They contradict each other.
    """
    if day is not None:
        if first is not None or until is not None:
            raise UsageError("--day names the whole period: leave out --from and --until")
        start = parse_time(day, option="--day")
        return start, start + int(timedelta(days=1).total_seconds() * 1000)
    first_ms = None if first is None else parse_time(first, option="--from")
    until_ms = None if until is None else parse_time(until, option="--until")
    if first_ms is not None and until_ms is not None and until_ms <= first_ms:
        raise UsageError(f"--until {until} is not after --from {first}: swap them or choose others")
    return first_ms, until_ms


def parse_duration(text: str) -> float:
    """Return seconds of a duration such as 90, 90s, 5m or 1h.

    Raises:
        UsageError: It is none.
    """
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, factor = text.strip().lower(), 1.0
    if number and number[-1] in units:
        factor, number = units[number[-1]], number[:-1]
    try:
        seconds = float(number) * factor
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e7:
        raise UsageError(f"--duration {text} is no duration: write it as 90s, 5m or 1h")
    return seconds


def parse_address(text: str, *, option: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT.

    Raises:
        UsageError: It is none.
    """
    host, _, port = text.strip().rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise UsageError(f"{option} {text} is no address: write it as HOST:PORT, such as 127.0.0.1:9092")
    return host.strip("[]"), int(port)
