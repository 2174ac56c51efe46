"""Opening the log of a partition: what a clean stop left is trusted, what a crash may have torn is checked.

1. Unfinished files beside the log (`.cleaned`, `.deleted`, `.tmp`) are removed. A compaction that has reached its
   `.swap` files is completed.
2. Every segment that ends before the recovery point was synced, with its indexes, so it is used without reading it.
   After a clean stop that holds for all segments. Of one that ends at the recovery point only the data was synced.
3. The rest is read from the last index entry below the recovery point on: each batch's CRC is checked and the indexes
   are rebuilt.
4. Bytes that are no whole batch, with no whole batch behind them, are a torn tail: they were never synced, so never
   acknowledged, and are cut off. Bytes with a whole batch behind them are damage: what follows may have been
   acknowledged. They are set aside in a file of their own (`<segment>.log.damaged-<position>`), and the log continues
   with the batches behind them, in a segment that begins at the next whole batch; the offsets between are a gap.
5. After a power cut any sector that was not synced may be missing, so whole batches behind the recovery point prove
   nothing about the bytes before them: the log is cut there, too, and what is cut off is kept (`.log.torn-<position>`).
6. The producer state is the newest snapshot plus the batches after it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from hailbus_broker.log.errors import InvalidCheckpointError
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
from hailbus_broker.log.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    MAX_RELATIVE_OFFSET,
    SEGMENT_SUFFIXES,
    TRANSACTION_INDEX_SUFFIX,
    Segment,
    file_name,
)
from hailbus_broker.records import (
    BATCH_OVERHEAD,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    BatchView,
    ControlType,
    CorruptBatchError,
    RecordsError,
    crc32c,
    iterate_records,
)
from hailbus_broker.records.batch import CRC_START, HEADER, LOG_OVERHEAD, MAGIC_POSITION

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hailbus_broker.log.config import LogConfig
    from hailbus_broker.log.disk import Disk, File
    from hailbus_broker.log.segment import ScannedBatch
    from hailbus_broker.records import Offset

CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
DELETED_SUFFIX: Final = ".deleted"
TEMPORARY_SUFFIX: Final = ".tmp"

DAMAGED_INFIX: Final = ".damaged"
TORN_INFIX: Final = ".torn"
_SPLIT_SUFFIX: Final = ".split" + CLEANED_SUFFIX
"""Of a segment that is being copied out from behind damage; swept like every `.cleaned` file."""

_WINDOW_BYTES: Final = 128 * 1024
_WINDOW_INDEX_ENTRIES: Final = 8
"""How much of the log's end is searched for the last five batches of each producer.

A snapshot keeps only the last batch of each producer.
"""
_COPY_BYTES: Final = 1024 * 1024
_OFFSET_BYTES: Final = 8
_MAGIC: Final = 2
_MAGIC_BYTE: Final = bytes([_MAGIC])

_COORDINATOR_EPOCH_START: Final = 2
_COORDINATOR_EPOCH_END: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Bytes of a segment that are no whole batch although whole batches follow them.

    Attributes:
        path: The segment's `.log` file.
        position: Where the damage begins, in bytes.
        size_bytes: How many bytes are damaged; 0 when the end of the segment is missing.
        first_offset: First offset that is lost, inclusive.
        end_offset: Where the log continues: the lost offsets end before it.
        set_aside_path: The file that keeps the damaged bytes; empty when there are none.
    """

    path: str
    position: int
    size_bytes: int
    first_offset: Offset
    end_offset: Offset
    set_aside_path: str = ""


