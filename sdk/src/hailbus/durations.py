"""Histograms of durations, with the buckets that OpenTelemetry's messaging conventions recommend."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Final

__all__ = ["BOUNDS_S", "Durations", "Histogram", "cumulative"]

BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Upper bounds of the buckets, inclusive, in seconds; a last bucket has no bound."""


class Histogram:
    """Counts durations by bucket.

    Attributes:
        counts: Durations in each bucket of `BOUNDS_S`, and last those above every bound.
        sum_s: Sum of all durations, in seconds.
    """

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    @property
    def count(self) -> int:
        """Number of durations."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """Return each bound with the number of durations up to it, as Prometheus exposes them."""
        return cumulative(self.counts)


def cumulative(counts: Sequence[int]) -> list[tuple[str, float]]:
    """Return each bound with the number of durations up to it, from the number in each bucket."""
    found, total = [], 0
    for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), counts, strict=True):
        total += count
        found.append((bound, float(total)))
    return found


class Durations:
    """Durations of one kind of operation, by topic and by the class of the error that ended it.

    Args:
        listener: Called with each duration, its topic and its error, for example to record it with OpenTelemetry.
    """

    __slots__ = ("_histograms", "listener")

    def __init__(self, listener: Callable[[float, str, str], None] | None = None) -> None:
        self.listener = listener
        self._histograms: dict[tuple[str, str], Histogram] = {}

    def of(self, topic: str, error: str = "") -> Histogram:
        """Return the histogram of a topic and an error, to which durations may be added directly."""
        histogram = self._histograms.get((topic, error))
        if histogram is None:
            histogram = self._histograms[topic, error] = Histogram()
        return histogram

    def observe(self, seconds: float, topic: str, error: str = "") -> None:
        """Count one duration.

        Args:
            seconds: How long the operation took.
            topic: Where the operation's records are.
            error: Class of the exception that ended the operation, empty after success.
        """
        self.of(topic, error).observe(seconds)
        if self.listener is not None:
            self.listener(seconds, topic, error)

    def __iter__(self) -> Iterator[tuple[str, str, Histogram]]:
        """Yield topic, error and histogram, sorted."""
        for (topic, error), histogram in sorted(self._histograms.items()):
            yield topic, error, histogram
