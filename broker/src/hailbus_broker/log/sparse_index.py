"""What offset and time index share: entries of fixed size in a file, the newest ones in memory only.

Apache Kafka maps its index files into memory. Here the newest entries wait in a list and are written by the hundred,
so that an append costs no call of the system for them; older ones are searched in the file, by a handful of small
reads. An entry that a crash forgot is made again by recovery, which scans the log from the last entry on.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from hailbus_broker.log.errors import StorageError
from hailbus_broker.log.lookup import WAITING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from struct import Struct

    from hailbus_broker.log.disk import Disk, File
    from hailbus_broker.log.lookup import Read, Reads

TAIL_ENTRIES: Final = 128
"""So many entries wait in memory before they are written: with an entry every 4 KiB, half a MiB of log."""

_CHUNK_ENTRIES: Final = 256
_BLOCK_ENTRIES: Final = 1024


class SparseIndex:
    """Entries of two growing numbers, searched by the first.

    Args:
        disk: Where the file is, or will be once there is something to write.
        path: Of the file.
        layout: One entry of two integers.
    """

    __slots__ = ("_block", "_disk", "_file", "_layout", "_written_count", "path", "tail")

    def __init__(self, disk: Disk, path: str, layout: Struct, *, written_count: int | None = None) -> None:
        self._disk: Final = disk
        self.path = path
        self._layout: Final = layout
        self._file: File | None = None
        # None: look at the file when it matters, so that opening a log with many segments does not
        self._written_count = written_count
        self.tail: list[tuple[int, int]] = []
        self._block: tuple[int, bytes] = (0, b"")

    @property
    def written_count(self) -> int:
        """Entries in the file."""
        if self._written_count is None:
            exists = self._disk.exists(self.path)
            self._written_count = self._disk.size(self.path) // self._layout.size if exists else 0
        return self._written_count

    def _count_entries(self, reads: Reads) -> None:
        """Make `written_count` known."""
        if self._written_count is None:
            self._written_count = reads.get((self, "count"), lambda: self.written_count)

    def read_last_entry(self, reads: Reads) -> tuple[int, int] | None:
        """See `last_entry`. The file is not kept open: this is asked of all segments of a log."""
        if self.tail:
            return self.tail[-1]
        if self._file is not None and self._written_count is not None:
            return self._read(self._written_count - 1, 1, reads)[0] if self._written_count else None
        return reads.get((self, "last"), self._read_last_entry)

    def _read_last_entry(self) -> tuple[int, int] | None:
        size = self._layout.size
        count = self._disk.size(self.path) // size if self._disk.exists(self.path) else 0
        if not count:
            return None
        first, second = self._layout.unpack(self._disk.open(self.path).read((count - 1) * size, size))
        return first, second

    @property
    def entry_count(self) -> int:
        """Entries in file and memory."""
        return self.written_count + len(self.tail)

    @property
    def size_bytes(self) -> int:
        """Bytes of the file when everything is written."""
        written_count = self._written_count  # known while entries are added: a call less for each
        if written_count is None:
            written_count = self.written_count
        return (written_count + len(self.tail)) * self._layout.size

    @property
    def last_entry(self) -> tuple[int, int] | None:
        """The newest entry."""
        if self.tail:
            return self.tail[-1]
        return self._read(self.written_count - 1, 1)[0] if self.written_count else None

    def entry(self, number: int) -> tuple[int, int] | None:
        """The n-th entry, counted from 0; None where there is none."""
        if number >= self.written_count:
            in_tail = number - self.written_count
            return self.tail[in_tail] if in_tail < len(self.tail) else None
        return self._read(number, 1)[0]

    def entries(self) -> Iterator[tuple[int, int]]:
        """All entries, oldest first."""
        for start in range(0, self.written_count, _CHUNK_ENTRIES):
            yield from self._read(start, min(_CHUNK_ENTRIES, self.written_count - start))
        yield from self.tail

    def add(self, first: int, second: int) -> None:
        """Append an entry. The caller keeps them growing."""
        self.tail.append((first, second))
        if len(self.tail) >= TAIL_ENTRIES:
            try:
                self.flush()
            except StorageError as error:
                if not error.is_out_of_descriptors:
                    raise
                # The batch is written already: its entry waits in memory until the file can be opened.

    def flush(self) -> File | None:
        """Write what waits in memory.

        Returns:
            The file, to be synced; None if there is none, because there has been no entry.
        """
        if self.tail:
            pack = self._layout.pack
            count = self.written_count
            self._open().append(b"".join([pack(first, second) for first, second in self.tail]))
            self._written_count = count + len(self.tail)
            self._block = (0, b"")
            self.tail.clear()
        return self._file

    def open_file(self, reads: Reads = WAITING) -> None:
        """Open the file, and make it if it is missing: a segment without any entry has an empty one."""
        self._opened(reads)
        self._count_entries(reads)

    def floor(self, target: int, reads: Reads = WAITING) -> tuple[int, int] | None:
        """The last entry whose first number is at most `target`."""
        return self._floor(target, 0, reads)

    def floor_by_second(self, target: int, reads: Reads = WAITING) -> tuple[int, int] | None:
        """The last entry whose second number is at most `target`, where the second numbers grow too."""
        return self._floor(target, 1, reads)

    def _floor(self, target: int, column: int, reads: Reads) -> tuple[int, int] | None:
        tail = self.tail
        if tail and tail[0][column] <= target:
            return tail[bisect_right(tail, target, key=itemgetter(column)) - 1]
        self._count_entries(reads)
        block_start, block = self._block
        count = len(block) // self._layout.size
        if not count or not self._in_block(target, column, block_start, count):
            block_start, block = self._load_block(target, column, reads)
            count = len(block) // self._layout.size
        unpack, size = self._layout.unpack_from, self._layout.size
        low, high = -1, count  # the answer is at or after `low` and before `high`
        while high - low > 1:
            middle = (low + high) // 2
            if unpack(block, middle * size)[column] <= target:
                low = middle
            else:
                high = middle
        if low < 0:
            return None
        first, second = unpack(block, low * size)
        return first, second

    def _in_block(self, target: int, column: int, start: int, count: int) -> bool:
        """Whether the block that was read last has the answer: readers mostly go forward in small steps."""
        block, size = self._block[1], self._layout.size
        if self._layout.unpack_from(block, 0)[column] > target:
            return False
        is_last = start + count == self.written_count
        return is_last or self._layout.unpack_from(block, (count - 1) * size)[column] > target

    def _load_block(self, target: int, column: int, reads: Reads) -> tuple[int, bytes]:
        written_count = self.written_count
        if not written_count:
            return 0, b""
        unpack, size = self._layout.unpack, self._layout.size

        def search(read: Read) -> tuple[int, bytes]:
            low, high = 0, written_count  # the answer is at or after `low` and before `high`
            while high - low > _BLOCK_ENTRIES:
                middle = (low + high) // 2
                if unpack(read(middle * size, size))[column] <= target:
                    low = middle
                else:
                    high = middle
            # from the answer's neighbourhood on, so that the next searches find theirs in it too
            count = min(_BLOCK_ENTRIES + high - low, written_count - low)
            data = bytes(read(low * size, count * size))
            return low, data[: len(data) - len(data) % size]

        key = (self, "block", target, column, written_count)
        self._block = reads.search(key, self._opened(reads), search)
        return self._block

    def keep_below(self, limit: int) -> None:
        """Drop the entries whose first number is at least `limit`."""
        self._keep_below(limit, column=0)

    def keep_second_below(self, limit: int) -> None:
        """Drop the entries whose second number is at least `limit`, where the second numbers grow too."""
        self._keep_below(limit, column=1)

    def _keep_below(self, limit: int, *, column: int) -> None:
        while self.tail and self.tail[-1][column] >= limit:
            self.tail.pop()
        if self.tail or not self.written_count:
            return
        low, high = 0, self.written_count
        while low < high:
            middle = (low + high) // 2
            if self._read(middle, 1)[0][column] < limit:
                low = middle + 1
            else:
                high = middle
        self.keep_count(low)

    def keep_count(self, count: int) -> None:
        """Keep the oldest entries only, in the file."""
        self.tail.clear()
        self._block = (0, b"")
        if self._disk.exists(self.path):
            self._open().truncate(count * self._layout.size)
        self._written_count = count

    def keep_growing(self) -> None:
        """Cut before the first entry that does not grow: after a power cut a page of the file may hold anything."""
        previous = (-1, -1)
        for count, entry in enumerate(self.entries()):
            if entry[0] <= previous[0] or entry[1] <= previous[1]:
                self.keep_count(count)
                return
            previous = entry
        if self._disk.exists(self.path) and self._disk.size(self.path) % self._layout.size:
            self.keep_count(self.written_count)

    def rewrite(self) -> None:
        """Write the file again, so that its next sync covers all of it."""
        if self.written_count:
            self._open().rewrite(0)

    def moved(self, path: str) -> None:
        """The file was renamed."""
        self.path = path
        self._file = None

    def release(self) -> None:
        """Let go of the descriptor."""
        self._file = None
        self._block = (0, b"")

    def _open(self) -> File:
        if self._file is None:
            self._file = self._disk.open(self.path, create=True)
        return self._file

    def _opened(self, reads: Reads) -> File:
        if self._file is None:
            self._file = reads.get((self, "file"), lambda: self._disk.open(self.path, create=True))
        return self._file

    def _read(self, start: int, count: int, reads: Reads = WAITING) -> list[tuple[int, int]]:
        if count <= 0:
            return []
        size = self._layout.size
        data = reads.read(self._opened(reads), start * size, count * size)
        return list(self._layout.iter_unpack(data[: len(data) - len(data) % size]))
