"""The end of a log is cut off: a follower drops what its leader does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hailbus_broker.log.recovery import RecoveryReport, load_producer_state

if TYPE_CHECKING:
    from hailbus_broker.log.log_state import LogState
    from hailbus_broker.log.sync import LogSync
    from hailbus_broker.records import Offset


def truncate(state: LogState, sync: LogSync, offset: Offset) -> None:
    """Drop every batch that has a record at or after an offset; see `PartitionLog.truncate_to`."""
    if offset >= state.log_end_offset:
        return
    offset = max(offset, state.log_start_offset)
    state.tail.clear()
    while len(state.segments) > 1 and state.segments[-1].base_offset >= offset:
        dropped = state.segments.pop()
        sync.forget(dropped.file)
        dropped.remove_files()
    active = state.active = state.segments[-1]
    end_offset = offset
    found = active.find(offset)
    if found is not None:
        end_offset = max(min(found.base_offset, offset), active.base_offset)
        active.truncate_to_position(found.position, end_offset)
        active.bytes_since_index_entry = 0
        if found.position == 0:
            active.first_timestamp = None
    state.log_end_offset = end_offset
    state.high_watermark = min(state.high_watermark, end_offset)
    sync.synced_end_offset = min(sync.synced_end_offset, end_offset)
    sync.dirty_files[active.file] = None
    sync.is_directory_dirty = True
    if state.leader_epochs.truncate_end(end_offset):
        sync.are_epochs_dirty = True
        state.newest_leader_epoch = state.leader_epochs.latest
    names = state.disk.list(state.directory)
    state.producers = load_producer_state(
        state.disk, state.directory, state.segments, names, end_offset, end_offset, RecoveryReport()
    )
    state.producers.high_watermark_moved(state.high_watermark)
