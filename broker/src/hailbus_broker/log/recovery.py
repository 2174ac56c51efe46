"""Opening the log of a partition: what a clean stop left is trusted, what a crash may have torn is looked at.

1. Files that were being written beside the log (`.cleaned`, `.deleted`, `.tmp`) go; a compaction that had come to its
   `.swap` files is finished.
2. Every segment that ends at or before the recovery point was synced, so it is taken as it is, without reading it.
After a
   clean stop that holds for all.
3. The rest is read from the last index entry below the recovery point on: each batch's CRC is checked and the indexes
are
   made again. The log ends before the first batch that is not whole.
4. The producer state is the newest snapshot plus the batches after it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from hailbus_broker.log.leader_epochs import LeaderEpochs
from hailbus_broker.log.producer_state import (
    NO_TRANSACTION,
    REMEMBERED_BATCHES,
    SNAPSHOT_SUFFIX,
    CompletedTransaction,
    ProducerState,
    RememberedBatch,
)
from hailbus_broker.log.results import AbortedTransaction
from hailbus_broker.log.segment import INDEX_SUFFIX, LOG_SUFFIX, SEGMENT_SUFFIXES, Segment, file_name
from hailbus_broker.records import (
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    BatchView,
    ControlType,
    CorruptBatchError,
    RecordsError,
    iterate_records,
)

if TYPE_CHECKING:
    from hailbus_broker.log.config import LogConfig
    from hailbus_broker.log.disk import Disk
    from hailbus_broker.records import Offset

CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
DELETED_SUFFIX: Final = ".deleted"
TEMPORARY_SUFFIX: Final = ".tmp"

_WINDOW_BYTES: Final = 128 * 1024
_WINDOW_INDEX_ENTRIES: Final = 8
"""So much of the log's end is looked at for the last five batches of each producer.

