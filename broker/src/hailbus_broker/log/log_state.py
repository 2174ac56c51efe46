"""What the parts of a partition's log share: its segments, its offsets and its producers."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hailbus_broker.log.config import LogConfig
    from hailbus_broker.log.disk import Disk
    from hailbus_broker.log.errors import StorageError
    from hailbus_broker.log.recovery import RecoveredLog
    from hailbus_broker.log.segment import Segment
    from hailbus_broker.log.tail_cache import Tail, TailCache
    from hailbus_broker.records import Offset

base_offset_of = attrgetter("base_offset")


class LogState:
    """The state of one partition's log. It belongs to the thread of the log.

    Attributes:
        disk: Where the files are.
        directory: Path of the partition's files.
        config: The topic's settings.
        segments: All segments, by base offset; never empty.
        active: The last segment, which appends go to.
        log_start_offset: First readable offset, inclusive.
        log_end_offset: The offset that the next record will get.
        high_watermark: Exclusive end of what consumers may read.
        producers: Sequences and open transactions.
        leader_epochs: Which leader epoch began where.
        newest_leader_epoch: The last of them, -1 for none.
        tail: The newest batches, in memory.
        tail_cache: The node's budget for them.
        appended_bytes: Bytes that were appended since the log was opened.
        failure: Why the log refuses appends, None while it accepts them.
        is_swapping: Whether compaction is renaming files: none may be opened by its name.
    """

    __slots__ = (
        "active",
        "appended_bytes",
        "config",
        "directory",
        "disk",
        "failure",
        "high_watermark",
        "is_swapping",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
        "newest_leader_epoch",
        "producers",
        "segments",
        "tail",
        "tail_cache",
    )

    def __init__(
        self, disk: Disk, directory: str, config: LogConfig, recovered: RecoveredLog, tail_cache: TailCache
    ) -> None:
        self.disk: Final = disk
        self.directory: Final = directory
        self.config = config
        self.segments: list[Segment] = recovered.segments
        self.active: Segment = recovered.segments[-1]
        self.log_start_offset: Offset = recovered.log_start_offset
        self.log_end_offset: Offset = recovered.log_end_offset
        self.high_watermark: Offset = recovered.log_start_offset
        self.producers = recovered.producer_state
        self.leader_epochs: Final = recovered.leader_epochs
        self.newest_leader_epoch = recovered.leader_epochs.latest
        self.tail: Tail = deque()
        self.tail_cache: Final = tail_cache
        self.appended_bytes = 0
        self.failure: StorageError | None = None
        self.is_swapping = False

    def forget_tail(self) -> None:
        """Let reads go to the files, for what was appended so far."""
        self.tail = deque()

    def segments_from(self, offset: Offset) -> list[Segment]:
        """The segment that holds an offset, and all after it."""
        return self.segments[max(bisect_right(self.segments, offset, key=base_offset_of) - 1, 0) :]

    @property
    def last_stable_offset(self) -> Offset:
        """First offset of the oldest open transaction, else the high watermark; exclusive end of READ_COMMITTED."""
        if not self.producers.has_transactions:
            return self.high_watermark
        unstable = self.producers.first_unstable_offset()
        if unstable is None:
            return self.high_watermark
        return min(self.high_watermark, max(unstable, self.log_start_offset))