@dataclass(slots=True, kw_only=True)
class RecoveryReport:
    """What opening a log had to do: for the log line of the one who opened it.

    Attributes:
        checked_batch_count: Batches whose CRC was checked.
        truncated_bytes: Cut from the end, because no whole batch stood there.
        dropped_segments: Base offsets of segments after the cut, which held no whole batch.
        torn_paths: Files that keep what was cut from the end although whole batches were in it.
        damages: Damage that whole batches follow.
        rebuilt_indexes: Base offsets of segments whose indexes were missing.
        replayed_batch_count: Batches read for the producer state.
        rebuilt_epochs: Why the leader epochs were derived again from the batches; empty when the checkpoint was sound.
    """

    checked_batch_count: int = 0
    truncated_bytes: int = 0
    dropped_segments: list[int] = field(default_factory=list)
    torn_paths: list[str] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    rebuilt_indexes: list[int] = field(default_factory=list)
    replayed_batch_count: int = 0
    rebuilt_epochs: str = ""


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
    torn_from: Offset | None = None,
    refuses_damage: bool = False,
) -> RecoveredLog:
    """Open the files of a partition directory, which is made if it is missing.

    Args:
        disk: Where the directory is.
        directory: Of the partition.
        config: The topic's settings.
        now_ms: Milliseconds since 1970 UTC.
        clean: Whether the node stopped in order.
        recovery_point: Everything below this offset is known to be synced.
        log_start_offset: As it was checkpointed.
        torn_from: Sectors may be missing anywhere from this offset on, because the machine has lost its power; None if
            only the last write can be incomplete.
        refuses_damage: Whether damage that whole batches follow is an error instead of a gap; then nothing is changed.

    Raises:
        StorageError: The machine failed.
        CorruptBatchError: A segment that was synced is damaged where it had to be read.
    """
    report = RecoveryReport()
    disk.make_directory(directory)
    names = sweep(disk, directory, disk.list(directory))
    base_offsets = sorted(int(name[: -len(LOG_SUFFIX)]) for name in names if name.endswith(LOG_SUFFIX))
    try:
        epochs = LeaderEpochs.load(disk, directory)
    except InvalidCheckpointError as error:
        report.rebuilt_epochs = str(error)
        disk.rename(error.path, error.path + DAMAGED_INFIX)
        disk.sync_directory(directory)
        epochs = LeaderEpochs(disk, directory, [])
    if not base_offsets:
        # a crash while the log began anew: its segments are gone, and the checkpoint still has their epochs
        if epochs.truncate_end(log_start_offset):
            epochs.save()
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
    known = set(names)
    for segment in segments:
        if file_name(segment.base_offset, TRANSACTION_INDEX_SUFFIX) not in known:
            segment.transaction_index.note_missing()  # so that no reader has to look for it
    log_end_offset = _check_segments(
        disk, directory, segments, config, epochs, report, names, clean, recovery_point, torn_from, refuses_damage
    )
    if report.rebuilt_epochs:
        epochs.entries.clear()
        for segment in segments:
            for batch in segment.scan():
                epochs.assign(batch.header.leader_epoch, batch.header.base_offset)
        epochs.save()
    elif epochs.truncate_end(log_end_offset):
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
    if report.damages:
        # Batches have moved to other segments: their transaction index entries are made again.
        trusted_end = min(trusted_end, report.damages[0].first_offset)
        for segment in segments:
            segment.transaction_index.keep_below(trusted_end)
    state = load_producer_state(disk, directory, segments, names, log_end_offset, trusted_end, report)
    segments[-1].load_first_timestamp()
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
    directory: str,
    segments: list[Segment],
    config: LogConfig,
    epochs: LeaderEpochs,
    report: RecoveryReport,
    names: list[str],
    clean: bool,
    recovery_point: Offset,
    torn_from: Offset | None,
    refuses_damage: bool,
) -> Offset:
    """Make the indexes of all segments usable and find the log end offset.

    Cuts a torn tail, with the segments after it; takes damage out of a segment that whole batches follow.
    """
    known = set(names)
    end_offset = segments[0].base_offset
    number = -1
    while (number := number + 1) < len(segments):
        segment = segments[number]
        is_active = number == len(segments) - 1
        next_base = None if is_active else segments[number + 1].base_offset
        has_index = file_name(segment.base_offset, INDEX_SUFFIX) in known
        is_synced = clean or (next_base is not None and next_base <= recovery_point)
        # The sync up to a segment's end may have been the last before the segment was closed, and its indexes written.
        are_indexes_synced = clean or (next_base is not None and next_base < recovery_point)
        if are_indexes_synced and next_base is not None and has_index:
            end_offset = next_base
            continue
        if not has_index:
            report.rebuilt_indexes.append(segment.base_offset)
        trusted_offset = None if clean and has_index else recovery_point
        file_bytes = segment.size_bytes
        end_offset = _check_segment(segment, config, epochs, report, trusted_offset, has_index, end_offset, next_base)
        good_end = segment.size_bytes
        is_short = next_base is not None and end_offset != next_base and not config.is_compacted
        if good_end == file_bytes and not is_short:
            if next_base is not None:
                indexes = segment.finish_indexes()
                if is_synced:  # no later sync covers the indexes of a segment below the recovery point
                    for file in indexes:
                        file.sync()
                segment.release()
                # Compaction leaves gaps between segments (ours not even then, others' may).
                end_offset = max(end_offset, next_base)
            continue
        resumed = _find_batch(segment, good_end, file_bytes, end_offset, next_base)
        following = None if resumed is not None else _first_with_a_batch(segments[number + 1 :], end_offset)
        is_unsynced = torn_from is not None and end_offset >= torn_from
        if is_unsynced or (resumed is None and following is None):  # a torn tail
            if resumed is not None or following is not None:
                report.torn_paths += _keep_torn(disk, directory, segment, good_end, file_bytes, segments[number + 1 :])
            report.truncated_bytes += file_bytes - good_end
            segment.truncate_to_position(good_end, end_offset)
            segment.file.sync()
            if not is_active:
                for dropped in segments[number + 1 :]:
                    report.dropped_segments.append(dropped.base_offset)
                    report.truncated_bytes += dropped.size_bytes
                    dropped.remove_files()
                del segments[number + 1 :]
                disk.sync_directory(directory)
            break
        damaged_end = file_bytes if resumed is None else resumed[0]
        resumed_offset = resumed[1] if resumed is not None else following.base_offset if following is not None else -1
        if refuses_damage:
            segment.size_bytes = file_bytes
            raise CorruptBatchError(
                f"{damaged_end - good_end} damaged bytes, which whole batches from offset {resumed_offset} on follow; "
                "restore the file from a backup, or cut it at this position to give up what follows",
                path=segment.path,
                position=good_end,
            )
        aside = f"{segment.path}{DAMAGED_INFIX}-{good_end}" if damaged_end > good_end else ""
        if aside:
            _copy(disk, segment, good_end, damaged_end, aside)
        if resumed is not None:
            _split_off(disk, directory, segment, damaged_end, file_bytes, resumed_offset)
            segments.insert(number + 1, Segment(disk, directory, resumed_offset))
            known.discard(file_name(resumed_offset, INDEX_SUFFIX))
        disk.sync_directory(directory)  # before the bytes leave their old place
        segment.truncate_to_position(good_end, end_offset)
        segment.file.sync()
        segment.finish_indexes()
        segment.release()
        report.damages.append(
            Damage(
                path=segment.path,
                position=good_end,
                size_bytes=damaged_end - good_end,
                first_offset=end_offset,
                end_offset=resumed_offset,
                set_aside_path=aside,
            )
        )
        end_offset = max(end_offset, segments[number + 1].base_offset)
    return end_offset


