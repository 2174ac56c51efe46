"""From time to offset: `.timeindex`.

An entry of 12 bytes: the highest timestamp of the segment so far, int64, and the last offset of the batch that has it,
relative to the segment's base offset, int32. Timestamps of producers need not grow, those of the entries do.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from hailbus_broker.log.lookup import WAITING
from hailbus_broker.log.sparse_index import SparseIndex

if TYPE_CHECKING:
    from hailbus_broker.log.disk import Disk
    from hailbus_broker.log.lookup import Reads
    from hailbus_broker.records import Offset

_ENTRY: Final = Struct(">qi")


class TimeIndex(SparseIndex):
    """The sparse time index of one segment."""

    __slots__ = ("base_offset", "last_timestamp")

    def __init__(self, disk: Disk, path: str, base_offset: Offset, *, written_count: int | None = None) -> None:
        super().__init__(disk, path, _ENTRY, written_count=written_count)
        self.base_offset: Final = base_offset
        self.last_timestamp: int | None = None if written_count is None else -1

    def add_if_later(self, timestamp: int, offset: Offset) -> None:
        """Append an entry unless there is one of this time or of a later one."""
        if self.last_timestamp is None:
            last = self.last_entry
            self.last_timestamp = -1 if last is None else last[0]
        if timestamp > self.last_timestamp:
            self.add(timestamp, offset - self.base_offset)
            self.last_timestamp = timestamp

    def keep_count(self, count: int) -> None:
        """Keep the oldest entries only."""
        super().keep_count(count)
        self.last_timestamp = None

    def keep_second_below(self, limit: int) -> None:
        """Drop the entries of offsets from a relative one on."""
        super().keep_second_below(limit)
        self.last_timestamp = None

    def offset_before(self, timestamp: int, reads: Reads = WAITING) -> Offset:
        """An offset such that every batch before it is older than `timestamp`: scan on from there."""
        entry = self.floor(timestamp - 1, reads)
        return self.base_offset if entry is None else self.base_offset + entry[1]
