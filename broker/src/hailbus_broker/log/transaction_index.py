"""Aborted transactions of a segment: `.txnindex`.

An entry of 34 bytes: version int16 (0), producer id, first offset, last offset (of the abort marker) and the last
stable offset when the marker was written, int64 each. An entry belongs to the segment of its marker. Most segments
have no entry, and therefore no index file.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from hailbus_broker.log.lookup import WAITING
from hailbus_broker.log.results import AbortedTransaction

if TYPE_CHECKING:
    from hailbus_broker.log.disk import Disk, File
    from hailbus_broker.log.lookup import Reads
    from hailbus_broker.records import Offset

_ENTRY: Final = Struct(">hqqqq")
_VERSION: Final = 0


class TransactionIndex:
    """The aborted transactions whose markers lie in one segment, by the markers' offsets."""

    __slots__ = ("_disk", "_entries", "_file", "path")

    def __init__(self, disk: Disk, path: str, *, is_new: bool = False) -> None:
        self._disk: Final = disk
        self.path = path
        self._file: File | None = None
        self._entries: list[AbortedTransaction] | None = [] if is_new else None

    @property
    def file(self) -> File | None:
        """The file, if it was written to."""
        return self._file

    @property
    def entries(self) -> list[AbortedTransaction]:
        """All entries, read when they are first needed."""
        return self.read_entries(WAITING)

    def read_entries(self, reads: Reads) -> list[AbortedTransaction]:
        """All entries."""
        if self._entries is None:
            data = reads.get((self, "entries"), lambda: self._disk.read_bytes(self.path)) or b""
            whole = len(data) - len(data) % _ENTRY.size
            self._entries = [AbortedTransaction(*entry[1:]) for entry in _ENTRY.iter_unpack(data[:whole])]
        return self._entries

    def note_missing(self) -> None:
        """There is no file: there are no entries."""
        self._entries = []

    def open_file(self) -> None:
        """Open the file, and make it if it is missing, so that `append` needs no descriptor."""
        if self._file is None:
            self._file = self._disk.open(self.path, create=True)

    def append(self, aborted: AbortedTransaction) -> File:
        """Add an entry.

        Returns:
            The file, to be synced.
        """
        entries = self.entries
        self.open_file()
        assert self._file is not None
        self._file.append(_ENTRY.pack(_VERSION, *aborted))
        entries.append(aborted)
        return self._file

    def keep_below(self, offset: Offset) -> None:
        """Drop the entries whose marker is at or after an offset, and what a crash has left behind them."""
        kept: list[AbortedTransaction] = []
        for entry in self.entries:
            # Entries below the offset were synced. A later sector may hold zeros, or anything.
            last_offset = kept[-1].last_offset if kept else -1
            if not last_offset < entry.last_offset < offset or not 0 <= entry.first_offset < entry.last_offset:
                break
            kept.append(entry)
        if self._disk.exists(self.path):
            self._file = self._disk.open(self.path, create=True)
            self._file.truncate(len(kept) * _ENTRY.size)
        self._entries = kept

    def moved(self, path: str) -> None:
        """The file was renamed."""
        self.path = path
        self._file = None

    def release(self) -> None:
        """Let go of the descriptor."""
        self._file = None