def _check_segment(
    segment: Segment,
    config: LogConfig,
    epochs: LeaderEpochs,
    report: RecoveryReport,
    trusted_offset: Offset | None,
    has_index: bool,
    end_offset: Offset,
    next_base: Offset | None,
) -> Offset:
    """Scan a segment's end: from its last index entry after a clean stop, otherwise from the trusted offset, with CRCs.

    Returns:
        Where its whole batches end, exclusive; as a position that is `segment.size_bytes`, maybe before the file's end.
    """
    file_bytes = segment.size_bytes
    index, time_index = segment.offset_index, segment.time_index
    if trusted_offset is None:
        last_entry = _last_sound_entry(segment)
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
    candidate: tuple[int, Offset] | None = None
    try:
        for at, header, _ in segment.scan(position, end=file_bytes, check_crc=trusted_offset is not None):
            # The CRC does not cover the offset and the leader epoch: they must fit their neighbours.
            if header.base_offset < end_offset or (next_base is not None and header.next_offset > next_base):
                raise CorruptBatchError("offsets do not grow", path=segment.path, position=at)
            if header.base_offset != end_offset and not (is_first and position):
                following = segment.file.read(at + header.size_bytes, _OFFSET_BYTES)
                next_offset = int.from_bytes(following, "big")
                if len(following) == _OFFSET_BYTES and end_offset < next_offset < header.next_offset:
                    raise CorruptBatchError("the offset is above the next one", path=segment.path, position=at)
            if is_first:
                segment.bytes_since_index_entry = 0
            timestamp = header.max_timestamp if header.record_count else NO_TIMESTAMP
            segment.note(header.size_bytes, header.last_offset, timestamp, config.index_interval_bytes)
            if trusted_offset is not None:
                if header.leader_epoch < epochs.latest and header.leader_epoch < epochs.epoch_at(header.base_offset):
                    # The checkpoint is older than a truncation that the batches show.
                    new_epochs |= epochs.forget_above(header.leader_epoch)
                if candidate is not None:
                    if header.leader_epoch >= candidate[0]:
                        new_epochs |= epochs.assign(*candidate)
                    candidate = None
                if header.leader_epoch > epochs.latest:
                    candidate = header.leader_epoch, header.base_offset
                report.checked_batch_count += 1
            is_first = False
            end_offset = header.next_offset
    except CorruptBatchError:
        if is_first and position:
            # Damaged where the index points: where the batches before it end, an earlier entry says.
            index.keep_count(index.entry_count - 1)
            segment.size_bytes = file_bytes
            return _check_segment(
                segment, config, epochs, report, trusted_offset, has_index, segment.base_offset, next_base
            )
    if candidate is not None:
        new_epochs |= epochs.assign(*candidate)
    if new_epochs:
        epochs.save()
    if trusted_offset is not None and end_offset < trusted_offset:
        segment.transaction_index.keep_below(end_offset)  # of markers that a truncation has cut off
    return end_offset