Of which a snapshot has only one.
"""

_COORDINATOR_EPOCH_START: Final = 2
_COORDINATOR_EPOCH_END: Final = 6


@dataclass(slots=True, kw_only=True)
class RecoveryReport:
    """What opening a log had to do: for the log line of the one who opened it.

    Attributes:
        checked_batch_count: Batches whose CRC was checked.
        truncated_bytes: Cut from the end, because no whole batch stood there.
        dropped_segments: Base offsets of segments after the cut.
        rebuilt_indexes: Base offsets of segments whose indexes were missing.
        replayed_batch_count: Batches read for the producer state.
    """

    checked_batch_count: int = 0
    truncated_bytes: int = 0
    dropped_segments: list[int] = field(default_factory=list)
    rebuilt_indexes: list[int] = field(default_factory=list)
    replayed_batch_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredLog:
    """The parts of a log, ready to be used."""

    segments: list[Segment]
    log_start_offset: Offset
    log_end_offset: Offset
    producer_state: ProducerState
    leader_epochs: LeaderEpochs
    report: RecoveryReport
    is_new: bool = False
    """No name of it has been synced yet."""


def recover(
    disk: Disk,
    directory: str,
    config: LogConfig,
    *,
    now_ms: int,
    clean: bool,
    recovery_point: Offset,
    log_start_offset: Offset,
) -> RecoveredLog:
    """Open the files of a partition directory, which is made if it is missing.

    Raises:
        StorageError: The machine failed.
        CorruptBatchError: A segment that was synced is damaged where it had to be read.
    """
    report = RecoveryReport()
    disk.make_directory(directory)
    names = sweep(disk, directory, disk.list(directory))
    base_offsets = sorted(int(name[: -len(LOG_SUFFIX)]) for name in names if name.endswith(LOG_SUFFIX))
    epochs = LeaderEpochs.load(disk, directory)
    if not base_offsets:
        segment = Segment(disk, directory, log_start_offset, is_new=True, created_ms=now_ms)
        return RecoveredLog(
            segments=[segment],
            log_start_offset=log_start_offset,
            log_end_offset=log_start_offset,
            producer_state=ProducerState(),
            leader_epochs=epochs,
            report=report,
            is_new=True,
        )
    segments = [Segment(disk, directory, base_offset) for base_offset in base_offsets]
    log_end_offset = _check_segments(disk, segments, config, epochs, report, names, clean, recovery_point)
    if epochs.truncate_end(log_end_offset + 1):
        epochs.save()
    first_offset = max(log_start_offset, segments[0].base_offset)
    if first_offset > log_end_offset:
        # records were deleted up to an offset that a crash took back: begin where the log start says
        for segment in segments:
            segment.remove_files()
        segments = [Segment(disk, directory, first_offset, is_new=True, created_ms=now_ms)]
        disk.sync_directory(directory)
        log_end_offset = first_offset
    trusted_end = log_end_offset if clean else recovery_point
    state = load_producer_state(disk, directory, segments, names, log_end_offset, trusted_end, report)
    return RecoveredLog(
        segments=segments,
        log_start_offset=first_offset,
        log_end_offset=log_end_offset,
        producer_state=state,
        leader_epochs=epochs,
        report=report,
    )


def sweep(disk: Disk, directory: str, names: list[str]) -> list[str]:
    """Remove what was being written or deleted when the node stopped, and finish a compaction's swap.

    A compaction writes `.cleaned` files, syncs them, renames them to `.swap` (the `.log` last), deletes the old
    segments and renames the `.swap` files to their names. So `.cleaned` files are worth nothing; a `.log.swap` is a
    complete segment.

    Returns:
        The names that remain.
    """
    kept = []
    swapped = [name for name in names if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)]
    for name in names:
        if name.endswith((CLEANED_SUFFIX, DELETED_SUFFIX, TEMPORARY_SUFFIX)):
            disk.remove(f"{directory}/{name}")
        elif not name.endswith(SWAP_SUFFIX):
            kept.append(name)
    for name in swapped:
        base_offset = int(name[: -len(LOG_SUFFIX + SWAP_SUFFIX)])
        segment = Segment(disk, directory, base_offset, name_suffix=SWAP_SUFFIX)
        last_offset = max((batch.header.last_offset for batch in segment.scan()), default=base_offset)
        segment.release()
        for other in sorted(name for name in kept if name.endswith(LOG_SUFFIX)):
            if base_offset <= int(other[: -len(LOG_SUFFIX)]) <= last_offset:
                for suffix in reversed(SEGMENT_SUFFIXES):
                    disk.remove(f"{directory}/{other[: -len(LOG_SUFFIX)]}{suffix}")
        finish_swap(disk, directory, base_offset)
    if swapped:
        disk.sync_directory(directory)
    for name in names:  # indexes whose `.log.swap` did not come into being
        if name.endswith(SWAP_SUFFIX):
            disk.remove(f"{directory}/{name}")
    kept = list(disk.list(directory)) if len(kept) != len(names) or swapped else kept
    logs = {name[: -len(LOG_SUFFIX)] for name in kept if name.endswith(LOG_SUFFIX)}
    remaining = []
    for name in kept:
        stem, dot, suffix = name.partition(".")
        if dot + suffix in SEGMENT_SUFFIXES[1:] and stem not in logs:
            disk.remove(f"{directory}/{name}")
        else:
            remaining.append(name)
    return remaining


def finish_swap(disk: Disk, directory: str, base_offset: Offset) -> None:
    """Rename the `.swap` files of a segment to their names, the `.log` last.

    The old files of that name are gone by then, their `.log` last: so an index that is there without its `.log` is a
    new one that was renamed before a crash.
    """
    for suffix in reversed(SEGMENT_SUFFIXES):
        target = f"{directory}/{file_name(base_offset, suffix)}"
        if disk.exists(target + SWAP_SUFFIX):
            disk.rename(target + SWAP_SUFFIX, target)


def _check_segments(
    disk: Disk,
    segments: list[Segment],
    config: LogConfig,
    epochs: LeaderEpochs,
    report: RecoveryReport,
    names: list[str],
    clean: bool,
    recovery_point: Offset,
) -> Offset:
    """Make the indexes of all segments usable and find the log end offset; drops segments behind a torn one."""
    known = set(names)
    end_offset = segments[0].base_offset
    for number, segment in enumerate(segments):
        is_active = number == len(segments) - 1
        next_base = None if is_active else segments[number + 1].base_offset
        has_index = file_name(segment.base_offset, INDEX_SUFFIX) in known
        is_synced = clean or (next_base is not None and next_base <= recovery_point)
        if is_synced and next_base is not None and has_index:
            end_offset = next_base
            continue
        if not has_index:
            report.rebuilt_indexes.append(segment.base_offset)
        trusted_offset = None if clean and has_index else recovery_point
        end_offset, is_torn = _check_segment(segment, config, epochs, report, trusted_offset, has_index, end_offset)
        if next_base is not None:
            segment.finish_indexes()
            segment.release()
            if end_offset != next_base and not config.is_compacted:
                # The end of this segment did not reach the disk, the next one did: that is no torn batch, yet a hole.
                # Only compaction leaves one on purpose (ours not even then: it keeps the last batch's header, others'
                # may).
                is_torn = True
            elif not is_torn:
                end_offset = max(end_offset, next_base)
        if is_torn and not is_active:
            for dropped in segments[number + 1 :]:
                report.dropped_segments.append(dropped.base_offset)
                report.truncated_bytes += dropped.size_bytes
                dropped.remove_files()
            del segments[number + 1 :]
            disk.sync_directory(segment.path.rpartition("/")[0])
            break
    return end_offset


def _check_segment(
    segment: Segment,
    config: LogConfig,
    epochs: LeaderEpochs,
    report: RecoveryReport,
    trusted_offset: Offset | None,
    has_index: bool,
    end_offset: Offset,
) -> tuple[Offset, bool]:
    """Scan a segment's end: from its last index entry after a clean stop, otherwise from the trusted offset, with CRCs.

    Returns:
        Where the segment ends, exclusive, and whether something had to be cut off.
    """
    file_bytes = segment.size_bytes
    index, time_index = segment.offset_index, segment.time_index
    if trusted_offset is None:
        last_entry = index.last_entry
        position = 0 if last_entry is None else last_entry[1]
    else:
        if has_index:
            index.keep_growing()
            time_index.keep_growing()
        index.keep_below(max(trusted_offset - segment.base_offset, 0) if has_index else 0)
        last_entry = _last_sound_entry(segment)
        position = 0 if last_entry is None else last_entry[1]
        time_index.keep_second_below(0 if last_entry is None else last_entry[0] + 1)
        segment.transaction_index.keep_below(trusted_offset)
    # From here on batches are noted as if they were appended; the first one may be in the indexes already.
    segment.size_bytes = position
    segment.forget_max_timestamp()
    end_offset = max(end_offset, segment.base_offset)
    is_first = True
    new_epochs = False
    good_end = position
    try:
        for _, header, _ in segment.scan(position, end=file_bytes, check_crc=trusted_offset is not None):
            if not is_first and header.base_offset < end_offset:
                raise CorruptBatchError("offsets do not grow", path=segment.path, position=good_end)
            if is_first:
                segment.bytes_since_index_entry = 0
            timestamp = header.max_timestamp if header.record_count else NO_TIMESTAMP
            segment.note(header.size_bytes, header.last_offset, timestamp, config.index_interval_bytes)
            if trusted_offset is not None:
                new_epochs |= epochs.assign(header.leader_epoch, header.base_offset)
                report.checked_batch_count += 1
            is_first = False
            end_offset = header.next_offset
            good_end += header.size_bytes
    except CorruptBatchError:
        report.truncated_bytes += file_bytes - good_end
        segment.truncate_to_position(good_end, end_offset)
        segment.file.sync()
    if new_epochs:
        epochs.save()
    return end_offset, good_end != file_bytes


def _last_sound_entry(segment: Segment) -> tuple[int, int] | None:
    """The last index entry that points at the batch it names; the ones after it are dropped."""
    index = segment.offset_index
    while (entry := index.last_entry) is not None:
        if entry[1] < segment.size_bytes:
            try:
                found = next(segment.scan(entry[1]))
            except (CorruptBatchError, StopIteration):
                found = None
            if found is not None and found.header.last_offset == segment.base_offset + entry[0]:
                return entry
        index.keep_count(index.entry_count - 1)
    return None


# ---- producer state


def load_producer_state(
    disk: Disk,
    directory: str,
    segments: list[Segment],
    names: list[str],
    log_end_offset: Offset,
    trusted_end: Offset,
    report: RecoveryReport,
) -> ProducerState:
    """The newest whole snapshot at or below the log end, and what the batches after it say.

    Args:
        disk: Where the directory is.
        directory: Of the partition.
        segments: All of the log.
        names: Of the files in the directory.
        log_end_offset: Where the log ends.
        report: Counts what had to be read.
        trusted_end: Transaction indexes are complete for markers below this offset; later entries are made again, so no
            newer snapshot is taken, which would skip these markers.
    """
    state = ProducerState()
    start_offset = segments[0].base_offset
    newest_usable = min(max(trusted_end, start_offset), log_end_offset)
    snapshot_offsets = sorted(int(name[: -len(SNAPSHOT_SUFFIX)]) for name in names if name.endswith(SNAPSHOT_SUFFIX))
    for offset in reversed(snapshot_offsets):
        path = f"{directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"
        if offset <= newest_usable:
            data = disk.read_bytes(path)
            loaded = None if data is None else ProducerState.from_snapshot(data)
            if loaded is not None:
                state, start_offset = loaded, max(offset, start_offset)
                break
        disk.remove(path)
    replay(state, segments, start_offset, trusted_end, report)
    if state.producers:
        _fill_windows(state, segments)
    return state


def replay(
    state: ProducerState, segments: list[Segment], start_offset: Offset, trusted_end: Offset, report: RecoveryReport
) -> None:
    """Read the batches from an offset on and do to the producer state what appending them did."""
    for number, segment in enumerate(segments):
        is_last = number == len(segments) - 1
        if not is_last and segments[number + 1].base_offset <= start_offset:
            continue
        found = segment.find(start_offset)
        if found is None:
            continue
        for position, header, data in segment.scan(found.position):
            report.replayed_batch_count += 1
            if header.producer_id < 0 or header.base_offset < start_offset:
                continue
            completed = note_in(state, header, data)
            if completed is not None:
                if completed.is_aborted and completed.last_offset >= trusted_end:
                    segment.transaction_index.append(aborted_entry(state, completed))
                state.complete(completed)
            del position


def note_in(state: ProducerState, header: BatchHeader, data: memoryview) -> CompletedTransaction | None:
    """What one batch of the log means for the producer state.

    Returns:
        The transaction that it ends, to be completed by the caller.
    """
    if not header.is_control:
        # a batch that compaction has emptied still carries its producer's sequence
        state.note_batch(
            header.producer_id,
            header.producer_epoch,
            header.last_sequence,
            header.last_offset,
            header.last_offset_delta,
            header.max_timestamp,
            is_transactional=header.is_transactional,
        )
        return None
    marker = read_marker(BatchView(data))
    if marker is None:
        return None
    control_type, coordinator_epoch = marker
    return state.note_marker(
        header.producer_id,
        header.producer_epoch,
        coordinator_epoch,
        header.base_offset,
        header.max_timestamp,
        is_aborted=control_type is ControlType.ABORT,
    )


def read_marker(batch: BatchView) -> tuple[ControlType, int] | None:
    """Type and coordinator epoch of a transaction marker; None for other control batches and for an emptied one."""
    for record in iterate_records(batch):
        if record.key is None or len(record.key) < 4 or record.value is None:
            raise CorruptBatchError("a control record has no type", position=batch.position)
        number = int.from_bytes(record.key[2:4], "big")
        if number in {ControlType.ABORT, ControlType.COMMIT} and len(record.value) >= _COORDINATOR_EPOCH_END:
            epoch = int.from_bytes(record.value[_COORDINATOR_EPOCH_START:_COORDINATOR_EPOCH_END], "big", signed=True)
            return ControlType(number), epoch
        return None
    return None


def aborted_entry(state: ProducerState, completed: CompletedTransaction) -> AbortedTransaction:
    """The transaction index's entry for an aborted transaction, before it is completed."""
    return AbortedTransaction(
        completed.producer_id,
        completed.first_offset,
        completed.last_offset,
        state.last_stable_offset_without(completed),
    )


