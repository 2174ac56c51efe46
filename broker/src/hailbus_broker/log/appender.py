"""Appends: which batches are accepted, the offsets they get, and what they mean for producers and epochs."""

from __future__ import annotations

from contextlib import suppress
from struct import Struct
from typing import TYPE_CHECKING, Final

from hailbus_broker.log.errors import (
    BatchSetTooLargeError,
    BatchTooLargeError,
    StorageError,
    UnexpectedAppendOffsetError,
)
from hailbus_broker.log.recovery import aborted_entry, note_in, read_marker
from hailbus_broker.log.results import AppendResult, Origin
from hailbus_broker.log.segment import MAX_RELATIVE_OFFSET, Segment
from hailbus_broker.log.validation import MIN_RECORD_BYTES, check_batch, prepare
from hailbus_broker.records import (
    BATCH_OVERHEAD,
    BatchHeader,
    BatchView,
    ControlType,
    CorruptBatchError,
    InvalidRecordError,
    split_batches,
)
from hailbus_broker.records.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    CRC_START,
    HEADER,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD,
    TRANSACTIONAL_BIT,
    read_header,
)
from hailbus_broker.records.crc import crc32c

if TYPE_CHECKING:
    from hailbus_broker.log.config import LogConfig
    from hailbus_broker.log.disk import Buffer
    from hailbus_broker.log.log_state import LogState
    from hailbus_broker.log.producer_state import CompletedTransaction
    from hailbus_broker.log.sync import LogSync
    from hailbus_broker.records import LeaderEpoch, Offset

_MAGIC: Final = 2
_MAGIC_POSITION: Final = 16
_LEADER_EPOCH_POSITION: Final = 12
_INDEX_ENTRY_BYTES: Final = 8
_UNUSUAL_BITS: Final = LOG_APPEND_TIME_BIT | CONTROL_BIT | TRANSACTIONAL_BIT
_LAST_CODEC: Final = 4
_unpack_header = HEADER.unpack_from
_pack_offset = Struct(">q").pack_into
_pack_leader_epoch = Struct(">i").pack_into
_new_tuple = tuple.__new__  # makes a named tuple in half the time