# ---- damage


def _find_batch(
    segment: Segment, start: int, end: int, first_offset: Offset, next_base: Offset | None
) -> tuple[int, Offset] | None:
    """The first whole batch behind damage: its position and base offset, None if there is none.

    Args:
        segment: To be searched.
        start: Where the damage begins, in bytes; nothing that begins there is whole.
        end: Of the search, in bytes.
        first_offset: The batch's offsets are not below.
        next_base: Base offset of the next segment, which the batch's offsets are below.
    """
    highest = segment.base_offset + MAX_RELATIVE_OFFSET + 1 if next_base is None else next_base

    def offset_at(position: int) -> Offset | None:
        data = segment.file.read(position, BATCH_OVERHEAD)
        if len(data) < BATCH_OVERHEAD or position + BATCH_OVERHEAD > end:
            return None
        header = BatchHeader._make(HEADER.unpack(data))
        if (
            header.magic != _MAGIC
            or not BATCH_OVERHEAD <= header.size_bytes <= end - position
            or not first_offset <= header.base_offset < header.next_offset <= highest
        ):
            return None
        body = segment.file.read(position + CRC_START, header.size_bytes - CRC_START)
        return header.base_offset if crc32c(body) == header.crc else None

    # Mostly the damaged batch still says how long it is. What its records hold is not searched then.
    head = segment.file.read(start, LOG_OVERHEAD)
    if len(head) == LOG_OVERHEAD:
        following = start + LOG_OVERHEAD + int.from_bytes(head[_OFFSET_BYTES:], "big", signed=True)
        if following > start and (found := offset_at(following)) is not None:
            return following, found
    position = start + 1
    while position + BATCH_OVERHEAD <= end:
        window = segment.file.read(position, min(_COPY_BYTES, end - position))
        at = window.find(_MAGIC_BYTE, MAGIC_POSITION)
        while at >= 0:
            if (found := offset_at(position + at - MAGIC_POSITION)) is not None:
                return position + at - MAGIC_POSITION, found
            at = window.find(_MAGIC_BYTE, at + 1)
        position += max(len(window) - MAGIC_POSITION, 1)
    return None


def _first_with_a_batch(segments: Sequence[Segment], first_offset: Offset) -> Segment | None:
    """The first of the following segments, if any of them holds a whole batch."""
    for number, segment in enumerate(segments):
        next_base = segments[number + 1].base_offset if number + 1 < len(segments) else None
        lowest = max(first_offset, segment.base_offset)
        is_whole = next(_whole_batches(segment), None) is not None
        if is_whole or _find_batch(segment, 0, segment.size_bytes, lowest, next_base) is not None:
            return segments[0]
    return None


