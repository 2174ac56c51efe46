"""The log of one partition: appends at the end of the active segment, reads anywhere, forgets from the front.

The log is synchronous and belongs to one thread; only what is started and finished (`PendingSync`, `PendingRemoval`,
`CompactionTask`) runs in others. It reads no clock and starts nothing: the runtime decides when it is synced, cleaned
and closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hailbus_broker.log.appender import Appender
from hailbus_broker.log.compaction import DEFAULT_MAX_KEYS, CompactionTask, LogCompaction
from hailbus_broker.log.errors import StorageError
from hailbus_broker.log.log_state import LogState
from hailbus_broker.log.lookup import WAITING
from hailbus_broker.log.reader import Reader
from hailbus_broker.log.recovery import DAMAGED_INFIX, RecoveryReport, recover
from hailbus_broker.log.retention import PendingRemoval, Retention
from hailbus_broker.log.sync import CheckpointFiles, LogSync, PendingSync
from hailbus_broker.log.tail_cache import TailCache
from hailbus_broker.log.truncation import restart, truncate

if TYPE_CHECKING:
    from hailbus_broker.log.config import LogConfig
    from hailbus_broker.log.disk import Buffer, Disk
    from hailbus_broker.log.leader_epochs import LeaderEpochs
    from hailbus_broker.log.lookup import Reads
    from hailbus_broker.log.recovery import RecoveredLog
    from hailbus_broker.log.results import AbortedTransaction, ActiveProducer, TimestampAndOffset
    from hailbus_broker.records import LeaderEpoch, Offset, ProducerEpoch, ProducerId


class PartitionLog:
    """One partition's records, by offset. Made by `open`.

    Attributes:
        recovery: What opening the log had to do.
        append: See `Appender.append`.
        read: See `Reader.read`.
    """

    def __init__(
        self, disk: Disk, directory: str, config: LogConfig, recovered: RecoveredLog, tail_cache: TailCache
    ) -> None:
        self._state: Final = LogState(disk, directory, config, recovered, tail_cache)
        self._sync: Final = LogSync(self._state)
        self._appender: Final = Appender(self._state, self._sync)
        self._reader: Final = Reader(self._state)
        self._retention: Final = Retention(self._state, self._sync, self._appender)
        self._compaction: Final = LogCompaction(self._state, self._sync, self._reader)
        self.recovery: Final[RecoveryReport] = recovered.report
        # The two that are called for each request, without another call in between.
        self.append: Final = self._appender.append
        self.read: Final = self._reader.read

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
        torn_from: Offset | None = None,
        rewrites_tail: bool = True,
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
            torn_from: Sectors may be missing anywhere from this offset on: the log is cut at the first one.
            rewrites_tail: Whether what was not synced is written again after a crash, as the system may take it for
                written although a sync has failed.
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
            torn_from=torn_from,
            refuses_damage=refuses_damage,
        )
        log = cls(disk, directory, config, recovered, tail_cache or TailCache(0))
        if recovered.is_new:
            log._sync.sync_directories_first(directory, directory.rpartition("/")[0])
        if not clean:
            log._sync.opened_after_crash(recovery_point, rewrites_tail=rewrites_tail)
        return log

    def close(self, *, now_ms: int) -> None:
        """Write indexes and producer state and sync, so that the next `open` may be a clean one.

        Raises:
            StorageError: It failed: the next `open` must not treat this as a clean stop.
        """
        state, sync = self._state, self._sync
        if state.failure is not None:
            raise state.failure
        # If nothing was written and nothing had to be repaired, everything is as the last clean stop left it.
        if state.appended_bytes or sync.is_dirty or self.recovery != RecoveryReport():
            sync.dirty_files.update(dict.fromkeys(state.active.finish_indexes()))
            sync.write_snapshot()
            sync.sync()
            sync.remove_old_snapshots()
        state.forget_tail()
        for segment in state.segments:
            segment.release()
        state.failure = StorageError("the log is closed", path=state.directory)
        del now_ms

    # ---- offsets

    @property
    def directory(self) -> str:
        """Path of the partition's files."""
        return self._state.directory

    @property
    def config(self) -> LogConfig:
        """The topic's settings; may be replaced at any time."""
        return self._state.config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._state.config = config

    @property
    def log_start_offset(self) -> Offset:
        """First readable offset, inclusive."""
        return self._state.log_start_offset

    @property
    def log_end_offset(self) -> Offset:
        """The offset that the next record will get."""
        return self._state.log_end_offset

    @property
    def high_watermark(self) -> Offset:
        """Exclusive end of what consumers may read; moved by the caller only."""
        return self._state.high_watermark

    @property
    def synced_end_offset(self) -> Offset:
        """Everything below it is on stable storage; the recovery point."""
        return self._sync.synced_end_offset

    @property
    def last_stable_offset(self) -> Offset:
        """First offset of the oldest open transaction, else the high watermark; exclusive end of READ_COMMITTED."""
        return self._state.last_stable_offset

    @property
    def leader_epochs(self) -> LeaderEpochs:
        """Which leader epoch began where."""
        return self._state.leader_epochs

    @property
    def failure(self) -> StorageError | None:
        """Why the log refuses appends, None while it accepts them."""
        return self._state.failure

    def advance_high_watermark(self, offset: Offset) -> bool:
        """Let consumers read up to an offset, exclusive. It never goes back.

        Returns:
            Whether it moved, or the last stable offset may have.
        """
        state = self._state
        if offset <= state.high_watermark:
            return False
        state.high_watermark = min(offset, state.log_end_offset)
        if state.producers.has_transactions:
            state.producers.high_watermark_moved(state.high_watermark)
        return True

    # ---- append

    def append_as_follower(self, data: Buffer, *, now_ms: int) -> None:
        """See `Appender.append_as_follower`."""
        self._appender.append_as_follower(data, now_ms=now_ms)

    def begin_leader_epoch(self, leader_epoch: LeaderEpoch) -> None:
        """Note that a leader epoch begins at the log end, before it has a record.

        A follower whose log ends with an epoch that this log does not have finds out by that where the two part.
        """
        self._appender.begin_leader_epoch(leader_epoch)

    def roll(self, *, now_ms: int) -> None:
        """See `Appender.roll`."""
        self._appender.roll(now_ms=now_ms)

    # ---- sync

    @property
    def is_dirty(self) -> bool:
        """Whether something was written that has not been synced."""
        return self._sync.is_dirty

    def start_sync(self) -> PendingSync | None:
        """See `LogSync.start`."""
        return self._sync.start()

    @property
    def is_syncing(self) -> bool:
        """Whether a sync has been started and not finished."""
        return self._sync.is_running

    def finish_sync(self, pending: PendingSync, error: StorageError | None = None) -> Offset:
        """See `LogSync.finish`."""
        return self._sync.finish(pending, error)

    def retry_sync(self, pending: PendingSync) -> None:
        """See `LogSync.retry`."""
        self._sync.retry(pending)

    def sync(self) -> Offset:
        """See `LogSync.sync`."""
        return self._sync.sync()

    def sync_first(self, path: str) -> None:
        """See `LogSync.sync_first`."""
        self._sync.sync_first(path)

    def prepare_checkpoint(self) -> CheckpointFiles | None:
        """See `LogSync.prepare_checkpoint`."""
        return self._sync.prepare_checkpoint()

    def release_closed_segments(self) -> None:
        """Let go of the descriptors of all segments but the active one; they are opened again when they are needed."""
        if not self._state.is_swapping:
            for segment in self._state.segments[:-1]:
                segment.release()

    # ---- read

    def aborted_transactions(self, start_offset: Offset, end_offset: Offset) -> tuple[AbortedTransaction, ...]:
        """See `Reader.aborted_transactions`."""
        return self._reader.aborted_transactions(start_offset, end_offset)

    def offset_for_timestamp(self, timestamp: int, reads: Reads = WAITING) -> TimestampAndOffset | None:
        """See `Reader.offset_for_timestamp`."""
        return self._reader.offset_for_timestamp(timestamp, reads)

    def max_timestamp(self, reads: Reads = WAITING) -> TimestampAndOffset | None:
        """See `Reader.max_timestamp`."""
        return self._reader.max_timestamp(reads)

    def end_offset_for_epoch(self, leader_epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        """The largest epoch at or below the given one and its end offset, exclusive.

        (-1, -1) for an unknown one (KIP-101).
        """
        return self._state.leader_epochs.end_offset_for(leader_epoch, self._state.log_end_offset)

    def damaged_paths(self) -> list[str]:
        """Files with damage that recovery left a gap for, at this or an earlier start; the log is not whole."""
        directory = self._state.directory
        names = self._state.disk.list(directory)
        set_aside = [f"{directory}/{name}" for name in names if DAMAGED_INFIX in name]
        return sorted({*set_aside, *(damage.path for damage in self.recovery.damages if not damage.set_aside_path)})

    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size_bytes for segment in self._state.segments)

    # ---- producers

    def has_open_transaction(self, producer_id: ProducerId, producer_epoch: ProducerEpoch) -> bool:
        """Whether the producer has an open transaction here: then its next batch needs no verification (KIP-890)."""
        return self._state.producers.has_open_transaction(producer_id, producer_epoch)

    def needs_marker(self, producer_id: ProducerId, producer_epoch: ProducerEpoch) -> bool:
        """Whether a transaction marker of this epoch is still to be written here, after a restart in between."""
        return self._state.producers.needs_marker(producer_id, producer_epoch)

    def has_marker(self, producer_id: ProducerId, producer_epoch: ProducerEpoch) -> bool:
        """Whether the last transaction of a producer's epoch has ended here."""
        return self._state.producers.has_marker(producer_id, producer_epoch)

    def producers(self) -> list[ActiveProducer]:
        """The state of all producers, by id, for DescribeProducers."""
        return self._state.producers.active_producers()

    def expire_producers(self, *, now_ms: int) -> int:
        """Forget producers that have been silent for `producer_id_expiration_ms`.

        Returns:
            How many.
        """
        state = self._state
        return state.producers.expire(now_ms=now_ms, after_ms=state.config.producer_id_expiration_ms)

    # ---- both ends

    def delete_records(self, before_offset: Offset) -> Offset:
        """See `Retention.delete_records`."""
        return self._retention.delete_records(before_offset)

    def apply_retention(self, *, now_ms: int) -> int:
        """See `Retention.apply`."""
        return self._retention.apply(now_ms=now_ms)

    def start_retention(self, *, now_ms: int, reads: Reads = WAITING) -> PendingRemoval | None:
        """See `Retention.start`."""
        return self._retention.start(now_ms=now_ms, reads=reads)

    def truncate_to(self, offset: Offset) -> None:
        """Drop every batch that has a record at or after an offset; for followers. See `LogDirectory.truncate`.

        What is gone is no longer remembered of producers, transactions, epochs and times either. Slices of what is cut
        off say so (`FileSlice.is_cut`).

        Raises:
            StorageError: The machine failed.
            SwapRunningError: Compaction is renaming the log's files.
        """
        truncate(self._state, self._sync, offset)

    def restart_at(self, offset: Offset, *, now_ms: int) -> None:
        """Drop everything, and begin anew at an offset: what is before it comes from a snapshot, or from the leader.

        Raises:
            StorageError: The machine failed.
            SwapRunningError: Compaction is renaming the log's files.
        """
        restart(self._state, self._sync, offset, now_ms=now_ms)

    # ---- compaction

    def start_compaction(
        self,
        *,
        now_ms: int,
        first_dirty_offset: Offset,
        max_keys: int = DEFAULT_MAX_KEYS,
        is_forced: bool = False,
        reads: Reads = WAITING,
    ) -> CompactionTask | None:
        """See `LogCompaction.start`."""
        return self._compaction.start(
            now_ms=now_ms, first_dirty_offset=first_dirty_offset, max_keys=max_keys, is_forced=is_forced, reads=reads
        )

    def finish_compaction(self, task: CompactionTask) -> bool:
        """See `LogCompaction.finish`."""
        return self._compaction.finish(task)

    def has_sources_of(self, task: CompactionTask) -> bool:
        """See `LogCompaction.has_sources_of`."""
        return self._compaction.has_sources_of(task)

    def begin_swap(self, task: CompactionTask, reads: Reads = WAITING) -> bool:
        """See `LogCompaction.begin_swap`."""
        return self._compaction.begin_swap(task, reads)

    def end_swap(self, task: CompactionTask, error: StorageError | None = None) -> None:
        """See `LogCompaction.end_swap`."""
        self._compaction.end_swap(task, error)
