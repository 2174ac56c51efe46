"""The topic settings that a log acts on, with Kafka's names and defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from hailbus_broker.records import Compression, TimestampType

UNLIMITED: Final = -1
MAX_LONG: Final = 2**63 - 1


class CleanupPolicy(StrEnum):
    """What happens to old segments; a topic may have both."""

    DELETE = "delete"
    COMPACT = "compact"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """One topic's settings; the names are Kafka's with `_` for `.`. Times in ms, sizes in bytes, -1 for no limit.

    Attributes:
        compression_type: None is `producer`: batches stay as they came. Otherwise they are stored in this codec.
        compression_level: For the codec above; None is the codec's default.
        producer_id_expiration_ms: A producer that has not written for so long is forgotten.
    """

    cleanup_policy: frozenset[CleanupPolicy] = frozenset({CleanupPolicy.DELETE})
    compression_type: Compression | None = None
    compression_level: int | None = None
    delete_retention_ms: int = 86_400_000
    file_delete_delay_ms: int = 60_000
    index_interval_bytes: int = 4_096
    max_compaction_lag_ms: int = MAX_LONG
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = 3_600_000
    message_timestamp_before_max_ms: int = MAX_LONG
    message_timestamp_type: TimestampType = TimestampType.CREATE_TIME
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    producer_id_expiration_ms: int = 86_400_000
    retention_bytes: int = UNLIMITED
    retention_ms: int = 604_800_000
    segment_bytes: int = 1_073_741_824
    segment_index_bytes: int = 10_485_760
    segment_jitter_ms: int = 0
    segment_ms: int = 604_800_000
    may_change_batches: bool = field(init=False)
    """Whether some setting needs a look into the batches of clients, or a change of them."""

    max_segment_ms: int = field(init=False)
    """How long a segment may stay active: what must be compacted soon has to be closed soon."""

    def __post_init__(self) -> None:
        may_change = (
            self.is_compacted
            or self.compression_type is not None
            or self.message_timestamp_type is TimestampType.LOG_APPEND_TIME
            or self.message_timestamp_before_max_ms < MAX_LONG
        )
        max_segment_ms = self.segment_ms
        if self.is_compacted and self.max_compaction_lag_ms > 0:
            max_segment_ms = min(max_segment_ms, self.max_compaction_lag_ms)
        object.__setattr__(self, "may_change_batches", may_change)  # the class is frozen
        object.__setattr__(self, "max_segment_ms", max_segment_ms)

    @property
    def is_compacted(self) -> bool:
        """Whether only the newest value of each key is kept."""
        return CleanupPolicy.COMPACT in self.cleanup_policy

    @property
    def is_deleted(self) -> bool:
        """Whether old segments are deleted by time and size."""
        return CleanupPolicy.DELETE in self.cleanup_policy
