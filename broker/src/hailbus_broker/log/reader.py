"""Reads: batches by offset, records by time, aborted transactions."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from hailbus_broker.log.errors import OffsetOutOfRangeError
from hailbus_broker.log.log_state import base_offset_of
from hailbus_broker.log.lookup import WAITING, DiskReadNeededError
from hailbus_broker.log.results import (
    AbortedTransaction,
    FileSlice,
    Isolation,
    ReadResult,
    TimestampAndOffset,
)
from hailbus_broker.records import BatchView, iterate_records
from hailbus_broker.records.batch import OFFSETS

if TYPE_CHECKING:
    from hailbus_broker.log.disk import Buffer
    from hailbus_broker.log.log_state import LogState
    from hailbus_broker.log.lookup import Reads
    from hailbus_broker.records import Offset

_offsets_of = OFFSETS.unpack_from
_WINDOW_BYTES: Final = 64 * 1024
"""How much a search by time reads at once: the time index leads to within a few KiB of the record."""


class Reader:
    """Reads of one log."""

    __slots__ = ("_state",)

    def __init__(self, state: LogState) -> None:
        self._state: Final = state

    def read(
        self,
        offset: Offset,
        max_bytes: int,
        *,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        min_one_batch: bool = True,
        reads: Reads = WAITING,
    ) -> ReadResult:
        """Batches from the one that holds an offset on, within one segment.

        Args:
            offset: From the log start to the log end, where there is nothing to read yet.
            max_bytes: At most so many, except for the first batch.
            isolation: How far the read may see.
            min_one_batch: Whether the first batch comes even when it is larger than `max_bytes`.
            reads: How the files are read; with a `Lookup` nothing waits for the disk.

        Raises:
            DiskReadNeededError: The lookup has something to read first.
            OffsetOutOfRangeError: The offset is before the log start or after the log end.
            CorruptBatchError: What lies at the offset is damaged.
            StorageError: The read failed.
        """
        state = self._state
        high_watermark = state.high_watermark
        stable = high_watermark if not state.producers.has_transactions else state.last_stable_offset
        start_offset = state.log_start_offset
        if not start_offset <= offset <= state.log_end_offset:
            raise OffsetOutOfRangeError(offset, log_start_offset=start_offset, end_offset=state.log_end_offset)
        aborted: tuple[AbortedTransaction, ...] | None = None
        if isolation is Isolation.READ_UNCOMMITTED:
            end_offset = high_watermark
        elif isolation is Isolation.READ_COMMITTED:
            end_offset = stable
            aborted = ()
        else:
            end_offset = state.log_end_offset
        if offset >= end_offset:
            return ReadResult((), None, 0, high_watermark, stable, start_offset, aborted)

        tail = state.tail
        if tail and _offsets_of(tail[0])[0] <= offset:
            # Mostly the reader follows closely: look at the last batch before searching.
            first = len(tail) - 1
            if _offsets_of(tail[first])[0] > offset:
                first = bisect_right(tail, offset, key=lambda batch: _offsets_of(batch)[0]) - 1
            buffers: list[Buffer] = []
            length = 0
            last_offset = offset
            for number in range(first, len(tail)):  # islice would walk over all that come before
                data = tail[number]
                base_offset, last_offset_delta = _offsets_of(data)
                batch_last = base_offset + last_offset_delta
                size_bytes = len(data)
                if batch_last >= end_offset or (length + size_bytes > max_bytes and (buffers or not min_one_batch)):
                    break
                buffers.append(data)
                length += size_bytes
                last_offset = batch_last
            if aborted is not None and length:
                aborted = self.aborted_transactions(offset, last_offset + 1, reads)
            return ReadResult(tuple(buffers), None, length, high_watermark, stable, start_offset, aborted)

        piece, upper_offset = self._read_from_file(offset, max_bytes, end_offset, reads, min_one_batch=min_one_batch)
        if aborted is not None and piece is not None:
            aborted = self.aborted_transactions(offset, upper_offset, reads)
        length = 0 if piece is None else piece.length
        return ReadResult((), piece, length, high_watermark, stable, start_offset, aborted)

    def _read_from_file(
        self, offset: Offset, max_bytes: int, end_offset: Offset, reads: Reads, *, min_one_batch: bool
    ) -> tuple[FileSlice | None, Offset]:
        """The slice to send, and an offset that all its records are below."""
        state = self._state
        number = bisect_right(state.segments, offset, key=base_offset_of) - 1
        # compaction may have emptied the end of a segment: then the offset's successor is in a later one
        for segment in state.segments[max(number, 0) :]:
            found = segment.find(offset, reads)
            if found is not None:
                break
        else:
            return None, end_offset
        if found.last_offset >= end_offset:
            return None, end_offset
        limit = segment.size_bytes
        upper_offset = end_offset
        if segment is not state.active:
            number = state.segments.index(segment)
            upper_offset = min(end_offset, state.segments[number + 1].base_offset)
        if end_offset < state.log_end_offset:
            end = segment.find(end_offset, reads)
            if end is not None:
                limit = end.position
        length = limit - found.position
        if length > max_bytes:
            if found.size_bytes > max_bytes:
                length = found.size_bytes if min_one_batch else 0
            else:
                # Cut at a batch boundary that the index knows, so that nothing is sent twice; else anywhere, readers
                # expect it.
                boundary = segment.offset_index.batch_start_at_or_before(found.position + max_bytes, reads)
                length = boundary - found.position if boundary > found.position else max_bytes
        if length <= 0:
            return None, end_offset
        return FileSlice(segment.opened(reads), found.position, length, segment.cut), upper_offset

    def aborted_transactions(
        self, start_offset: Offset, end_offset: Offset, reads: Reads = WAITING
    ) -> tuple[AbortedTransaction, ...]:
        """Transactions that were aborted and have records in [start, end), by first offset."""
        found: list[AbortedTransaction] = []
        for segment in self._state.segments_from(start_offset):
            is_complete = False
            for aborted in segment.transaction_index.read_entries(reads):
                if aborted.last_offset >= start_offset and aborted.first_offset < end_offset:
                    found.append(aborted)
                # every transaction that begins below the last stable offset of then has ended before this marker
                if aborted.last_stable_offset >= end_offset:
                    is_complete = True
            if is_complete:
                break
        return tuple(sorted(found, key=lambda aborted: aborted.first_offset))

    def offset_for_timestamp(self, timestamp: int, reads: Reads = WAITING) -> TimestampAndOffset | None:
        """The first record whose timestamp is at least `timestamp`, None when all are older.

        Raises:
            DiskReadNeededError: The lookup has something to read first.
            CorruptBatchError: A batch on the way is damaged.
        """
        state = self._state
        self._load_newest_timestamps(reads)
        for segment in state.segments:
            if segment.newest_timestamp(reads) < timestamp:
                continue
            found = segment.find(max(segment.time_index.offset_before(timestamp, reads), state.log_start_offset), reads)
            if found is None:
                continue
            for scanned in segment.scan(found.position, reads=reads, window_bytes=_WINDOW_BYTES):
                if scanned.header.max_timestamp < timestamp:
                    continue
                for record in iterate_records(BatchView(scanned.data)):
                    if record.timestamp >= timestamp and record.offset >= state.log_start_offset:
                        return TimestampAndOffset(record.timestamp, record.offset, scanned.header.leader_epoch)
        return None

    def _load_newest_timestamps(self, reads: Reads) -> None:
        """Make the highest timestamp of each segment known: the lookup reads all that are missing at once."""
        is_missing = False
        for segment in self._state.segments:
            try:
                segment.newest_timestamp(reads)
            except DiskReadNeededError:
                is_missing = True
        if is_missing:
            raise DiskReadNeededError

    def max_timestamp(self, reads: Reads = WAITING) -> TimestampAndOffset | None:
        """The record with the highest timestamp, the first of them; None for a log without timestamps.

        Raises:
            DiskReadNeededError: The lookup has something to read first.
        """
        state = self._state
        self._load_newest_timestamps(reads)
        newest = max(state.segments, key=lambda segment: segment.max_timestamp)
        if newest.max_timestamp < 0:
            return None
        found = newest.find(max(newest.offset_of_max_timestamp, state.log_start_offset), reads)
        if found is None:
            return None
        for scanned in newest.scan(found.position, reads=reads, window_bytes=_WINDOW_BYTES):
            if scanned.header.max_timestamp >= newest.max_timestamp:
                for record in iterate_records(BatchView(scanned.data)):
                    if record.timestamp >= newest.max_timestamp:
                        return TimestampAndOffset(record.timestamp, record.offset, scanned.header.leader_epoch)
        return None
