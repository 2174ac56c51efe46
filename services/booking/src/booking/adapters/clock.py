"""What time it is: by the wall, or by the events that a replay sends."""

from datetime import UTC, datetime
from typing import Final, Literal, Protocol

from hailbus.clock import utc_now


class BookingClock(Protocol):
    """Gives the present moment, and hears of moments that callers bring."""

    @property
    def name(self) -> Literal["wall", "event"]:
        """`wall` or `event`."""
        ...

    def now(self) -> datetime | None:
        """Return the present moment, `None` as long as nothing has told it."""
        ...

    def observe(self, moment: datetime) -> bool:
        """Hear of a moment; return whether the clock moved."""
        ...


class WallClock:
    """The machine's clock: moments of callers do not move it."""

    name: Final = "wall"

    def now(self) -> datetime | None:
        """Return the present moment."""
        return utc_now()

    def observe(self, moment: datetime) -> bool:  # noqa: ARG002 a wall clock has its own mind
        """Change nothing."""
        return False


class EventClock:
    """The highest event time seen. It starts where the database left it."""

    name: Final = "event"

    def __init__(self) -> None:
        self._now: datetime | None = None

    def now(self) -> datetime | None:
        """Return the highest moment seen, `None` before the first."""
        return self._now

    def observe(self, moment: datetime) -> bool:
        """Move on to a later moment."""
        if self._now is not None and moment <= self._now:
            return False
        self._now = moment
        return True


BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
"""What an event clock shows the outbox before the first event: no timer is due."""
