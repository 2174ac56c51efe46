"""From offset to file position: `.index`.

An entry of 8 bytes: the last offset of a batch relative to the segment's base offset, int32, and the position of that
batch in the `.log` file, int32. There is one for about every `index.interval.bytes` of log.
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

_ENTRY: Final = Struct(">ii")


class OffsetIndex(SparseIndex):
    """The sparse offset index of one segment; both numbers of its entries grow."""

    __slots__ = ("base_offset",)

    def __init__(self, disk: Disk, path: str, base_offset: Offset, *, written_count: int | None = None) -> None:
        super().__init__(disk, path, _ENTRY, written_count=written_count)
        self.base_offset: Final = base_offset

    def position_before(self, offset: Offset, reads: Reads = WAITING) -> int:
        """Position of a batch at or before the one that holds the offset: scan on from there."""
        entry = self.floor(offset - self.base_offset, reads)
        return 0 if entry is None else entry[1]

    def batch_start_at_or_before(self, position: int, reads: Reads = WAITING) -> int:
        """The last known start of a batch that is not after a position."""
        entry = self.floor_by_second(position, reads)
        return 0 if entry is None else entry[1]

    def position_of_entry(self, number: int) -> int:
        """The position in the n-th entry, 0 where there is none."""
        found = self.entry(number)
        return 0 if found is None else found[1]
