"""Compaction: keep the newest value of each key (`cleanup.policy=compact`).

1. The dirty part of the log is read: from where the last compaction ended to the first record that must stay
   untouched. The last offset of each key is remembered, for at most `max_keys` keys, so that memory is bounded. When
   they are full the round ends, and the next one continues there.
2. All closed segments up to that point are written again without the records that a later one replaces, several small
   ones into one. The batches' offsets, sequences and producers stay. A producer's last batch stays as a bare header
   even without records, so that its sequence survives.
3. The new segment replaces the old ones by renames that recovery can finish or discard at any step: `.cleaned` while
   it is written, `.swap` when it is whole and synced. Then the old files are removed and the `.swap` gets its name.

A tombstone (value null) and the marker of a transaction whose records are gone stay for `delete_retention_ms` after
the round that first meets them. The end of that time is written into their batch as its delete horizon (KIP-534): a
reader that starts at the beginning and needs less than that time sees every deletion. Records of aborted transactions
are removed at once.

One round is a generator of steps, to be driven in any thread and at any pace: it works on closed segments, with
descriptors of its own. Beginning (`PartitionLog.start_compaction`) and ending (`end_swap`) belong to the
log's thread.
"""

from __future__ import annotations

from collections import deque
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from hailbus_broker.log.config import MAX_LONG
from hailbus_broker.log.errors import StorageError
from hailbus_broker.log.lookup import WAITING, DiskReadNeededError
from hailbus_broker.log.recovery import CLEANED_SUFFIX, SWAP_SUFFIX, finish_swap, read_marker
from hailbus_broker.log.segment import MAX_RELATIVE_OFFSET, ScannedBatch, Segment
from hailbus_broker.records import NO_TIMESTAMP, BatchHeader, BatchView, ControlType, iterate_records, rebuild_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hailbus_broker.log.config import LogConfig
    from hailbus_broker.log.disk import Disk
    from hailbus_broker.log.log_state import LogState
    from hailbus_broker.log.lookup import Reads
    from hailbus_broker.log.reader import Reader
    from hailbus_broker.log.results import AbortedTransaction
    from hailbus_broker.log.sync import LogSync
    from hailbus_broker.records import Offset, ProducerId, Record

DEFAULT_MAX_KEYS: Final = 200_000
"""About 40 MB of Python objects."""

_SHORT_KEY_BYTES: Final = 16
_STEP_BYTES: Final = 64 * 1024


