"""What time it is: by the wall, or the highest event time that callers brought."""

from datetime import UTC, datetime
from typing import Final, Literal

from hailbus.clock import utc_now

BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""What an event clock shows before the first event."""


class Clock:
    """By the wall, or by events: then it only ever moves forward, as `observe` tells it."""

    def __init__(self, name: Literal["wall", "event"]) -> None:
        self.name = name
        self._now = BEGINNING

    def now(self) -> datetime:
        """Return the present moment."""
        return utc_now() if self.name == "wall" else self._now

    @property
    def is_set(self) -> bool:
        """Whether it knows what time it is."""
        return self.name == "wall" or self._now > BEGINNING

    def observe(self, moment: datetime) -> bool:
        """Hear of a moment; return whether the clock moved."""
        if self.name == "wall" or moment <= self._now:
            return False
        self._now = moment
        return True