def _fill_windows(state: ProducerState, segments: list[Segment]) -> None:
    """Find up to five batches of each producer at the log's end: a snapshot has only the last one of each."""
    active = segments[-1]
    index = active.offset_index
    start = min(
        index.batch_start_at_or_before(max(active.size_bytes - _WINDOW_BYTES, 0)),
        index.position_of_entry(max(index.entry_count - _WINDOW_INDEX_ENTRIES, 0)),
    )
    windows: dict[int, list[RememberedBatch]] = {}
    try:
        for _, header, _ in active.scan(start):
            entry = state.producers.get(header.producer_id)
            if entry is None or header.is_control or header.base_sequence == NO_SEQUENCE:
                continue
            if entry.producer_epoch == header.producer_epoch:
                batches = windows.setdefault(header.producer_id, [])
                batches.append(
                    RememberedBatch(
                        header.last_sequence, header.last_offset, header.last_offset_delta, header.max_timestamp
                    )
                )
                del batches[:-REMEMBERED_BATCHES]
    except RecordsError as error:
        raise AssertionError(f"a segment that was just checked is damaged: {error}") from error
    for producer_id, batches in windows.items():
        entry = state.producers[producer_id]
        if entry.batches and entry.batches[-1].last_offset == batches[-1].last_offset:
            entry.batches = batches


__all__ = ["NO_TRANSACTION", "RecoveredLog", "RecoveryReport", "recover"]
