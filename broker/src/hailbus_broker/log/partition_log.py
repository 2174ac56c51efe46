"""The log of one partition: appends at the end of the active segment, reads anywhere, forgets from the front.

The log is synchronous and belongs to one thread; only `PendingSync.run` may run in another. It reads no clock and
starts nothing: the runtime decides when it is synced, cleaned and closed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from contextlib import suppress
from itertools import pairwise
from operator import attrgetter
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from hailbus_broker.log.compaction import DEFAULT_MAX_KEYS, CompactionTask, dirty_ratio
from hailbus_broker.log.config import MAX_LONG
from hailbus_broker.log.errors import (
    BatchSetTooLargeError,
    BatchTooLargeError,
    OffsetOutOfRangeError,
    StorageError,
    UnexpectedAppendOffsetError,
)
from hailbus_broker.log.producer_state import SNAPSHOT_SUFFIX, CompletedTransaction, ProducerState
from hailbus_broker.log.recovery import (
    DAMAGED_INFIX,
    RecoveryReport,
    aborted_entry,
    load_producer_state,
    note_in,
    read_marker,
    recover,
)
from hailbus_broker.log.results import (
    AbortedTransaction,
    ActiveProducer,
    AppendResult,
    FileSlice,
    Isolation,
    Origin,
    ReadResult,
    TimestampAndOffset,
)
from hailbus_broker.log.retention import count_deletable
from hailbus_broker.log.segment import MAX_RELATIVE_OFFSET, SEGMENT_SUFFIXES, Segment, file_name
from hailbus_broker.log.tail_cache import CachedBatch, TailCache
from hailbus_broker.log.validation import MIN_RECORD_BYTES, check_batch, prepare
from hailbus_broker.records import (
    BATCH_OVERHEAD,
    BatchHeader,
    BatchView,
    ControlType,
    CorruptBatchError,
    InvalidRecordError,
    iterate_records,
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
    from hailbus_broker.log.disk import Buffer, Disk, File
    from hailbus_broker.log.leader_epochs import LeaderEpochs
    from hailbus_broker.records import LeaderEpoch, Offset, ProducerEpoch, ProducerId

_MAGIC: Final = 2
_MAGIC_POSITION: Final = 16
_LEADER_EPOCH_POSITION: Final = 12
_INDEX_ENTRY_BYTES: Final = 8
_UNUSUAL_BITS: Final = LOG_APPEND_TIME_BIT | CONTROL_BIT | TRANSACTIONAL_BIT
_LAST_CODEC: Final = 4
_SNAPSHOT_EVERY_BYTES: Final = 1024 * 1024
_unpack_header = HEADER.unpack_from
_pack_offset = Struct(">q").pack_into
_pack_leader_epoch = Struct(">i").pack_into
_base_offset_of = attrgetter("base_offset")


class PendingSync:
    """A sync that has been started.

    `run` it in any thread, then give it to `PartitionLog.finish_sync` in the log's own.
    """

    __slots__ = ("_disk", "directories", "end_offset", "epochs", "files", "paths")

    def __init__(
        self,
        disk: Disk,
        files: tuple[File, ...],
        paths: tuple[str, ...],
        directories: tuple[str, ...],
        epochs: tuple[str, bytes] | None,
        end_offset: Offset,
    ) -> None:
        self._disk: Final = disk
        self.files: Final = files
        self.paths: Final = paths
        self.directories: Final = directories
        self.epochs: Final = epochs
        self.end_offset: Final = end_offset

    def run(self) -> None:
        """Bring to stable storage what was written before the sync was started.

        Raises:
            StorageError: It failed; give it to `finish_sync` too.
        """
        for file in self.files:
            file.sync()
        for path in self.paths:
            self._disk.open(path).sync()
        if self.epochs is not None:
            self._disk.write_whole(*self.epochs)
        for directory in self.directories:
            self._disk.sync_directory(directory)


class PendingRemoval:
    """Files of segments that the log has let go of; `run` it in any thread. Readers that hold one keep it."""

    __slots__ = ("_disk", "_paths", "segment_count")

    def __init__(self, disk: Disk, paths: tuple[str, ...], segment_count: int) -> None:
        self._disk: Final = disk
        self._paths: Final = paths
        self.segment_count: Final = segment_count

    def run(self) -> None:
        """Remove them, oldest first: a crash in between leaves a log that begins earlier, never one with a hole.

        Raises:
            StorageError: The machine failed.
        """
        for path in self._paths:
            self._disk.remove(path)


class CheckpointFiles(NamedTuple):
    """A producer snapshot to be written, and older ones that it replaces."""

    path: str
    data: bytes
    removed_paths: tuple[str, ...]


class PartitionLog:
    """One partition's records, by offset. Made by `open`.

    Attributes:
        directory: Path of the partition's files.
        config: The topic's settings; may be replaced at any time.
        log_start_offset: First readable offset, inclusive.
        log_end_offset: The offset that the next record will get.
        high_watermark: Exclusive end of what consumers may read; moved by the caller only.
        synced_end_offset: Everything below it is on stable storage; the recovery point.
        recovery: What opening the log had to do.
        leader_epochs: Which leader epoch began where.
        failure: Why the log refuses appends, None while it takes them.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: LogConfig,
        *,
        segments: list[Segment],
        log_start_offset: Offset,
        log_end_offset: Offset,
        producer_state: ProducerState,
        leader_epochs: LeaderEpochs,
        recovery: RecoveryReport,
        tail_cache: TailCache,
    ) -> None:
        self._disk: Final = disk
        self.directory: Final = directory
        self.config = config
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.high_watermark = log_start_offset
        self.synced_end_offset = log_end_offset
        self.leader_epochs: Final = leader_epochs
        self._newest_leader_epoch = leader_epochs.latest
        self.recovery: Final = recovery
        self.failure: StorageError | None = None
        self._sync_failure: StorageError | None = None
        self._segments = segments
        self._active = segments[-1]
        self._producers = producer_state
        self._tail: deque[CachedBatch] = deque()
        self._tail_cache: Final = tail_cache
        # Dicts for sets in the order of insertion: two runs of a simulation sync in the same order.
        self._dirty_files: dict[File, None] = {}
        self._first_directories: dict[str, None] = {}
        self._first_paths: dict[str, None] = {}
        """What the first sync takes along: it need not last before there is something in the log."""
        self._is_directory_dirty = False
        self._are_epochs_dirty = False
        self._snapshot_offset: Offset = -1
        self._mid_snapshots: set[Offset] = set()
        self._total_bytes = 0
        self._snapshot_total_bytes = 0
        self._checkpoint_total_bytes = 0
        self._is_swapping = False

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        config: LogConfig,
        *,
        now_ms: int,
        clean: bool,
        recovery_point: Offset = 0,
        log_start_offset: Offset = 0,
        tail_cache: TailCache | None = None,
        refuses_damage: bool = False,
    ) -> PartitionLog:
        """Open the log in a directory, which is made if it is missing, and repair what a crash left.

        Args:
            disk: Where the directory is.
            directory: Path of the partition's directory.
            config: The topic's settings.
            now_ms: Milliseconds since 1970 UTC.
            clean: Whether the node stopped in order the last time: then nothing is checked.
            recovery_point: After a crash, everything below this offset is known to be synced, and is not checked.
            log_start_offset: As it was checkpointed; the first segment may begin later.
            tail_cache: The node's budget for cached batches; None caches nothing.
            refuses_damage: Whether damage that whole batches follow is an error, instead of a gap in the log.

        Returns:
            The log. Its high watermark is at the log start: the caller knows how far it was.

        Raises:
            StorageError: The machine failed.
            CorruptBatchError: What was synced is damaged.
        """
        recovered = recover(
            disk,
            directory,
            config,
            now_ms=now_ms,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            refuses_damage=refuses_damage,
        )
        log = cls(
            disk,
            directory,
            config,
            segments=recovered.segments,
            log_start_offset=recovered.log_start_offset,
            log_end_offset=recovered.log_end_offset,
            producer_state=recovered.producer_state,
            leader_epochs=recovered.leader_epochs,
            recovery=recovered.report,
            tail_cache=tail_cache or TailCache(0),
        )
        if recovered.is_new:
            log._first_directories = dict.fromkeys((directory, directory.rpartition("/")[0]))
        if not clean:
            log._first_directories[directory] = None
            # After SIGKILL the data is in the page cache, not necessarily on the disk: the first sync brings it
            # there, and only then may anything be acknowledged again that depends on it.
            log.synced_end_offset = min(recovery_point, log.log_end_offset)
            log._total_bytes = log._active.size_bytes  # so that the next checkpoint saves what was read now
            if log.synced_end_offset < log.log_end_offset:
                log._dirty_files.update((segment.file, None) for segment in log._segments_after(log.synced_end_offset))
                log._is_directory_dirty = True
        return log

    def _segments_after(self, offset: Offset) -> list[Segment]:
        return self._segments[max(bisect_right(self._segments, offset, key=_base_offset_of) - 1, 0) :]

    # ---- append

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
        if self.failure is not None:
            raise self.failure
        is_constant = type(data) is bytes or (type(data) is memoryview and data.readonly)
        buffer: bytearray | memoryview = bytearray(data) if is_constant else data  # type: ignore[assignment]  # no bytes, as above
        if origin is not Origin.CLIENT:
            return self._append_own(buffer, now_ms, leader_epoch, must_marker_be_newer)

        config = self.config
        size_bytes = len(buffer)
        if size_bytes < BATCH_OVERHEAD or buffer[_MAGIC_POSITION] != _MAGIC:
            if not size_bytes:
                raise InvalidRecordError("a produce request holds no record batch for a partition")
            read_header(buffer)  # says what is wrong with it
        fields = _unpack_header(buffer)
        base_offset, length, _, _, crc, attributes, offset_delta = fields[:7]
        max_timestamp, producer_id, producer_epoch, sequence, record_count = fields[8:]
        if length + LOG_OVERHEAD != size_bytes:
            if 0 < length + LOG_OVERHEAD < size_bytes:
                raise InvalidRecordError("a produce request holds more than one record batch for a partition")
            raise CorruptBatchError(f"a record batch of {size_bytes} bytes claims a length of {length}")
        if size_bytes > config.max_message_bytes:
            raise _too_large(size_bytes, config)
        found_crc = crc32c(memoryview(buffer)[CRC_START:])
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
        last_sequence = -1
        if producer_id >= 0:
            last_sequence = (sequence + offset_delta) & 0x7FFFFFFF
        if producer_id >= 0 and not self._producers.follows_plainly(
            producer_id, producer_epoch, sequence, is_transactional=bool(attributes & TRANSACTIONAL_BIT)
        ):
            duplicate = self._producers.find_duplicate(producer_id, producer_epoch, sequence, last_sequence)
            if duplicate is not None:
                return AppendResult(
                    duplicate.base_offset,
                    duplicate.last_offset,
                    duplicate.timestamp if _is_log_append_time(config) else -1,
                    self.log_start_offset,
                    True,
                )
            self._producers.check(
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

        base_offset = self.log_end_offset
        last_offset = base_offset + offset_delta
        segment = self._writable_segment(size_bytes, last_offset, max_timestamp, now_ms)
        _pack_offset(buffer, 0, base_offset)
        _pack_leader_epoch(buffer, _LEADER_EPOCH_POSITION, leader_epoch)
        if leader_epoch > self._newest_leader_epoch:
            self._begin_epoch(leader_epoch, base_offset)
        file = segment.file
        try:
            file.append(buffer)
        except StorageError as error:
            self._fail_write(segment, error)
        segment.note(size_bytes, last_offset, max_timestamp, config.index_interval_bytes)
        self._dirty_files[file] = None
        self._total_bytes += size_bytes
        self.log_end_offset = last_offset + 1
        if producer_id >= 0:
            self._producers.note_batch(
                producer_id,
                producer_epoch,
                last_sequence,
                last_offset,
                offset_delta,
                max_timestamp,
                is_transactional=bool(attributes & TRANSACTIONAL_BIT),
            )
        self._tail_cache.add(self._tail, CachedBatch(base_offset, last_offset, buffer, size_bytes))
        return AppendResult(base_offset, last_offset, log_append_time_ms, self.log_start_offset, False)

    def _append_own(
        self,
        buffer: bytearray | memoryview,
        now_ms: int,
        leader_epoch: LeaderEpoch,
        must_marker_be_newer: bool,
    ) -> AppendResult:
        """Append what this node's coordinators wrote: data of internal topics and transaction markers."""
        batches = split_batches(buffer)
        base_offset = next_offset = self.log_end_offset
        for batch in batches:
            batch.check_crc()
            header = batch.header
            if batch.size_bytes > self.config.max_message_bytes:
                raise _too_large(batch.size_bytes, self.config)
            if header.producer_id >= 0:
                if header.is_control:
                    marker = read_marker(batch)
                    if marker is not None:
                        self._producers.check_marker(
                            header.producer_id, header.producer_epoch, marker[1], must_be_newer=must_marker_be_newer
                        )
                else:
                    self._producers.check(
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
        return AppendResult(base_offset, next_offset - 1, -1, self.log_start_offset, False)

    def append_as_follower(self, data: Buffer, *, now_ms: int) -> None:
        """Write batches as their leader has written them: offsets and leader epochs stay.

        Raises:
            UnexpectedAppendOffsetError: The batches do not continue this log.
            CorruptBatchError: They are damaged.
            StorageError: The write failed.
        """
        if self.failure is not None:
            raise self.failure
        buffer = bytearray(data)
        batches = split_batches(buffer)
        next_offset = self.log_end_offset
        for batch in batches:
            batch.check_crc()
            if batch.header.base_offset < next_offset:
                raise UnexpectedAppendOffsetError(
                    f"a leader's batch begins at {batch.header.base_offset}, this log ends at {next_offset}"
                )
            next_offset = batch.header.next_offset
        self._write_batches(buffer, batches, now_ms)

    def _write_batches(self, buffer: bytearray | memoryview, batches: list[BatchView], now_ms: int) -> None:
        last = batches[-1].header
        max_timestamp = max(batch.header.max_timestamp for batch in batches)
        segment = self._writable_segment(len(buffer), last.last_offset, max_timestamp, now_ms)
        for batch in batches:
            if batch.header.leader_epoch > self.leader_epochs.latest:
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
        self._total_bytes += len(buffer)
        for batch in batches:
            header = batch.header
            segment.note(batch.size_bytes, header.last_offset, header.max_timestamp, self.config.index_interval_bytes)
            self.log_end_offset = header.next_offset
            if header.producer_id >= 0:
                completed = note_in(self._producers, header, batch.data)
                if completed is not None:
                    self._complete(segment, completed)
            self._tail_cache.add(
                self._tail, CachedBatch(header.base_offset, header.last_offset, batch.data, batch.size_bytes)
            )

    def _complete(self, segment: Segment, completed: CompletedTransaction) -> None:
        if completed.is_aborted:
            self._dirty_files[segment.transaction_index.append(aborted_entry(self._producers, completed))] = None
            self._is_directory_dirty = True
        self._producers.complete(completed)

    def _begin_epoch(self, leader_epoch: LeaderEpoch, start_offset: Offset) -> None:
        # Written with the next sync: everything below the recovery point is in the checkpoint, and recovery takes the
        # rest from the batches.
        if self.leader_epochs.assign(leader_epoch, start_offset):
            self._are_epochs_dirty = True
        self._newest_leader_epoch = self.leader_epochs.latest

    def _fail_write(self, segment: Segment, error: StorageError) -> None:
        """Take back what a failed write left, and take no more."""
        self.failure = error
        with suppress(StorageError):  # else recovery cuts it off
            segment.file.truncate(segment.size_bytes)
        raise error

    def _writable_segment(self, size_bytes: int, last_offset: Offset, max_timestamp: int, now_ms: int) -> Segment:
        """The active segment, after rolling if it cannot or should not take the bytes."""
        segment = self._active
        config = self.config
        if size_bytes > config.segment_bytes:
            raise BatchSetTooLargeError(
                f"record batches of {size_bytes} bytes are larger than segment.bytes, {config.segment_bytes}"
            )
        if segment.size_bytes == 0:
            return segment
        first_timestamp = segment.first_timestamp
        if first_timestamp is None:
            first_timestamp = segment.first_timestamp = next(iter(segment.scan())).header.max_timestamp
            segment.index_bytes = segment.offset_index.size_bytes
        waited_ms = max_timestamp - first_timestamp if first_timestamp >= 0 else now_ms - segment.created_ms
        if (
            segment.size_bytes + size_bytes <= config.segment_bytes
            and waited_ms <= config.max_segment_ms - config.segment_jitter_ms
            and segment.index_bytes <= config.segment_index_bytes - _INDEX_ENTRY_BYTES
            and last_offset - segment.base_offset <= MAX_RELATIVE_OFFSET
        ):
            return segment
        self.roll(now_ms=now_ms)
        return self._active

    def roll(self, *, now_ms: int) -> None:
        """Close the active segment and begin the next one at the log end. An empty active segment stays.

        Raises:
            StorageError: The machine failed, and the log refuses appends; or too many files are open, and nothing has
                changed.
        """
        if self._active.size_bytes == 0:
            return
        try:
            self._dirty_files.update(dict.fromkeys(self._active.finish_indexes()))
            self._write_snapshot(self.log_end_offset)
            self._active = Segment(self._disk, self.directory, self.log_end_offset, is_new=True, created_ms=now_ms)
        except StorageError as error:
            if not error.is_out_of_descriptors:
                self.failure = error
            raise
        self._segments.append(self._active)
        self._is_directory_dirty = True

    def prepare_checkpoint(self) -> CheckpointFiles | None:
        """Write out the index entries that wait in memory, and give the producer state if much was appended since.

        Nothing of it has to be synced: it only saves reading after a crash, and is checked then.
        """
        if self.failure is not None or self._total_bytes == self._checkpoint_total_bytes:
            return None
        self._checkpoint_total_bytes = self._total_bytes
        active = self._active
        active.offset_index.flush()
        active.time_index.flush()
        if not self._producers.producers or self._total_bytes - self._snapshot_total_bytes < _SNAPSHOT_EVERY_BYTES:
            return None
        self._snapshot_total_bytes = self._total_bytes
        # the one before stays: the new one is of no use as long as the recovery point is below it
        kept = {segment.base_offset for segment in self._segments} | {self._snapshot_offset}
        self._mid_snapshots.add(self._snapshot_offset)
        removed = self._mid_snapshots - kept
        self._mid_snapshots -= removed
        self._snapshot_offset = self.log_end_offset
        return CheckpointFiles(
            path=f"{self.directory}/{file_name(self.log_end_offset, SNAPSHOT_SUFFIX)}",
            data=self._producers.to_snapshot(),
            removed_paths=tuple(f"{self.directory}/{file_name(offset, SNAPSHOT_SUFFIX)}" for offset in sorted(removed)),
        )

    def _write_snapshot(self, offset: Offset) -> None:
        path = f"{self.directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"
        self._disk.remove(path)
        file = self._disk.open(path, create=True)
        file.append(self._producers.to_snapshot())
        self._dirty_files[file] = None
        self._is_directory_dirty = True
        self._snapshot_offset = offset
        self._snapshot_total_bytes = self._total_bytes

    # ---- sync

    @property
    def is_dirty(self) -> bool:
        """Whether something was written that has not been synced."""
        return bool(self._dirty_files) or self._is_directory_dirty or self._are_epochs_dirty

    def start_sync(self) -> PendingSync | None:
        """Take note of what has been written until now.

        Returns:
            What has to be run and then given to `finish_sync`; None if everything is synced.
        """
        if not self.is_dirty:
            return None
        pending = PendingSync(
            self._disk,
            tuple(self._dirty_files),
            tuple(self._first_paths),
            tuple(self._first_directories | ({self.directory: None} if self._is_directory_dirty else {})),
            (self.leader_epochs.path, self.leader_epochs.to_bytes()) if self._are_epochs_dirty else None,
            self.log_end_offset,
        )
        self._dirty_files.clear()
        self._is_directory_dirty = self._are_epochs_dirty = False
        self._first_paths, self._first_directories = {}, {}
        return pending

    def _forget_file(self, file: File | None) -> None:
        if file is not None:
            self._dirty_files.pop(file, None)

    def sync_first(self, path: str) -> None:
        """Let the next sync take a file along, which somebody else has written."""
        self._first_paths[path] = None

    def retry_sync(self, pending: PendingSync) -> None:
        """Take back a sync that failed because no file descriptor was free. The next sync covers it."""
        self._dirty_files.update(dict.fromkeys(pending.files))
        self._first_paths.update(dict.fromkeys(pending.paths))
        self._first_directories.update(dict.fromkeys(pending.directories))
        self._are_epochs_dirty |= pending.epochs is not None
        self._is_directory_dirty = True

    def release_closed_segments(self) -> None:
        """Let go of the descriptors of all segments but the active one; they are opened again when they are needed."""
        if not self._is_swapping:
            for segment in self._segments[:-1]:
                segment.release()

    def finish_sync(self, pending: PendingSync, error: StorageError | None = None) -> Offset:
        """Account for a sync that has been run.

        Args:
            pending: What `start_sync` gave.
            error: What its `run` raised.

        Returns:
            The synced end offset: everything below it is on stable storage.

        Raises:
            StorageError: It failed, or one failed before. What the system did with the pages is unknown then, and
                trying again would report success for data that is lost: the log refuses appends until it is opened
                again.
        """
        if error is not None:
            self.failure = self._sync_failure = self._sync_failure or error
        if self._sync_failure is not None:
            raise self._sync_failure
        # A write that failed meanwhile ends the appends, but what was written before it is as safe as ever.
        self.synced_end_offset = max(self.synced_end_offset, min(pending.end_offset, self.log_end_offset))
        return self.synced_end_offset

    def sync(self) -> Offset:
        """Bring everything to stable storage, in this thread.

        Returns:
            The synced end offset.

        Raises:
            StorageError: It failed; see `finish_sync`.
        """
        pending = self.start_sync()
        if pending is not None:
            error = None
            try:
                pending.run()
            except StorageError as raised:
                error = raised
            self.finish_sync(pending, error)
        elif self._sync_failure is not None:
            raise self._sync_failure
        return self.synced_end_offset

    def close(self, *, now_ms: int) -> None:
        """Write indexes and producer state and sync, so that the next `open` may be a clean one.

        Raises:
            StorageError: It failed: the next `open` must not treat this as a clean stop.
        """
        if self.failure is not None:
            raise self.failure
        # If nothing was written and nothing had to be repaired, everything is as the last clean stop left it.
        if self._total_bytes or self.is_dirty or self.recovery != RecoveryReport():
            self._dirty_files.update(dict.fromkeys(self._active.finish_indexes()))
            self._write_snapshot(self.log_end_offset)
            self.sync()
            self._remove_old_snapshots()
        self._tail.clear()
        for segment in self._segments:
            segment.release()
        self.failure = StorageError("the log is closed", path=self.directory)
        del now_ms

    def _remove_old_snapshots(self) -> None:
        """Keep the snapshots at segment starts and the newest."""
        bases = {segment.base_offset for segment in self._segments}
        for name in self._disk.list(self.directory):
            if name.endswith(SNAPSHOT_SUFFIX):
                offset = int(name[: -len(SNAPSHOT_SUFFIX)])
                if offset not in bases and offset != self._snapshot_offset:
                    self._disk.remove(f"{self.directory}/{name}")

    # ---- read

    @property
    def last_stable_offset(self) -> Offset:
        """First offset of the oldest open transaction, else the high watermark; exclusive end of READ_COMMITTED."""
        if not self._producers.has_transactions:
            return self.high_watermark
        unstable = self._producers.first_unstable_offset()
        if unstable is None:
            return self.high_watermark
        return min(self.high_watermark, max(unstable, self.log_start_offset))

    def advance_high_watermark(self, offset: Offset) -> bool:
        """Let consumers read up to an offset, exclusive. It never goes back.

        Returns:
            Whether it moved, or the last stable offset may have.
        """
        if offset <= self.high_watermark:
            return False
        self.high_watermark = min(offset, self.log_end_offset)
        if self._producers.has_transactions:
            self._producers.high_watermark_moved(self.high_watermark)
        return True

    def read(
        self,
        offset: Offset,
        max_bytes: int,
        *,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        min_one_batch: bool = True,
    ) -> ReadResult:
        """Batches from the one that holds an offset on, within one segment.

        Args:
            offset: From the log start to the log end, where there is nothing to read yet.
            max_bytes: At most so many, except for the first batch.
            isolation: How far the read may see.
            min_one_batch: Whether the first batch comes even when it is larger than `max_bytes`.

        Raises:
            OffsetOutOfRangeError: The offset is before the log start or after the log end.
            CorruptBatchError: What lies at the offset is damaged.
            StorageError: The read failed.
        """
        high_watermark = self.high_watermark
        stable = high_watermark if not self._producers.has_transactions else self.last_stable_offset
        start_offset = self.log_start_offset
        if not start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRangeError(offset, log_start_offset=start_offset, end_offset=self.log_end_offset)
        aborted: tuple[AbortedTransaction, ...] | None = None
        if isolation is Isolation.READ_UNCOMMITTED:
            end_offset = high_watermark
        elif isolation is Isolation.READ_COMMITTED:
            end_offset = stable
            aborted = ()
        else:
            end_offset = self.log_end_offset
        if offset >= end_offset:
            return ReadResult((), None, 0, high_watermark, stable, start_offset, aborted)

        tail = self._tail
        if tail and tail[0].base_offset <= offset:
            # Mostly the reader follows closely: look at the last batch before searching.
            first = len(tail) - 1
            if tail[first].base_offset > offset:
                first = bisect_right(tail, offset, key=_base_offset_of) - 1
            buffers: list[Buffer] = []
            length = 0
            last_offset = offset
            for number in range(first, len(tail)):  # islice would walk over all that come before
                _, batch_last, data, size_bytes = tail[number]
                if batch_last >= end_offset or (length + size_bytes > max_bytes and (buffers or not min_one_batch)):
                    break
                buffers.append(data)
                length += size_bytes
                last_offset = batch_last
            if aborted is not None and length:
                aborted = self.aborted_transactions(offset, last_offset + 1)
            return ReadResult(tuple(buffers), None, length, high_watermark, stable, start_offset, aborted)

        piece, upper_offset = self._read_from_file(offset, max_bytes, end_offset, min_one_batch=min_one_batch)
        if aborted is not None and piece is not None:
            aborted = self.aborted_transactions(offset, upper_offset)
        length = 0 if piece is None else piece.length
        return ReadResult((), piece, length, high_watermark, stable, start_offset, aborted)

    def _read_from_file(
        self, offset: Offset, max_bytes: int, end_offset: Offset, *, min_one_batch: bool
    ) -> tuple[FileSlice | None, Offset]:
        """The slice to send, and an offset that all its records are below."""
        number = bisect_right(self._segments, offset, key=_base_offset_of) - 1
        # compaction may have emptied the end of a segment: then the offset's successor is in a later one
        for segment in self._segments[max(number, 0) :]:
            found = segment.find(offset)
            if found is not None:
                break
        else:
            return None, end_offset
        if found.last_offset >= end_offset:
            return None, end_offset
        limit = segment.size_bytes
        upper_offset = end_offset
        if segment is not self._active:
            number = self._segments.index(segment)
            upper_offset = min(end_offset, self._segments[number + 1].base_offset)
        if end_offset < self.log_end_offset:
            end = segment.find(end_offset)
            if end is not None:
                limit = end.position
        length = limit - found.position
        if length > max_bytes:
            if found.size_bytes > max_bytes:
                length = found.size_bytes if min_one_batch else 0
            else:
                # Cut at a batch boundary that the index knows, so that nothing is sent twice; else anywhere, readers
                # expect it.
                boundary = segment.offset_index.batch_start_at_or_before(found.position + max_bytes)
                length = boundary - found.position if boundary > found.position else max_bytes
        if length <= 0:
            return None, end_offset
        return FileSlice(segment.file, found.position, length), upper_offset

    def aborted_transactions(self, start_offset: Offset, end_offset: Offset) -> tuple[AbortedTransaction, ...]:
        """Transactions that were aborted and have records in [start, end), by first offset."""
        found: list[AbortedTransaction] = []
        for segment in self._segments_after(start_offset):
            is_complete = False
            for aborted in segment.transaction_index.entries:
                if aborted.last_offset >= start_offset and aborted.first_offset < end_offset:
                    found.append(aborted)
                # every transaction that begins below the last stable offset of then has ended before this marker
                if aborted.last_stable_offset >= end_offset:
                    is_complete = True
            if is_complete:
                break
        return tuple(sorted(found, key=lambda aborted: aborted.first_offset))

    def offset_for_timestamp(self, timestamp: int) -> TimestampAndOffset | None:
        """The first record whose timestamp is at least `timestamp`, None when all are older.

        Raises:
            CorruptBatchError: A batch on the way is damaged.
        """
        for segment in self._segments:
            if segment.max_timestamp < timestamp:
                continue
            found = segment.find(max(segment.time_index.offset_before(timestamp), self.log_start_offset))
            if found is None:
                continue
            for scanned in segment.scan(found.position):
                if scanned.header.max_timestamp < timestamp:
                    continue
                for record in iterate_records(BatchView(scanned.data)):
                    if record.timestamp >= timestamp and record.offset >= self.log_start_offset:
                        return TimestampAndOffset(record.timestamp, record.offset, scanned.header.leader_epoch)
        return None

    def max_timestamp(self) -> TimestampAndOffset | None:
        """The record with the highest timestamp, the first of them; None for a log without timestamps."""
        newest = max(self._segments, key=lambda segment: segment.max_timestamp)
        if newest.max_timestamp < 0:
            return None
        found = newest.find(max(newest.offset_of_max_timestamp, self.log_start_offset))
        if found is None:
            return None
        for scanned in newest.scan(found.position):
            if scanned.header.max_timestamp >= newest.max_timestamp:
                for record in iterate_records(BatchView(scanned.data)):
                    if record.timestamp >= newest.max_timestamp:
                        return TimestampAndOffset(record.timestamp, record.offset, scanned.header.leader_epoch)
        return None

    def end_offset_for_epoch(self, leader_epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        """The largest epoch at or below the given one and its end offset, exclusive.

        (-1, -1) for an unknown one (KIP-101).
        """
        return self.leader_epochs.end_offset_for(leader_epoch, self.log_end_offset)

    def damaged_paths(self) -> list[str]:
        """Files with damage that recovery left a gap for, at this or an earlier start; the log is not whole."""
        set_aside = [f"{self.directory}/{name}" for name in self._disk.list(self.directory) if DAMAGED_INFIX in name]
        return sorted({*set_aside, *(damage.path for damage in self.recovery.damages if not damage.set_aside_path)})

    # ---- producers

    def has_open_transaction(self, producer_id: ProducerId, producer_epoch: ProducerEpoch) -> bool:
        """Whether the producer has an open transaction here: then its next batch needs no verification (KIP-890)."""
        return self._producers.has_open_transaction(producer_id, producer_epoch)

    def needs_marker(self, producer_id: ProducerId, producer_epoch: ProducerEpoch) -> bool:
        """Whether a transaction marker of this epoch is still to be written here, after a restart in between."""
        return self._producers.needs_marker(producer_id, producer_epoch)

    def producers(self) -> list[ActiveProducer]:
        """The state of all producers, by id, for DescribeProducers."""
        return self._producers.active_producers()

    def expire_producers(self, *, now_ms: int) -> int:
        """Forget producers that have been silent for `producer_id_expiration_ms`.

        Returns:
            How many.
        """
        return self._producers.expire(now_ms=now_ms, after_ms=self.config.producer_id_expiration_ms)

    # ---- the front and the back of the log

    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size_bytes for segment in self._segments)

    def delete_records(self, before_offset: Offset) -> Offset:
        """Make the log start at an offset; -1 is the high watermark. Segments below it go with the next retention.

        Returns:
            The log start offset, which never goes back. It lasts when the caller has checkpointed it.

        Raises:
            OffsetOutOfRangeError: The offset is above the high watermark.
        """
        if before_offset == -1:
            before_offset = self.high_watermark
        if before_offset > self.high_watermark or before_offset < 0:
            raise OffsetOutOfRangeError(
                before_offset, log_start_offset=self.log_start_offset, end_offset=self.high_watermark
            )
        if before_offset > self.log_start_offset:
            self.log_start_offset = before_offset
            self._are_epochs_dirty |= self.leader_epochs.truncate_start(before_offset)
        return self.log_start_offset

    def apply_retention(self, *, now_ms: int) -> int:
        """Delete the segments that are too old, too many, or below the log start, in this thread.

        Returns:
            How many segments were deleted.

        Raises:
            StorageError: The machine failed.
        """
        removal = self.start_retention(now_ms=now_ms)
        if removal is None:
            return 0
        removal.run()
        return removal.segment_count

    def start_retention(self, *, now_ms: int) -> PendingRemoval | None:
        """Let go of the segments that are too old, too many, or below the log start.

        Returns:
            Their files, still to be removed; None if there are none.

        Raises:
            StorageError: The machine failed.
        """
        if self._is_swapping:
            return None
        count = count_deletable(
            self._segments,
            self.config,
            now_ms=now_ms,
            log_start_offset=self.log_start_offset,
            high_watermark=self.high_watermark,
            log_end_offset=self.log_end_offset,
        )
        if count == 0:
            return None
        if count == len(self._segments):
            self.roll(now_ms=now_ms)
        deleted = self._segments[:count]
        del self._segments[:count]
        paths: list[str] = []
        for segment in deleted:
            if segment.file_if_open is not None:
                self._forget_file(segment.file_if_open)
            paths += [segment.path_of(suffix) for suffix in (*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX)]
        self._is_directory_dirty = True
        start_offset = self._segments[0].base_offset
        if start_offset > self.log_start_offset:
            self.log_start_offset = start_offset
            self._are_epochs_dirty |= self.leader_epochs.truncate_start(start_offset)
        return PendingRemoval(self._disk, tuple(paths), count)

    # ---- compaction

    def start_compaction(
        self, *, now_ms: int, first_dirty_offset: Offset, max_keys: int = DEFAULT_MAX_KEYS, is_forced: bool = False
    ) -> CompactionTask | None:
        """Begin a round of compaction, if there is enough to do.

        Args:
            now_ms: Milliseconds since 1970 UTC.
            first_dirty_offset: Where the last round ended (`LogDirectory.cleaned_offsets`), 0 for none.
            max_keys: How many keys one round may remember.
            is_forced: Whether to do it however little has changed.

        Returns:
            The round: drive its `steps` in any thread, then call `finish_compaction`, or `begin_swap` and `end_swap`
            around a `swap_in` in any thread. One at a time for a log. None when the topic is not compacted, nothing is
            closed, or the dirty part is smaller than `min_cleanable_dirty_ratio` and no older than
            `max_compaction_lag_ms`.
        """
        config = self.config
        if not config.is_compacted or self.failure is not None:
            return None
        stable = self.last_stable_offset
        closed: list[Segment] = []
        for segment, following in pairwise(self._segments):
            is_too_young = (
                config.min_compaction_lag_ms > 0 and segment.max_timestamp > now_ms - config.min_compaction_lag_ms
            )
            if following.base_offset > stable or (is_too_young and following.base_offset > first_dirty_offset):
                break
            closed.append(segment)
        if not closed:
            return None
        end_offset = self._segments[len(closed)].base_offset
        if not self._segments[0].base_offset <= first_dirty_offset <= end_offset:
            first_dirty_offset = self._segments[0].base_offset
        if first_dirty_offset == end_offset and not is_forced:
            return None
        ratio = dirty_ratio(closed, first_dirty_offset)
        oldest_dirty = next(
            (segment for segment, after in pairwise([*closed, self._active]) if after.base_offset > first_dirty_offset),
            self._active,
        )
        is_overdue = (
            config.max_compaction_lag_ms < MAX_LONG
            and 0 <= oldest_dirty.max_timestamp < now_ms - config.max_compaction_lag_ms
        )
        if ratio <= config.min_cleanable_dirty_ratio and not is_overdue and not is_forced:
            return None
        return CompactionTask(
            self._disk,
            self.directory,
            config,
            segments=closed,
            first_dirty_offset=first_dirty_offset,
            aborted=self.aborted_transactions(closed[0].base_offset, end_offset),
            last_data_offsets=self._producers.last_data_offsets(),
            now_ms=now_ms,
            max_keys=max_keys,
            dirty_ratio=ratio,
        )

    def finish_compaction(self, task: CompactionTask) -> bool:
        """Put what a round has written in the place of the old segments.

        Returns:
            Whether it was done; not when the log lost one of these segments meanwhile: then what was written is
            discarded.

        Raises:
            StorageError: The machine failed in between; the log has to be opened again.
        """
        if not self.begin_swap(task):
            task.discard()
            return False
        error = None
        try:
            task.swap_in()
        except StorageError as raised:
            error = raised
        self.end_swap(task, error)
        return True

    def has_sources_of(self, task: CompactionTask) -> bool:
        """Whether the log still has all segments that a round of compaction reads."""
        present = set(map(id, self._segments))
        return all(id(segment) in present for segment in task.sources)

    def begin_swap(self, task: CompactionTask) -> bool:
        """Prepare for `task.swap_in`, which may run in another thread: until `end_swap` no file is opened by its name.

        Returns:
            Whether it may run; not when the log lost one of the old segments meanwhile, or takes no appends.
        """
        if self.failure is not None or not self.has_sources_of(task):
            return False
        for segment in task.sources:
            segment.hold()
        self._is_swapping = True
        return True

    def end_swap(self, task: CompactionTask, error: StorageError | None = None) -> None:
        """Use the new segments.

        Args:
            task: Its `swap_in` has been run.
            error: What that raised.

        Raises:
            StorageError: It failed; the log has to be opened again, which finishes the swap.
        """
        self._is_swapping = False
        if error is not None:
            self.failure = error
            raise error
        for originals, segment in task.swapped:
            at = self._segments.index(originals[0])
            for original in originals:
                self._forget_file(original.file_if_open)
            self._segments[at : at + len(originals)] = [segment]
        # Aborted records may be in the cache, and no longer in a transaction index that would hide them.
        self._tail.clear()

    def truncate_to(self, offset: Offset) -> None:
        """Drop every batch that has a record at or after an offset. For followers; consumers may have to go back.

        Raises:
            StorageError: The machine failed.
        """
        if offset >= self.log_end_offset:
            return
        offset = max(offset, self.log_start_offset)
        self._tail.clear()
        while len(self._segments) > 1 and self._segments[-1].base_offset >= offset:
            dropped = self._segments.pop()
            self._forget_file(dropped.file)
            dropped.remove_files()
        active = self._active = self._segments[-1]
        end_offset = offset
        found = active.find(offset)
        if found is not None:
            end_offset = max(min(found.base_offset, offset), active.base_offset)
            active.truncate_to_position(found.position, end_offset)
            active.bytes_since_index_entry = 0
            if found.position == 0:
                active.first_timestamp = None
        self.log_end_offset = end_offset
        self.high_watermark = min(self.high_watermark, end_offset)
        self.synced_end_offset = min(self.synced_end_offset, end_offset)
        self._dirty_files[active.file] = None
        self._is_directory_dirty = True
        if self.leader_epochs.truncate_end(end_offset):
            self._are_epochs_dirty = True
            self._newest_leader_epoch = self.leader_epochs.latest
        names = self._disk.list(self.directory)
        self._producers = load_producer_state(
            self._disk, self.directory, self._segments, names, end_offset, end_offset, RecoveryReport()
        )
        self._producers.high_watermark_moved(self.high_watermark)


def _is_log_append_time(config: LogConfig) -> bool:
    return bool(config.message_timestamp_type)


def _too_large(size_bytes: int, config: LogConfig) -> BatchTooLargeError:
    return BatchTooLargeError(
        f"a record batch of {size_bytes} bytes is larger than max.message.bytes, {config.max_message_bytes}"
    )