class LogCompaction:
    """Begins and ends the rounds of compaction of one log."""

    __slots__ = ("_reader", "_state", "_sync")

    def __init__(self, state: LogState, sync: LogSync, reader: Reader) -> None:
        self._state: Final = state
        self._sync: Final = sync
        self._reader: Final = reader

    def start(
        self,
        *,
        now_ms: int,
        first_dirty_offset: Offset,
        max_keys: int = DEFAULT_MAX_KEYS,
        is_forced: bool = False,
        reads: Reads = WAITING,
    ) -> CompactionTask | None:
        """Begin a round of compaction, if there is enough to do.

        Args:
            now_ms: Milliseconds since 1970 UTC.
            first_dirty_offset: Where the last round ended (`LogDirectory.cleaned_offsets`), 0 for none.
            max_keys: How many keys one round may remember.
            is_forced: Whether to do it however little has changed.
            reads: How the indexes are read.

        Returns:
            The round: drive its `steps` in any thread, then call `finish_compaction`, or `begin_swap` and `end_swap`
            around a `swap_in` in any thread. One at a time for a log. None when the topic is not compacted, nothing is
            closed, or the dirty part is smaller than `min_cleanable_dirty_ratio` and no older than
            `max_compaction_lag_ms`.

        Raises:
            DiskReadNeededError: The lookup has something to read first.
        """
        state = self._state
        config = state.config
        if not config.is_compacted or state.failure is not None:
            return None
        stable = state.last_stable_offset
        closed: list[Segment] = []
        for segment, following in pairwise(state.segments):
            is_too_young = (
                config.min_compaction_lag_ms > 0
                and segment.newest_timestamp(reads) > now_ms - config.min_compaction_lag_ms
            )
            if following.base_offset > stable or (is_too_young and following.base_offset > first_dirty_offset):
                break
            closed.append(segment)
        if not closed:
            return None
        end_offset = state.segments[len(closed)].base_offset
        if not state.segments[0].base_offset <= first_dirty_offset <= end_offset:
            first_dirty_offset = state.segments[0].base_offset
        if first_dirty_offset == end_offset and not is_forced:
            return None
        ratio = dirty_ratio(closed, first_dirty_offset)
        oldest_dirty = next(
            (segment for segment, after in pairwise([*closed, state.active]) if after.base_offset > first_dirty_offset),
            state.active,
        )
        is_overdue = (
            config.max_compaction_lag_ms < MAX_LONG
            and 0 <= oldest_dirty.newest_timestamp(reads) < now_ms - config.max_compaction_lag_ms
        )
        if ratio <= config.min_cleanable_dirty_ratio and not is_overdue and not is_forced:
            return None
        return CompactionTask(
            state.disk,
            state.directory,
            config,
            segments=closed,
            first_dirty_offset=first_dirty_offset,
            aborted=self._reader.aborted_transactions(closed[0].base_offset, end_offset, reads),
            last_data_offsets=state.producers.last_data_offsets(),
            now_ms=now_ms,
            max_keys=max_keys,
            dirty_ratio=ratio,
        )

    def finish(self, task: CompactionTask) -> bool:
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
        state = self._state
        present = set(map(id, state.segments))
        return all(id(segment) in present for segment in task.sources)

    def begin_swap(self, task: CompactionTask, reads: Reads = WAITING) -> bool:
        """Prepare for `task.swap_in`, which may run in another thread: until `end_swap` no file is opened by its name.

        Returns:
            Whether it may run; not when the log lost one of the old segments meanwhile, or takes no appends.

        Raises:
            DiskReadNeededError: The lookup has files to open first.
        """
        state = self._state
        if state.failure is not None or not self.has_sources_of(task):
            return False
        is_cold = False
        for segment in task.sources:
            try:
                segment.hold(reads)
            except DiskReadNeededError:
                is_cold = True  # and collect what the other segments lack
        if is_cold:
            raise DiskReadNeededError
        state.is_swapping = True
        return True

    def end_swap(self, task: CompactionTask, error: StorageError | None = None) -> None:
        """Use the new segments.

        Args:
            task: Its `swap_in` has been run.
            error: What that raised.

        Raises:
            StorageError: It failed; the log has to be opened again, which finishes the swap.
        """
        state = self._state
        state.is_swapping = False
        if error is not None:
            state.failure = error
            raise error
        for originals, segment in task.swapped:
            at = state.segments.index(originals[0])
            for original in originals:
                self._sync.forget(original.file_if_open)
            state.segments[at : at + len(originals)] = [segment]
        # Aborted records may be in the cache, and no longer in a transaction index that would hide them.
        state.forget_tail()


