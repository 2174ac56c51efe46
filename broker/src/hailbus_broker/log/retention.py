"""Which segments are too old or too many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hailbus_broker.log.config import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hailbus_broker.log.config import LogConfig
    from hailbus_broker.log.segment import Segment
    from hailbus_broker.records import Offset


def count_deletable(
    segments: Sequence[Segment],
    config: LogConfig,
    *,
    now_ms: int,
    log_start_offset: Offset,
    high_watermark: Offset,
    log_end_offset: Offset,
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
            newest = segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms
            is_too_old = config.retention_ms != UNLIMITED and now_ms - newest > config.retention_ms
            is_surplus = config.retention_bytes != UNLIMITED and surplus_bytes >= segment.size_bytes
        if not (is_below_start or is_too_old or is_surplus):
            break
        surplus_bytes -= segment.size_bytes
        count += 1
    return count