class Appender:
    """Appends to one log, and rolls its segments."""

    __slots__ = ("_dirty_files", "_state", "_sync")

    def __init__(self, state: LogState, sync: LogSync) -> None:
        self._state: Final = state
        self._sync: Final = sync
        self._dirty_files: Final = sync.dirty_files

    def append(
        self,
        data: Buffer,
        *,
        now_ms: int,
        leader_epoch: LeaderEpoch = 0,
        origin: Origin = Origin.CLIENT,
        is_verified: bool = True,
        must_begin_at_zero: bool = False,
        must_marker_be_newer: bool = False,
    ) -> AppendResult:
        """Give batches the next offsets and write them to the active segment.

        Rolls first if the segment would pass `segment_bytes`. Does not sync: the runtime syncs once per batch of
        appends, then releases acks. All batches are written or none.

        Args:
            data: One batch, from a coordinator also several. A writable buffer (bytearray, writable memoryview) is
                taken over: base offset and leader epoch are patched in place (the CRC does not cover them) and the
                tail cache keeps it, so the caller does not touch it again. Anything else is copied.
            now_ms: Milliseconds since 1970 UTC.
            leader_epoch: Never lower than the last one in this log.
            origin: Who appends; clients' batches are checked in every respect.
            is_verified: Whether the transaction coordinator knows the producer's transaction (KIP-890); only asked of
                the first batch of a transaction, see `has_open_transaction`.
            must_begin_at_zero: Whether a producer that this log does not know must begin with sequence 0: in
                transactions v2 a higher one follows a batch that was refused (KIP-890).
            must_marker_be_newer: For transaction markers of transactions v2, whose producer epoch is above the data's.

        Returns:
            Base and last offset, both inclusive; for a repeated batch those of the first time.

        Raises:
            CorruptBatchError: The bytes are not an intact batch.
            UnsupportedMagicError: The batch has the format of before Kafka 0.11.
            InvalidRecordError: The batch says something that the topic does not allow.
            BatchTooLargeError: It is larger than `max_message_bytes`.
            BatchSetTooLargeError: The batches do not fit into a segment.
            OutOfOrderSequenceError: The base sequence does not follow this producer's last one (KIP-98).
            InvalidProducerEpochError: A newer incarnation of this producer has written.
            InvalidTransactionStateError: The batch does not fit the producer's transaction.
            TransactionCoordinatorFencedError: A marker of an older coordinator.
            StorageError: The write failed; the log refuses appends until it is opened again.
        """
        state = self._state
        if state.failure is not None:
            raise state.failure
        is_constant = type(data) is bytes or (type(data) is memoryview and data.readonly)
        buffer: bytearray | memoryview = bytearray(data) if is_constant else data  # type: ignore[assignment]  # no bytes, as above
        if origin is not Origin.CLIENT:
            return self._append_own(buffer, now_ms, leader_epoch, must_marker_be_newer)

        config = state.config
        size_bytes = len(buffer)
        if size_bytes < BATCH_OVERHEAD or buffer[_MAGIC_POSITION] != _MAGIC:
            if not size_bytes:
                raise InvalidRecordError("a produce request holds no record batch for a partition")
            read_header(buffer)  # says what is wrong with it
        fields = _unpack_header(buffer)
        (
            base_offset,
            length,
            _,
            _,
            crc,
            attributes,
            offset_delta,
            _,
            max_timestamp,
            producer_id,
            producer_epoch,
            sequence,
            record_count,
        ) = fields
        if length + LOG_OVERHEAD != size_bytes:
            if 0 < length + LOG_OVERHEAD < size_bytes:
                raise InvalidRecordError("a produce request holds more than one record batch for a partition")
            raise CorruptBatchError(f"a record batch of {size_bytes} bytes claims a length of {length}")
        if size_bytes > config.max_message_bytes:
            raise _too_large(size_bytes, config)
        found_crc = crc32c((buffer if type(buffer) is memoryview else memoryview(buffer))[CRC_START:])
        if found_crc != crc:
            raise CorruptBatchError("a record batch does not match its CRC", expected_crc=crc, found_crc=found_crc)
        if (
            base_offset
            or offset_delta < 0
            or offset_delta != record_count - 1
            or record_count * MIN_RECORD_BYTES > size_bytes - BATCH_OVERHEAD
            or attributes & _UNUSUAL_BITS
            or attributes & CODEC_MASK > _LAST_CODEC
            or (producer_id >= 0 and (sequence < 0 or producer_epoch < 0))
            or max_timestamp - now_ms > config.message_timestamp_after_max_ms
        ):
            check_batch(BatchView(buffer), config, now_ms)  # says what is wrong with it, or that nothing is
        producers = state.producers
        last_sequence = -1
        if producer_id >= 0:
            last_sequence = (sequence + offset_delta) & 0x7FFFFFFF
        if producer_id >= 0 and not producers.follows_plainly(
            producer_id, producer_epoch, sequence, is_transactional=bool(attributes & TRANSACTIONAL_BIT)
        ):
            duplicate = producers.find_duplicate(producer_id, producer_epoch, sequence, last_sequence)
            if duplicate is not None:
                return AppendResult(
                    duplicate.base_offset,
                    duplicate.last_offset,
                    duplicate.timestamp if _is_log_append_time(config) else -1,
                    state.log_start_offset,
                    True,
                )
            producers.check(
                producer_id,
                producer_epoch,
                sequence,
                is_transactional=bool(attributes & TRANSACTIONAL_BIT),
                is_verified=is_verified,
                must_begin_at_zero=must_begin_at_zero,
            )
        log_append_time_ms = -1
        prepared = prepare(buffer, fields, config, now_ms) if config.may_change_batches else None
        if prepared is not None:
            buffer = prepared
            size_bytes = len(buffer)
            max_timestamp = BatchHeader._make(_unpack_header(buffer)).max_timestamp
            if _is_log_append_time(config):
                log_append_time_ms = now_ms
            if size_bytes > config.max_message_bytes:
                raise _too_large(size_bytes, config)

        base_offset = state.log_end_offset
        last_offset = base_offset + offset_delta
        segment = self._writable_segment(size_bytes, last_offset, max_timestamp, now_ms)
        _pack_offset(buffer, 0, base_offset)
        _pack_leader_epoch(buffer, _LEADER_EPOCH_POSITION, leader_epoch)
        if leader_epoch > state.newest_leader_epoch:
            self._begin_epoch(leader_epoch, base_offset)
        file = segment.file
        try:
            file.append(buffer)
        except StorageError as error:
            self._fail_write(segment, error)
        segment.note(size_bytes, last_offset, max_timestamp, config.index_interval_bytes)
        self._dirty_files[file] = None
        state.appended_bytes += size_bytes
        state.log_end_offset = last_offset + 1
        if producer_id >= 0:
            producers.note_batch(
                producer_id,
                producer_epoch,
                last_sequence,
                last_offset,
                offset_delta,
                max_timestamp,
                is_transactional=bool(attributes & TRANSACTIONAL_BIT),
            )
        state.tail_cache.add(state.tail, buffer)
        return _new_tuple(AppendResult, (base_offset, last_offset, log_append_time_ms, state.log_start_offset, False))

    def _append_own(
        self,
        buffer: bytearray | memoryview,
        now_ms: int,
        leader_epoch: LeaderEpoch,
        must_marker_be_newer: bool,
    ) -> AppendResult:
        """Append what this node's coordinators wrote: data of internal topics and transaction markers."""
        state = self._state
        batches = split_batches(buffer)
        base_offset = next_offset = state.log_end_offset
        for batch in batches:
            batch.check_crc()
            header = batch.header
            if batch.size_bytes > state.config.max_message_bytes:
                raise _too_large(batch.size_bytes, state.config)
            if header.producer_id >= 0:
                if header.is_control:
                    marker = read_marker(batch)
                    if marker is not None:
                        state.producers.check_marker(
                            header.producer_id, header.producer_epoch, marker[1], must_be_newer=must_marker_be_newer
                        )
                else:
                    state.producers.check(
                        header.producer_id,
                        header.producer_epoch,
                        header.base_sequence,
                        is_transactional=header.is_transactional,
                        is_verified=True,
                    )
            _pack_offset(batch.data, 0, next_offset)
            _pack_leader_epoch(batch.data, _LEADER_EPOCH_POSITION, leader_epoch)
            next_offset += header.last_offset_delta + 1
        self._write_batches(buffer, split_batches(buffer), now_ms)
        return AppendResult(base_offset, next_offset - 1, -1, state.log_start_offset, False)

    def append_as_follower(self, data: Buffer, *, now_ms: int) -> None:
        """Write batches as their leader has written them: offsets and leader epochs stay.

        Raises:
            UnexpectedAppendOffsetError: The batches do not continue this log.
            CorruptBatchError: They are damaged.
            StorageError: The write failed.
        """
        state = self._state
        if state.failure is not None:
            raise state.failure
        buffer = bytearray(data)
        batches = split_batches(buffer)
        next_offset = state.log_end_offset
        for batch in batches:
            batch.check_crc()
            if batch.header.base_offset < next_offset:
                raise UnexpectedAppendOffsetError(
                    f"a leader's batch begins at {batch.header.base_offset}, this log ends at {next_offset}"
                )
            next_offset = batch.header.next_offset
        self._write_batches(buffer, batches, now_ms)

    def _write_batches(self, buffer: bytearray | memoryview, batches: list[BatchView], now_ms: int) -> None:
        state = self._state
        last = batches[-1].header
        max_timestamp = max(batch.header.max_timestamp for batch in batches)
        segment = self._writable_segment(len(buffer), last.last_offset, max_timestamp, now_ms)
        for batch in batches:
            if batch.header.leader_epoch > state.leader_epochs.latest:
                self._begin_epoch(batch.header.leader_epoch, batch.header.base_offset)
            if (
                batch.header.is_control
                and (marker := read_marker(batch)) is not None
                and marker[0] is ControlType.ABORT
            ):
                segment.transaction_index.open_file()  # before the marker is in the log
        try:
            segment.write(buffer)
        except StorageError as error:
            self._fail_write(segment, error)
        self._dirty_files[segment.file] = None
        state.appended_bytes += len(buffer)
        for batch in batches:
            header = batch.header
            segment.note(batch.size_bytes, header.last_offset, header.max_timestamp, state.config.index_interval_bytes)
            state.log_end_offset = header.next_offset
            if header.producer_id >= 0:
                completed = note_in(state.producers, header, batch.data)
                if completed is not None:
                    self._complete(segment, completed)
            state.tail_cache.add(state.tail, batch.data)

    def _complete(self, segment: Segment, completed: CompletedTransaction) -> None:
        state = self._state
        if completed.is_aborted:
            self._dirty_files[segment.transaction_index.append(aborted_entry(state.producers, completed))] = None
            self._sync.is_directory_dirty = True
        state.producers.complete(completed)

    def begin_leader_epoch(self, leader_epoch: LeaderEpoch) -> None:
        """See `PartitionLog.begin_leader_epoch`."""
        self._begin_epoch(leader_epoch, self._state.log_end_offset)

    def _begin_epoch(self, leader_epoch: LeaderEpoch, start_offset: Offset) -> None:
        state = self._state
        # Written with the next sync: everything below the recovery point is in the checkpoint, and recovery takes the
        # rest from the batches.
        if state.leader_epochs.assign(leader_epoch, start_offset):
            self._sync.are_epochs_dirty = True
        state.newest_leader_epoch = state.leader_epochs.latest

    def _fail_write(self, segment: Segment, error: StorageError) -> None:
        """Take back what a failed write left, and take no more."""
        self._state.failure = error
        with suppress(StorageError):  # else recovery cuts it off
            segment.file.truncate(segment.size_bytes)
        raise error

    def _writable_segment(self, size_bytes: int, last_offset: Offset, max_timestamp: int, now_ms: int) -> Segment:
        """The active segment, after rolling if it cannot or should not take the bytes."""
        state = self._state
        segment = state.active
        config = state.config
        if size_bytes > config.segment_bytes:
            raise BatchSetTooLargeError(
                f"record batches of {size_bytes} bytes are larger than segment.bytes, {config.segment_bytes}"
            )
        if segment.size_bytes == 0:
            return segment
        first_timestamp = segment.first_timestamp
        assert first_timestamp is not None, f"{segment.path} has batches and no first timestamp"
        waited_ms = max_timestamp - first_timestamp if first_timestamp >= 0 else now_ms - segment.created_ms
        if (
            segment.size_bytes + size_bytes <= config.segment_bytes
            and waited_ms <= config.max_segment_ms - config.segment_jitter_ms
            and segment.index_bytes <= config.segment_index_bytes - _INDEX_ENTRY_BYTES
            and last_offset - segment.base_offset <= MAX_RELATIVE_OFFSET
        ):
            return segment
        self.roll(now_ms=now_ms)
        return state.active

    def roll(self, *, now_ms: int) -> None:
        """Close the active segment and begin the next one at the log end. An empty active segment stays.

        Raises:
            StorageError: The machine failed, and the log refuses appends; or too many files are open, and nothing has
                changed.
        """
        state = self._state
        if state.active.size_bytes == 0:
            return
        try:
            self._dirty_files.update(dict.fromkeys(state.active.finish_indexes()))
            self._sync.write_snapshot()
            state.active = Segment(state.disk, state.directory, state.log_end_offset, is_new=True, created_ms=now_ms)
        except StorageError as error:
            if not error.is_out_of_descriptors:
                state.failure = error
            raise
        state.segments.append(state.active)
        self._sync.is_directory_dirty = True


def _is_log_append_time(config: LogConfig) -> bool:
    return bool(config.message_timestamp_type)


def _too_large(size_bytes: int, config: LogConfig) -> BatchTooLargeError:
    return BatchTooLargeError(
        f"a record batch of {size_bytes} bytes is larger than max.message.bytes, {config.max_message_bytes}"
    )
