"""The two clocks of a broker."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, as people mean it: for timestamps. May jump."""
        ...

    def now_ms(self) -> int:
        """Milliseconds that never go back: for deadlines. Starts near `wall_ms`."""
        ...


class SystemClock:
    """The machine's clocks."""

    def __init__(self) -> None:
        self._offset_ms = time.time_ns() // 1_000_000 - time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        """See `Clock`."""
        return time.time_ns() // 1_000_000

    def now_ms(self) -> int:
        """See `Clock`."""
        return time.monotonic_ns() // 1_000_000 + self._offset_ms
