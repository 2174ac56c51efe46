"""Token buckets: each caller may send so many requests a second, and a burst after a pause."""

import math
from typing import Final

from booking.domain.caller import Caller

CALLERS_MAX: Final = 100_000
"""Buckets that are kept. Beyond that, the caller who has been silent longest starts with a full one again."""


class RateLimit:
    """A bucket for each caller. It reads no clock: the caller of `take` says what time it is.

    With the event clock that is event time. Whether a request is limited then depends on the requests and their times
    alone, not on how fast a replay runs.

    Args:
        per_s: Requests a second that a bucket gains.
        burst: Requests that a full bucket holds.
    """

    def __init__(self, *, per_s: float, burst: int, callers_max: int = CALLERS_MAX) -> None:
        self._per_s = per_s
        self._burst = float(burst)
        self._callers_max = callers_max
        self._buckets: dict[Caller, tuple[float, float]] = {}

    def take(self, caller: Caller, now_s: float) -> int:
        """Take one request out of the caller's bucket.

        Args:
            caller: Whose bucket.
            now_s: The time in seconds. A time before the caller's last one counts as that one.

        Returns:
            0, or the whole seconds after which the bucket holds a request again.
        """
        held, at_s = self._buckets.pop(caller, (self._burst, now_s))
        if now_s > at_s:
            held, at_s = min(self._burst, held + (now_s - at_s) * self._per_s), now_s
        allowed = held >= 1.0
        self._buckets[caller] = (held - 1.0 if allowed else held, at_s)
        if len(self._buckets) > self._callers_max:
            del self._buckets[next(iter(self._buckets))]
        return 0 if allowed else max(1, math.ceil((1.0 - held) / self._per_s))