def _whole_batches(segment: Segment) -> Iterator[ScannedBatch]:
    with suppress(CorruptBatchError):
        yield from segment.scan(check_crc=True)


def _copy(disk: Disk, segment: Segment, start: int, end: int, path: str) -> None:
    """Copy bytes of a segment into a file of their own and sync it; its name lasts with the directory's next sync."""
    disk.remove(path)
    target = disk.open(path, create=True)
    for position in range(start, end, _COPY_BYTES):
        target.append(segment.file.read(position, min(_COPY_BYTES, end - position)))
    target.sync()


def _keep_torn(
    disk: Disk, directory: str, segment: Segment, start: int, end: int, following: Sequence[Segment]
) -> list[str]:
    """Copy the end of a segment, and rename the segments behind it, so that nothing is destroyed that can be read."""
    paths = []
    if end > start:
        paths.append(f"{segment.path}{TORN_INFIX}-{start}")
        _copy(disk, segment, start, end, paths[0])
    for other in following:
        paths.append(f"{other.path}{TORN_INFIX}-0")
        other.release()
        disk.rename(other.path, paths[-1])
    disk.sync_directory(directory)  # before the bytes leave their old place
    return paths


def _split_off(disk: Disk, directory: str, segment: Segment, start: int, end: int, base_offset: Offset) -> None:
    """Copy the end of a segment into a segment of its own, which gets its name once its data is on the disk."""
    path = f"{directory}/{file_name(base_offset, LOG_SUFFIX)}"
    _copy(disk, segment, start, end, path + _SPLIT_SUFFIX)
    disk.rename(path + _SPLIT_SUFFIX, path)


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
    rewritten: dict[File, None] = {}
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
                    rewritten[segment.transaction_index.append(aborted_entry(state, completed))] = None
                state.complete(completed)
            del position
    # The next recovery point may pass these entries before anything else brings them to the disk, and trusts them then.
    for file in rewritten:
        file.sync()


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
    """Find up to five batches of each producer at the log's end: a snapshot has only the last one of each.

    A segment may have been closed among these batches: then the end of the one before is searched, too.
    """
    windows: dict[int, list[RememberedBatch]] = {}
    for segment, start in reversed(_ends_of(segments)):
        try:
            for _, header, _ in segment.scan(start):
                _add_to_window(windows, state, header)
        except RecordsError as error:
            if segment is segments[-1]:
                raise AssertionError(f"a segment that was just checked is damaged: {error}") from error
            windows.clear()  # of a segment that was synced, and is not checked
    for producer_id, batches in windows.items():
        entry = state.producers[producer_id]
        if entry.batches and entry.batches[-1].last_offset == batches[-1].last_offset:
            entry.batches = batches


def _ends_of(segments: list[Segment]) -> list[tuple[Segment, int]]:
    """The segments that the window at the log's end reaches, the newest first, and where it begins in each."""
    found: list[tuple[Segment, int]] = []
    left_bytes = _WINDOW_BYTES
    for segment in reversed(segments):
        index = segment.offset_index
        start = min(
            index.batch_start_at_or_before(max(segment.size_bytes - left_bytes, 0)),
            index.position_of_entry(max(index.entry_count - _WINDOW_INDEX_ENTRIES, 0)),
        )
        found.append((segment, start))
        left_bytes -= segment.size_bytes - start
        if left_bytes <= 0 or start:
            break
    return found


def _add_to_window(windows: dict[int, list[RememberedBatch]], state: ProducerState, header: BatchHeader) -> None:
    entry = state.producers.get(header.producer_id)
    if entry is None or header.is_control or header.base_sequence == NO_SEQUENCE:
        return
    if entry.producer_epoch == header.producer_epoch:
        batches = windows.setdefault(header.producer_id, [])
        batches.append(
            RememberedBatch(header.last_sequence, header.last_offset, header.last_offset_delta, header.max_timestamp)
        )
        del batches[:-REMEMBERED_BATCHES]


__all__ = ["NO_TRANSACTION", "Damage", "RecoveredLog", "RecoveryReport", "recover"]
