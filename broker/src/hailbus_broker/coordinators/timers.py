"""The times at which a shard has to check something."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

K = TypeVar("K", bound="Hashable")


class Timers(Generic[K]):
    """One time for each key, the earliest that was asked for.

    A timer only causes a check. What is due follows from the shard's state, so that a check that comes too early finds
    nothing to do and arms the timer again.
    """

    def __init__(self) -> None:
        self._due: dict[K, int] = {}
        # Keys have an order that tuples can be compared by; an entry counts if `_due` holds the same time.
        self._heap: list[tuple[int, Any]] = []

    def __len__(self) -> int:
        """Return how many entries the heap has, those that an earlier one has superseded included."""
        return len(self._heap)

    def arm(self, key: K, due_ms: int) -> None:
        """Check a key at a time, or earlier if that was asked for."""
        armed_ms = self._due.get(key)
        if armed_ms is None or due_ms < armed_ms:
            self._due[key] = due_ms
            heappush(self._heap, (due_ms, key))

    def next_ms(self) -> int | None:
        """Return the time of the next check."""
        heap, due = self._heap, self._due
        while heap and due.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def pop_due(self, now_ms: int) -> K | None:
        """Remove a key whose time has come, the earliest first, and return it; None if there is none."""
        due_ms = self.next_ms()
        if due_ms is None or due_ms > now_ms:
            return None
        key: K = heappop(self._heap)[1]
        del self._due[key]
        return key
