"""The one place of the SDK that reads the wall clock; everything else is given a `Clock`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Literal

__all__ = ["Clock", "ServiceClock", "micros", "skipping", "utc_now"]

Clock = Callable[[], datetime]
"""Gives the present moment, aware, in UTC."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


_skipped_s: Callable[[], float] | None = None
"""How much time a virtual loop has skipped; None outside of tests."""


def utc_now() -> datetime:
    """Return the present moment by the wall clock.

    While a virtual event loop runs (`hailbus.testing`), the time that it has skipped is added.
    """
    now = datetime.now(UTC)  # noqa: TID251 this is the edge that reads the clock
    return now if _skipped_s is None else now + timedelta(seconds=_skipped_s())


@contextmanager
def skipping(skipped_s: Callable[[], float]) -> Iterator[None]:
    """Add skipped time to `utc_now` inside this context. A virtual event loop does so while it runs."""
    global _skipped_s  # noqa: PLW0603 there is one wall clock
    before, _skipped_s = _skipped_s, skipped_s
    try:
        yield
    finally:
        _skipped_s = before


def micros(moment: datetime) -> int:
    """Microseconds since the epoch: databases compare them alike, and SQLite keeps no time zones."""
    return (moment - EPOCH) // _MICROSECOND


class ServiceClock:
    """What time it is for a service: by the wall, or by the events of a replay.

    A replay runs at any speed, so its time is the highest event time that callers brought; before the first it stands
    at the epoch, when no schedule is due.

    Args:
        name: `wall` or `event`.
    """

    def __init__(self, name: Literal["wall", "event"]) -> None:
        self.name = name
        self._now = EPOCH

    def now(self) -> datetime:
        """The present moment."""
        return utc_now() if self.name == "wall" else self._now

    @property
    def is_set(self) -> bool:
        """Whether it knows what time it is: an event clock does after the first event."""
        return self.name == "wall" or self._now > EPOCH

    def observe(self, moment: datetime) -> bool:
        """Hear of a moment; whether the clock moved. A wall clock has its own mind."""
        if self.name == "wall" or moment <= self._now:
            return False
        self._now = moment
        return True