class CompactionTask:
    """One round of compaction of one log.

    Attributes:
        dirty_ratio: Share of the closed segments' bytes that no round has seen.
        first_dirty_offset: Where the last round ended.
        end_offset: How far this round has come, exclusive: the next one's `first_dirty_offset`. Known once it has run.
        read_bytes: So far, for throttling and metrics.
        written_bytes: So far.
        removed_record_count: So far.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: LogConfig,
        *,
        segments: Sequence[Segment],
        first_dirty_offset: Offset,
        aborted: Sequence[AbortedTransaction],
        last_data_offsets: Mapping[ProducerId, Offset],
        now_ms: int,
        max_keys: int,
        dirty_ratio: float = 1.0,
    ) -> None:
        self._disk: Final = disk
        self._directory: Final = directory
        self._config: Final = config
        # descriptors and index caches of its own: the log still uses the originals in its own thread
        self.sources: Final = list(segments)
        self._now_ms: Final = now_ms
        self._max_keys: Final = max_keys
        self._aborted: Final = aborted
        self._last_data_offsets: Final = last_data_offsets
        self._offsets: Final[dict[bytes, Offset]] = {}
        self.dirty_ratio: Final = dirty_ratio
        self.first_dirty_offset: Final = first_dirty_offset
        self.end_offset: Offset = first_dirty_offset
        self.groups: Final[list[tuple[list[Segment], Segment]]] = []
        self.swapped: Final[list[tuple[list[Segment], Segment]]] = []
        """After `swap_in`: the old segments of each group and the new one for them."""
        self.read_bytes = 0
        self.written_bytes = 0
        self.removed_record_count = 0

    def steps(self) -> Iterator[int]:
        """Do the work piece by piece.

        Yields:
            Bytes read and written since the last step, a hundred KiB or so.

        Raises:
            StorageError: The machine failed; drop the task, the log is as it was.
            CorruptBatchError: A segment is damaged; the log is as it was.
        """
        sources = [Segment(self._disk, self._directory, source.base_offset) for source in self.sources]
        ends = [*(source.base_offset for source in self.sources[1:]), self._end_of(sources[-1])]
        yield from self._remember_keys(sources, ends)
        whole = [
            (original, source, end)
            for original, source, end in zip(self.sources, sources, ends, strict=True)
            if source.base_offset < self.end_offset
        ]
        transactions = _Transactions(self._aborted)
        group: list[tuple[Segment, Segment, Offset]] = []
        for entry in whole:
            if group and not self._fits(group, entry):
                yield from self._write_group(group, transactions)
                group = []
            group.append(entry)
        if group:
            yield from self._write_group(group, transactions)

    def _end_of(self, segment: Segment) -> Offset:
        end = segment.base_offset
        entry = segment.offset_index.last_entry
        for batch in segment.scan(0 if entry is None else entry[1]):
            end = batch.header.next_offset
        return end

    # ---- first pass

    def _remember_keys(self, sources: Sequence[Segment], ends: Sequence[Offset]) -> Iterator[int]:
        offsets, max_keys = self._offsets, self._max_keys
        # This pass skips clean segments and the markers in them. A transaction that ended there would stay open here,
        # and hide what its producer has committed since.
        transactions = _Transactions([entry for entry in self._aborted if entry.last_offset >= self.first_dirty_offset])
        pending = 0
        for source, end in zip(sources, ends, strict=True):
            if end <= self.first_dirty_offset:
                continue
            for batch in source.scan():
                pending += len(batch.data)
                self.read_bytes += len(batch.data)
                if pending >= _STEP_BYTES:
                    yield pending
                    pending = 0
                header = batch.header
                if header.is_control:
                    transactions.end(batch)
                    continue
                is_aborted = header.is_transactional and transactions.is_aborted(header)
                if is_aborted or header.next_offset <= self.first_dirty_offset:
                    continue
                if len(offsets) + header.record_count > max_keys and self.end_offset > self.first_dirty_offset:
                    return
                for record in iterate_records(BatchView(batch.data)):
                    if record.key is not None:
                        offsets[_short(record.key)] = record.offset
                # Only after the whole batch: a record between is newer than what is remembered, and stays.
                self.end_offset = header.next_offset
            self.end_offset = max(self.end_offset, end)
        yield pending

    # ---- second pass

    def _fits(self, group: list[tuple[Segment, Segment, Offset]], entry: tuple[Segment, Segment, Offset]) -> bool:
        sizes = sum(source.size_bytes for _, source, _ in group) + entry[1].size_bytes
        index_bytes = sum(source.offset_index.size_bytes for _, source, _ in group) + entry[1].offset_index.size_bytes
        return (
            sizes <= self._config.segment_bytes
            and index_bytes <= self._config.segment_index_bytes
            and entry[2] - group[0][1].base_offset <= MAX_RELATIVE_OFFSET
        )

    def _write_group(self, group: list[tuple[Segment, Segment, Offset]], transactions: _Transactions) -> Iterator[int]:
        """Write the segments of a group into one `.cleaned` segment."""
        target = Segment(self._disk, self._directory, group[0][1].base_offset, is_new=True, name_suffix=CLEANED_SUFFIX)
        pending = 0
        for number, (_, source, _) in enumerate(group):
            is_last_source = number == len(group) - 1
            for batch in source.scan():
                size_bytes = len(batch.data)
                is_last = is_last_source and batch.position + size_bytes == source.size_bytes
                kept = self._keep(batch, transactions, target, is_last=is_last)
                self.read_bytes += size_bytes
                pending += size_bytes
                if kept is not None:
                    header = BatchView(kept).header
                    # a bare header's time is that of records that are gone: it finds nothing
                    timestamp = header.max_timestamp if header.record_count else NO_TIMESTAMP
                    target.write(kept)
                    target.note(len(kept), header.last_offset, timestamp, self._config.index_interval_bytes)
                    self.written_bytes += len(kept)
                    pending += len(kept)
                if pending >= _STEP_BYTES:
                    yield pending
                    pending = 0
        for file in (*target.finish_indexes(), target.file):
            file.sync()
        index_file = target.transaction_index.file
        if index_file is not None:
            index_file.sync()
        self._disk.sync_directory(self._directory)
        self.groups.append(([original for original, _, _ in group], target))
        yield pending

    def _keep(
        self, batch: ScannedBatch, transactions: _Transactions, target: Segment, *, is_last: bool
    ) -> bytearray | memoryview | None:
        """What remains of a batch, None for nothing."""
        header = batch.header
        horizon = header.delete_horizon_ms
        is_past_horizon = horizon is not None and horizon <= self._now_ms
        keeps_header = is_last or self._is_last_of_producer(header)
        is_marker_of_nothing = False
        if header.is_control:
            is_marker_of_nothing, aborted = transactions.end(batch)
            if aborted is not None:
                target.transaction_index.append(aborted)
            discards = is_marker_of_nothing and is_past_horizon
        else:
            discards = header.is_transactional and transactions.is_aborted(header)
        records: list[Record] = []
        has_tombstone = False
        if not discards:
            for record in iterate_records(BatchView(batch.data)):
                if header.is_control or self._is_kept(record, is_past_horizon=is_past_horizon):
                    records.append(record)
                    has_tombstone = has_tombstone or (record.value is None and not header.is_control)
        self.removed_record_count += header.record_count - len(records)
        if not records and not keeps_header:
            return None
        needs_horizon = horizon is None and bool(records) and (has_tombstone or is_marker_of_nothing)
        if len(records) == header.record_count and not needs_horizon:
            return batch.data
        return rebuild_batch(
            header,
            records,
            delete_horizon_ms=self._now_ms + self._config.delete_retention_ms if needs_horizon else None,
        )

    def _is_kept(self, record: Record, *, is_past_horizon: bool) -> bool:
        if record.offset >= self.end_offset:
            return True
        if record.key is None:
            return False
        newest = self._offsets.get(_short(record.key), -1)
        return record.offset >= newest and (record.value is not None or not is_past_horizon)

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        if not header.has_producer_id:
            return False
        last = self._last_data_offsets.get(header.producer_id)
        if last is None:
            return False
        # -1: all that the producer has written since its epoch began is a marker, which holds that epoch
        return header.is_control if last == -1 else header.last_offset == last

    # ---- the end

    def swap_in(self) -> None:
        """Put the new segments in the place of the old ones, between `PartitionLog.begin_swap` and `end_swap`.

        Raises:
            StorageError: The machine failed in between: the log has to be opened again, which finishes the swap.
        """
        for _, target in reversed(self.groups):
            target.rename_files(SWAP_SUFFIX)
        self._disk.sync_directory(self._directory)
        for originals, target in self.groups:
            for original in originals:
                original.remove_files(log_last=True)
            finish_swap(self._disk, self._directory, target.base_offset)
            target.release()
            self.swapped.append((originals, Segment(self._disk, self._directory, target.base_offset)))
        self._disk.sync_directory(self._directory)

    def discard(self) -> None:
        """Remove what has been written; the log is as it was."""
        for _, target in self.groups:
            target.remove_files()
        self.groups.clear()


class _Transactions:
    """Which transactions are open at a point of the scan, and which of these will have been aborted."""

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        self._aborted: Final = deque(aborted)  # by first offset, the ones that have not begun yet
        self._open_aborted: Final[dict[ProducerId, tuple[AbortedTransaction, bool]]] = {}
        self._open_committed: Final[set[ProducerId]] = set()

    def _begin_up_to(self, offset: Offset) -> None:
        while self._aborted and self._aborted[0].first_offset <= offset:
            aborted = self._aborted.popleft()
            self._open_aborted[aborted.producer_id] = (aborted, False)

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a batch of data belongs to a transaction that was aborted."""
        self._begin_up_to(header.last_offset)
        producer_id = header.producer_id
        found = self._open_aborted.get(producer_id)
        if found is None:
            self._open_committed.add(producer_id)
            return False
        self._open_aborted[producer_id] = (found[0], True)
        return True

    def end(self, batch: ScannedBatch) -> tuple[bool, AbortedTransaction | None]:
        """A marker was met.

        Returns:
            Whether nothing of its transaction was met, so that it may go; and the entry that the new segment's
            transaction index needs for it.
        """
        header = batch.header
        self._begin_up_to(header.last_offset)
        marker = read_marker(BatchView(batch.data))
        if marker is None:
            return True, None
        if marker[0] is ControlType.COMMIT:
            has_data = header.producer_id in self._open_committed
            self._open_committed.discard(header.producer_id)
            return not has_data, None
        found = self._open_aborted.pop(header.producer_id, None)
        if found is None or not found[1]:
            return True, None
        return False, found[0]


def dirty_ratio(segments: Sequence[Segment], first_dirty_offset: Offset) -> float:
    """Share of the bytes of closed segments that no round has seen, 0 to 1; a segment counts whole."""
    total = sum(segment.size_bytes for segment in segments)
    ends = [*(segment.base_offset for segment in segments[1:]), MAX_LONG]
    dirty = sum(segment.size_bytes for segment, end in zip(segments, ends, strict=True) if end > first_dirty_offset)
    return dirty / total if total else 0.0


def _short(key: bytes) -> bytes:
    """The key itself, or 16 bytes of BLAKE2 for it; of different lengths, so that they cannot be confused."""
    if len(key) < _SHORT_KEY_BYTES:
        return key
    return blake2b(key, digest_size=_SHORT_KEY_BYTES).digest()
