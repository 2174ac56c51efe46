"""The front of a log: which segments are too old, too many, or below the log start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hailbus_broker.log.config import UNLIMITED
from hailbus_broker.log.errors import OffsetOutOfRangeError
from hailbus_broker.log.lookup import WAITING
from hailbus_broker.log.producer_state import SNAPSHOT_SUFFIX
from hailbus_broker.log.segment import SEGMENT_SUFFIXES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hailbus_broker.log.appender import Appender
    from hailbus_broker.log.config import LogConfig
    from hailbus_broker.log.disk import Disk
    from hailbus_broker.log.log_state import LogState
    from hailbus_broker.log.lookup import Reads
    from hailbus_broker.log.segment import Segment
    from hailbus_broker.log.sync import LogSync
    from hailbus_broker.records import Offset


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


class Retention:
    """Moves the log start of one log and lets go of segments."""

    __slots__ = ("_appender", "_state", "_sync")

    def __init__(self, state: LogState, sync: LogSync, appender: Appender) -> None:
        self._state: Final = state
        self._sync: Final = sync
        self._appender: Final = appender

    def delete_records(self, before_offset: Offset) -> Offset:
        """Make the log start at an offset; -1 is the high watermark. Segments below it go with the next retention.

        Returns:
            The log start offset, which never goes back. It lasts when the caller has checkpointed it.

        Raises:
            OffsetOutOfRangeError: The offset is above the high watermark.
        """
        state = self._state
        if before_offset == -1:
            before_offset = state.high_watermark
        if before_offset > state.high_watermark or before_offset < 0:
            raise OffsetOutOfRangeError(
                before_offset, log_start_offset=state.log_start_offset, end_offset=state.high_watermark
            )
        if before_offset > state.log_start_offset:
            state.log_start_offset = before_offset
            self._sync.are_epochs_dirty |= state.leader_epochs.truncate_start(before_offset)
        return state.log_start_offset

    def apply(self, *, now_ms: int) -> int:
        """Delete the segments that are too old, too many, or below the log start, in this thread.

        Returns:
            How many segments were deleted.

        Raises:
            StorageError: The machine failed.
        """
        removal = self.start(now_ms=now_ms)
        if removal is None:
            return 0
        removal.run()
        return removal.segment_count

    def start(self, *, now_ms: int, reads: Reads = WAITING) -> PendingRemoval | None:
        """Let go of the segments that are too old, too many, or below the log start.

        Returns:
            Their files, still to be removed; None if there are none.

        Raises:
            DiskReadNeededError: The lookup has something to read first; nothing has changed.
            StorageError: The machine failed.
        """
        state = self._state
        if state.is_swapping:
            return None
        count = count_deletable(
            state.segments,
            state.config,
            now_ms=now_ms,
            log_start_offset=state.log_start_offset,
            high_watermark=state.high_watermark,
            log_end_offset=state.log_end_offset,
            reads=reads,
        )
        if count == 0:
            return None
        if count == len(state.segments):
            self._appender.roll(now_ms=now_ms)
        deleted = state.segments[:count]
        del state.segments[:count]
        paths: list[str] = []
        for segment in deleted:
            self._sync.forget(segment.file_if_open)
            paths += [segment.path_of(suffix) for suffix in (*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX)]
        self._sync.is_directory_dirty = True
        start_offset = state.segments[0].base_offset
        if start_offset > state.log_start_offset:
            state.log_start_offset = start_offset
            self._sync.are_epochs_dirty |= state.leader_epochs.truncate_start(start_offset)
        return PendingRemoval(state.disk, tuple(paths), count)


def count_deletable(
    segments: Sequence[Segment],
    config: LogConfig,
    *,
    now_ms: int,
    log_start_offset: Offset,
    high_watermark: Offset,
    log_end_offset: Offset,
    reads: Reads = WAITING,
) -> int:
    """How many of the oldest segments may go: always a prefix, so that the log has no hole.

    A segment goes when its newest record is older than `retention_ms`, when without it there are still
    `retention_bytes` left, or when all of it lies below the log start. Nothing at or above the high watermark goes.
    """
    ends = [*(segment.base_offset for segment in segments[1:]), log_end_offset]
    surplus_bytes = sum(segment.size_bytes for segment in segments) - config.retention_bytes
    count = 0
    for segment, end_offset in zip(segments, ends, strict=True):
        if end_offset > high_watermark:
            break
        is_last = count == len(segments) - 1
        if is_last and segment.size_bytes == 0:
            break
        is_below_start = not is_last and end_offset <= log_start_offset
        is_too_old = is_surplus = False
        if config.is_deleted:
            newest = segment.newest_timestamp(reads)
            if newest < 0:
                newest = segment.read_created_ms(reads)
            is_too_old = config.retention_ms != UNLIMITED and now_ms - newest > config.retention_ms
            is_surplus = config.retention_bytes != UNLIMITED and surplus_bytes >= segment.size_bytes
        if not (is_below_start or is_too_old or is_surplus):
            break
        surplus_bytes -= segment.size_bytes
        count += 1
    return count
