"""One segment of a log: a `.log` file of record batches with its indexes, named after its base offset."""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from hailbus_broker.log.lookup import WAITING
from hailbus_broker.log.offset_index import OffsetIndex
from hailbus_broker.log.results import Cut
from hailbus_broker.log.time_index import TimeIndex
from hailbus_broker.log.transaction_index import TransactionIndex
from hailbus_broker.records import BATCH_OVERHEAD, NO_TIMESTAMP, BatchHeader, CorruptBatchError, crc32c
from hailbus_broker.records.batch import CRC_START, HEADER, LOG_OVERHEAD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hailbus_broker.log.disk import Disk, File
    from hailbus_broker.log.lookup import Read, Reads
    from hailbus_broker.records import Offset

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TRANSACTION_INDEX_SUFFIX: Final = ".txnindex"
SEGMENT_SUFFIXES: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)

MAX_RELATIVE_OFFSET: Final = 2**31 - 1

_MAGIC: Final = 2
_SCAN_BYTES: Final = 1024 * 1024
_SEARCH_BYTES: Final = 8 * 1024
_BASE_AND_LENGTH: Final = Struct(">qi")
_DELTA: Final = Struct(">i")
_DELTA_POSITION: Final = 23


class ScannedBatch(NamedTuple):
    """A batch as a scan found it: where, its header, and its bytes, valid until the scan's next step."""

    position: int
    header: BatchHeader
    data: memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundBatch:
    """Where a batch lies: position and size in bytes, first and last offset."""

    position: int
    size_bytes: int
    base_offset: Offset
    last_offset: Offset


def file_name(base_offset: Offset, suffix: str) -> str:
    """Kafka's name of a file that begins at an offset: twenty digits and what it is."""
    return f"{base_offset:020d}{suffix}"


