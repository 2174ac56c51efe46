"""A log is cut: a follower drops what its leader does not have, or everything, to begin where its leader's begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hailbus_broker.log.errors import StorageError, SwapRunningError
from hailbus_broker.log.producer_state import ProducerState
from hailbus_broker.log.recovery import RecoveryReport, load_producer_state
from hailbus_broker.log.segment import Segment

if TYPE_CHECKING:
    from hailbus_broker.log.log_state import LogState
    from hailbus_broker.log.sync import LogSync
    from hailbus_broker.records import Offset


def truncate(state: LogState, sync: LogSync, offset: Offset) -> None:
    """Drop every batch that has a record at or after an offset; see `PartitionLog.truncate_to`."""
    if state.failure is not None:
        raise state.failure
    if offset >= state.log_end_offset:
        # An epoch that began here and wrote nothing may be another one in the new leader's history.
        if state.leader_epochs.truncate_end(state.log_end_offset):
            sync.are_epochs_dirty = True
            state.newest_leader_epoch = state.leader_epochs.latest
        return
    if state.is_swapping:
        raise SwapRunningError(f"{state.directory} cannot be truncated while compaction renames its files")
    try:
        end_offset = _cut_segments(state, sync, max(offset, state.log_start_offset))
        state.log_end_offset = end_offset
        state.high_watermark = min(state.high_watermark, end_offset)
        if state.leader_epochs.truncate_end(end_offset):
            sync.are_epochs_dirty = True
            state.newest_leader_epoch = state.leader_epochs.latest
        _reload_producers(state)
        sync.truncated(end_offset)
    except StorageError as error:
        state.failure = error
        raise


def _cut_segments(state: LogState, sync: LogSync, offset: Offset) -> Offset:
    """Remove the segments at and after an offset, cut the one before it, and make that the active one.

    Returns:
        The log end offset: below the given one if that lies within a batch.
    """
    state.forget_tail()
    segments = state.segments
    while len(segments) > 1 and segments[-1].base_offset >= offset:
        dropped = segments.pop()
        sync.forget(dropped.file_if_open)
        dropped.remove_files()
    last = segments[-1]
    end_offset, position = offset, last.size_bytes
    found = last.find(offset)
    if found is not None:
        end_offset, position = max(min(found.base_offset, offset), state.log_start_offset), found.position
    last.cut.position = position
    last.finish_indexes()
    sync.forget(last.file_if_open)
    # A new object for the same files: a round of compaction that still reads the old one must not put its copy in the
    # place of what is appended now.
    active = Segment(
        state.disk, state.directory, last.base_offset, size_bytes=last.size_bytes, created_ms=last.created_ms
    )
    active.truncate_to_position(position, end_offset)
    active.note_again(state.config.index_interval_bytes)
    state.active = segments[-1] = active
    sync.dirty_files[active.file] = None
    if active.transaction_index.file is not None:
        sync.dirty_files[active.transaction_index.file] = None
    sync.is_directory_dirty = True
    return end_offset


def _reload_producers(state: LogState) -> None:
    """Take the producers from the newest snapshot that is left and the batches after it."""
    before, end_offset = state.producers, state.log_end_offset
    names = state.disk.list(state.directory)
    state.producers = load_producer_state(
        state.disk, state.directory, state.segments, names, end_offset, end_offset, RecoveryReport()
    )
    state.producers.keep_unreplicated_of(before, end_offset)
    state.producers.high_watermark_moved(state.high_watermark)


def restart(state: LogState, sync: LogSync, offset: Offset, *, now_ms: int) -> None:
    """Drop every batch, and begin anew at an offset; see `PartitionLog.restart_at`."""
    if state.failure is not None:
        raise state.failure
    if state.is_swapping:
        raise SwapRunningError(f"{state.directory} cannot be replaced while compaction renames its files")
    try:
        state.forget_tail()
        for segment in state.segments:
            sync.forget(segment.file_if_open)
            segment.remove_files()
        sync.remove_snapshots()
        state.leader_epochs.entries.clear()
        state.leader_epochs.save()
        # No file of the old log may come back beside the new one: there would be a gap between them.
        state.disk.sync_directory(state.directory)
        active = Segment(state.disk, state.directory, offset, is_new=True, created_ms=now_ms)
    except StorageError as error:
        state.failure = error
        raise
    state.segments = [active]
    state.active = active
    state.newest_leader_epoch = state.leader_epochs.latest
    state.producers = ProducerState()
    state.log_start_offset = state.log_end_offset = state.high_watermark = offset
    sync.dirty_files[active.file] = None
    sync.restarted(offset)
