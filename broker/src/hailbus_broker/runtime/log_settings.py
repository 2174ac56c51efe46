"""What a topic's settings, over those of the broker, mean for its logs and replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from hailbus_broker.cluster.metadata.image import INTERNAL_TOPICS
from hailbus_broker.cluster.options import topic_value
from hailbus_broker.log import CleanupPolicy, LogConfig
from hailbus_broker.records import Compression, TimestampType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hailbus_broker.cluster.options import BrokerConfig


class FlushSettings(NamedTuple):
    """When a leader syncs; see `LeaderReplica`."""

    messages: int
    ms: int


def flush_settings(topic: str, overrides: Mapping[str, str], config: BrokerConfig) -> FlushSettings:
    """When the records of a topic are synced."""
    # What a coordinator or a transaction relies on is never only in memory.
    messages = 1 if topic in INTERNAL_TOPICS else topic_value(overrides, config, "flush.messages")
    return FlushSettings(messages, topic_value(overrides, config, "flush.ms"))


def log_config(overrides: Mapping[str, str], config: BrokerConfig) -> LogConfig:
    """What a topic's logs act on: its overrides over the broker's defaults."""

    def value(name: str) -> Any:
        return topic_value(overrides, config, name)

    codec = value("compression.type")
    compression = None if codec == "producer" else Compression.from_name(codec)
    level = None
    if compression in {Compression.GZIP, Compression.LZ4, Compression.ZSTD}:
        level = value(f"compression.{compression.name.lower()}.level")
        if compression is Compression.GZIP and level == -1:
            level = None
    timestamp_type = (
        TimestampType.LOG_APPEND_TIME
        if value("message.timestamp.type") == "LogAppendTime"
        else TimestampType.CREATE_TIME
    )
    return LogConfig(
        cleanup_policy=frozenset(CleanupPolicy(item) for item in value("cleanup.policy")),
        compression_type=compression,
        compression_level=level,
        delete_retention_ms=value("delete.retention.ms"),
        file_delete_delay_ms=value("file.delete.delay.ms"),
        index_interval_bytes=value("index.interval.bytes"),
        max_compaction_lag_ms=value("max.compaction.lag.ms"),
        max_message_bytes=value("max.message.bytes"),
        message_timestamp_after_max_ms=value("message.timestamp.after.max.ms"),
        message_timestamp_before_max_ms=value("message.timestamp.before.max.ms"),
        message_timestamp_type=timestamp_type,
        min_cleanable_dirty_ratio=value("min.cleanable.dirty.ratio"),
        min_compaction_lag_ms=value("min.compaction.lag.ms"),
        producer_id_expiration_ms=config["producer.id.expiration.ms"],
        retention_bytes=value("retention.bytes"),
        retention_ms=value("retention.ms"),
        segment_bytes=value("segment.bytes"),
        segment_index_bytes=value("segment.index.bytes"),
        segment_jitter_ms=value("segment.jitter.ms"),
        segment_ms=value("segment.ms"),
    )