class Segment:
    """A run of batches in one file.

    Args:
        disk: Where the files are.
        directory: Of the partition.
        base_offset: Every offset in the segment is at least this one.
        is_new: Whether the files are to be made, instead of being there.
        size_bytes: Of the `.log` file, where it is known.
        created_ms: When the segment was begun; None is when its file was last written.
        name_suffix: Appended to the files' names, for segments that compaction is writing.
    """

    __slots__ = (
        "_created_ms",
        "_directory",
        "_disk",
        "_file",
        "_max_timestamp",
        "_name_suffix",
        "base_offset",
        "bytes_since_index_entry",
        "cut",
        "first_timestamp",
        "index_bytes",
        "offset_index",
        "offset_of_max_timestamp",
        "path",
        "size_bytes",
        "time_index",
        "transaction_index",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        base_offset: Offset,
        *,
        is_new: bool = False,
        size_bytes: int | None = None,
        created_ms: int | None = None,
        name_suffix: str = "",
    ) -> None:
        self._disk: Final = disk
        self._directory: Final = directory
        self._name_suffix = name_suffix
        self.base_offset: Final = base_offset
        self.path = self.path_of(LOG_SUFFIX)
        self._file: File | None = None
        if is_new:
            for suffix in SEGMENT_SUFFIXES[1:]:  # of a segment that once had this name
                disk.remove(self.path_of(suffix))
            self._file = disk.open(self.path, create=True)
            self._file.truncate(0)
        self.size_bytes = 0 if is_new else disk.size(self.path) if size_bytes is None else size_bytes
        count = 0 if is_new else None
        self.offset_index: Final = OffsetIndex(disk, self.path_of(INDEX_SUFFIX), base_offset, written_count=count)
        self.time_index: Final = TimeIndex(disk, self.path_of(TIME_INDEX_SUFFIX), base_offset, written_count=count)
        self.transaction_index: Final = TransactionIndex(disk, self.path_of(TRANSACTION_INDEX_SUFFIX), is_new=is_new)
        self.cut: Final = Cut()
        self.bytes_since_index_entry = 0
        self.index_bytes = 0  # of an opened segment: once it is asked for
        self._created_ms = created_ms
        self.first_timestamp: int | None = None
        self._max_timestamp: int | None = NO_TIMESTAMP if is_new else None
        self.offset_of_max_timestamp = base_offset

    def path_of(self, suffix: str) -> str:
        """Path of one of the segment's files."""
        return f"{self._directory}/{file_name(self.base_offset, suffix)}{self._name_suffix}"

    @property
    def created_ms(self) -> int:
        """When the segment was begun, or at least when it was last written; for records that have no timestamps."""
        return self.read_created_ms(WAITING)

    def read_created_ms(self, reads: Reads) -> int:
        """See `created_ms`."""
        if self._created_ms is None:
            self._created_ms = reads.get((self, "created"), lambda: self._disk.modified_ms(self.path))
        return self._created_ms

    @property
    def file(self) -> File:
        """The `.log` file, opened when it is first needed."""
        file = self._file
        if file is None:
            file = self._file = self._disk.open(self.path)
        return file

    def opened(self, reads: Reads) -> File:
        """The `.log` file."""
        if self._file is None:
            self._file = reads.get((self, "file"), lambda: self._disk.open(self.path))
        return self._file

    @property
    def file_if_open(self) -> File | None:
        """The `.log` file if it is open."""
        return self._file

    @property
    def max_timestamp(self) -> int:
        """The highest timestamp of any record, -1 for none."""
        return self.newest_timestamp(WAITING)

    def newest_timestamp(self, reads: Reads) -> int:
        """The highest timestamp of any record, -1 for none."""
        if self._max_timestamp is None:
            # a closed segment: its last index entry was written when it was closed
            last = self.time_index.read_last_entry(reads)
            self._max_timestamp = NO_TIMESTAMP if last is None else last[0]
            self.offset_of_max_timestamp = self.base_offset + (0 if last is None else last[1])
        return self._max_timestamp

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Put bytes at the end of the file; `note` says what they were."""
        file = self._file
        if file is None:
            file = self.file
        file.append(data)

    def note(self, size_bytes: int, last_offset: Offset, max_timestamp: int, index_interval_bytes: int) -> None:
        """Account for a batch at the end of the segment and index it if it is time to."""
        if self.first_timestamp is None:
            self.first_timestamp = max_timestamp
        newest = self._max_timestamp
        if newest is None:
            newest = self.max_timestamp
        if max_timestamp > newest:
            self._max_timestamp = newest = max_timestamp
            self.offset_of_max_timestamp = last_offset
        if self.bytes_since_index_entry > index_interval_bytes:
            self.offset_index.add(last_offset - self.base_offset, self.size_bytes)
            self.time_index.add_if_later(newest, self.offset_of_max_timestamp)
            self.bytes_since_index_entry = 0
            self.index_bytes = self.offset_index.size_bytes
        self.bytes_since_index_entry += size_bytes
        self.size_bytes += size_bytes

    def note_again(self, index_interval_bytes: int) -> None:
        """After the end was cut off: account again for the batches from the last index entry on."""
        end = self.size_bytes
        entry = self.offset_index.last_entry
        position = 0 if entry is None else entry[1]
        self.time_index.keep_second_below(0 if entry is None else entry[0] + 1)
        self.forget_max_timestamp()
        self.size_bytes = position
        self.bytes_since_index_entry = 0
        for batch in self.scan(position, end=end):
            header = batch.header
            timestamp = header.max_timestamp if header.record_count else NO_TIMESTAMP
            self.note(header.size_bytes, header.last_offset, timestamp, index_interval_bytes)
        self.load_first_timestamp()

    def load_first_timestamp(self) -> None:
        """Read the first batch's timestamp and the size of the index, which decide when the segment is rolled."""
        head = self.file.read(0, BATCH_OVERHEAD) if self.size_bytes else b""
        self.first_timestamp = BatchHeader._make(HEADER.unpack(head)).max_timestamp if head else None
        self.index_bytes = self.offset_index.size_bytes

    def forget_max_timestamp(self) -> None:
        """Take the highest timestamp from the time index again, and then from what is noted."""
        self._max_timestamp = None

    def finish_indexes(self) -> list[File]:
        """Write the indexes out, with a last entry for the highest timestamp.

        Returns:
            The index files, to be synced.
        """
        self.time_index.add_if_later(self.max_timestamp, self.offset_of_max_timestamp)
        self.offset_index.open_file()
        self.time_index.open_file()
        files = [self.offset_index.flush(), self.time_index.flush()]
        return [file for file in files if file is not None]

    def hold(self, reads: Reads = WAITING) -> None:
        """Open all that reading may need, so that reading continues while the files are renamed."""
        self.offset_index.open_file(reads)
        self.time_index.open_file(reads)
        self.opened(reads)
        self.newest_timestamp(reads)
        self.transaction_index.read_entries(reads)

    def release(self) -> None:
        """Let go of the descriptors; they are opened again when they are needed."""
        self._file = None
        self.offset_index.release()
        self.time_index.release()
        self.transaction_index.release()

    def scan(
        self,
        start: int = 0,
        *,
        end: int | None = None,
        check_crc: bool = False,
        reads: Reads = WAITING,
        window_bytes: int = _SCAN_BYTES,
    ) -> Iterator[ScannedBatch]:
        """Walk the batches from a position where one starts.

        Args:
            start: The position.
            end: Where to stop, in bytes; None is the segment's end.
            check_crc: Whether to check the CRC of each batch.
            reads: How the file is read.
            window_bytes: How much is read at once.

        Raises:
            CorruptBatchError: What lies at a position is not a whole, intact batch; `.position` says where.
        """
        end = self.size_bytes if end is None else end
        position = start
        unpack, make_header = HEADER.unpack_from, BatchHeader._make
        if position >= end:
            return  # an empty segment needs no descriptor
        file, usual_bytes = self.opened(reads), window_bytes
        while position < end:
            window = memoryview(reads.read(file, position, min(window_bytes, end - position)))
            window_size = len(window)
            at = 0
            while at + BATCH_OVERHEAD <= window_size:
                header = make_header(unpack(window, at))
                if header.magic != _MAGIC or header.length < BATCH_OVERHEAD - LOG_OVERHEAD:
                    raise CorruptBatchError("no record batch v2", path=self.path, position=position + at)
                following = at + header.length + LOG_OVERHEAD
                if following > window_size:
                    break
                data = window[at:following]
                if check_crc:
                    found_crc = crc32c(data[CRC_START:])
                    if found_crc != header.crc:
                        raise CorruptBatchError(
                            "a record batch does not match its CRC",
                            path=self.path,
                            position=position + at,
                            expected_crc=header.crc,
                            found_crc=found_crc,
                        )
                yield ScannedBatch(position + at, header, data)
                at = following
            window_bytes = usual_bytes
            if at == 0:
                # The window is cut within its first batch: there must be a window that holds it.
                is_header_whole = window_size >= BATCH_OVERHEAD
                window_bytes = header.size_bytes if is_header_whole else end
                if not is_header_whole or position + window_bytes > end or window_size >= window_bytes:
                    raise CorruptBatchError("the file ends within a record batch", path=self.path, position=position)
            position += at

    def find(self, offset: Offset, reads: Reads = WAITING) -> FoundBatch | None:
        """The first batch whose last offset is at least `offset`.

        Raises:
            CorruptBatchError: What lies on the way is not a batch.
        """
        start, size_bytes = self.offset_index.position_before(offset, reads), self.size_bytes
        if start >= size_bytes:
            return None
        path = self.path

        def search(read: Read) -> FoundBatch | None:
            position = start
            while position < size_bytes:
                window = read(position, min(_SEARCH_BYTES, size_bytes - position))
                at = 0
                while at + BATCH_OVERHEAD <= len(window):
                    base_offset, length = _BASE_AND_LENGTH.unpack_from(window, at)
                    last_offset = base_offset + _DELTA.unpack_from(window, at + _DELTA_POSITION)[0]
                    if length < BATCH_OVERHEAD - LOG_OVERHEAD:
                        raise CorruptBatchError("no record batch v2", path=path, position=position + at)
                    if last_offset >= offset:
                        return FoundBatch(
                            position=position + at,
                            size_bytes=length + LOG_OVERHEAD,
                            base_offset=base_offset,
                            last_offset=last_offset,
                        )
                    at += length + LOG_OVERHEAD
                if at == 0:
                    raise CorruptBatchError("the file ends within a record batch", path=path, position=position)
                position += at
            return None

        return reads.search((self, "find", offset, size_bytes), self.opened(reads), search)

    def truncate_to_position(self, position: int, end_offset: Offset) -> None:
        """Cut the file before a position, and the indexes with it.

        Args:
            position: Where a batch starts.
            end_offset: That every remaining record is below.
        """
        self.file.truncate(position)
        self.size_bytes = position
        self.offset_index.keep_second_below(position)
        self.time_index.keep_second_below(end_offset - self.base_offset)
        self.transaction_index.keep_below(end_offset)
        self.forget_max_timestamp()

    def rewrite_from(self, offset: Offset) -> None:
        """Write the batches from an offset on again, and what the indexes have; see `File.rewrite`."""
        found = self.find(max(offset, self.base_offset))
        if found is not None:
            self.file.rewrite(found.position)
        self.offset_index.rewrite()
        self.time_index.rewrite()

    def remove_files(self, *, log_last: bool = False) -> None:
        """Delete the files; readers that hold one keep it.

        Args:
            log_last: Otherwise the `.log` goes first, and an index without it is swept at open. A compaction that is
                being swapped in needs the other order: there an index without its `.log` belongs to the new segment.
        """
        for suffix in reversed(SEGMENT_SUFFIXES) if log_last else SEGMENT_SUFFIXES:
            self._disk.remove(self.path_of(suffix))

    def rename_files(self, name_suffix: str) -> None:
        """Give the files another suffix after their names, indexes first."""
        for suffix in reversed(SEGMENT_SUFFIXES):
            source = self.path_of(suffix)
            if self._disk.exists(source):
                self._disk.rename(source, f"{self._directory}/{file_name(self.base_offset, suffix)}{name_suffix}")
        self._name_suffix = name_suffix
        self.path = self.path_of(LOG_SUFFIX)
        self._file = None
        self.offset_index.moved(self.path_of(INDEX_SUFFIX))
        self.time_index.moved(self.path_of(TIME_INDEX_SUFFIX))
        self.transaction_index.moved(self.path_of(TRANSACTION_INDEX_SUFFIX))
