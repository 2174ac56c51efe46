"""The newest batches of all partitions in memory.

Within one budget of bytes, so that hot fetches need no call of the system.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple


class CachedBatch(NamedTuple):
    """A batch as it lies at the end of a log."""

    base_offset: int
    last_offset: int
    data: bytes | bytearray | memoryview
    size_bytes: int


class TailCache:
    """A budget shared by the partitions of a node. The oldest batch of all goes first, whosever it is.

    Args:
        capacity_bytes: Bytes of batches that are kept; 0 keeps none.
    """

    def __init__(self, capacity_bytes: int = 32 * 1024 * 1024) -> None:
        self.capacity_bytes: Final = capacity_bytes
        self._size_bytes = 0
        self._order: deque[tuple[deque[CachedBatch], CachedBatch]] = deque()

    def add(self, tail: deque[CachedBatch], batch: CachedBatch) -> None:
        """Put a batch at the end of one partition's tail and drop the oldest ones beyond the budget."""
        tail.append(batch)
        self._order.append((tail, batch))
        size_bytes = self._size_bytes + batch.size_bytes
        while size_bytes > self.capacity_bytes:
            oldest_tail, oldest = self._order.popleft()
            size_bytes -= oldest.size_bytes
            # a tail that was cleared in between no longer holds it
            if oldest_tail and oldest_tail[0] is oldest:
                oldest_tail.popleft()
        self._size_bytes = size_bytes
