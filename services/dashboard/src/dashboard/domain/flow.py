"""Records per second, and how old the oldest record is that a group has not taken yet."""

from bisect import bisect_left
from collections import deque
from typing import Final

Partition = tuple[str, int]
Link = tuple[str, str]
"""Source and topic."""
_WINDOW_TICKS: Final = 16
_SAMPLES: Final = 1_200
_SAMPLE_MS: Final = 250


class Flow:
    """Counts per source and topic, in all and per second over the last 16 ticks. Few of both, so no bound is needed."""

    def __init__(self, *, tick_s: float) -> None:
        self._tick_s = tick_s
        self.totals: dict[Link, int] = {}
        self._now: dict[Link, int] = {}
        self._ticks: deque[dict[Link, int]] = deque(maxlen=_WINDOW_TICKS)

    def count(self, source: str, topic: str) -> None:
        """Count one record."""
        link = (source, topic)
        self.totals[link] = self.totals.get(link, 0) + 1
        self._now[link] = self._now.get(link, 0) + 1

    def tick(self) -> None:
        """End a tick."""
        self._ticks.append(self._now)
        self._now = {}

    def per_second(self) -> dict[Link, float]:
        """Return the records per second of every link."""
        seconds = max(len(self._ticks), 1) * self._tick_s
        return {link: sum(tick.get(link, 0) for tick in self._ticks) / seconds for link in self.totals}


class OffsetTimes:
    """When the records of a partition were written: a sample every 250 ms, the last 1,200 of them."""

    def __init__(self) -> None:
        self._offsets: dict[Partition, deque[int]] = {}
        self._times: dict[Partition, deque[int]] = {}
        self.positions: dict[Partition, int] = {}

    def seen(self, partition: Partition, offset: int, timestamp_ms: int) -> None:
        """Note a record, in order of offsets."""
        self.positions[partition] = offset + 1
        times = self._times.get(partition)
        if times is None:
            times = self._times[partition] = deque(maxlen=_SAMPLES)
            self._offsets[partition] = deque(maxlen=_SAMPLES)
        if not times or timestamp_ms - times[-1] >= _SAMPLE_MS:
            times.append(timestamp_ms)
            self._offsets[partition].append(offset)

    def written_ms(self, partition: Partition, offset: int) -> int | None:
        """Return about when the record at `offset` was written; `None` when it was not read yet."""
        if offset >= self.positions.get(partition, 0):
            return None
        offsets = self._offsets[partition]
        found = bisect_left(offsets, offset)
        if found == len(offsets):
            found -= 1
        return self._times[partition][found]


__all__ = ["Flow", "Link", "OffsetTimes", "Partition"]
