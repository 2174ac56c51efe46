"""ConsumerGroupHeartbeatResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, Uuid, array, int16, int32, string, struct, uuid


class TopicPartitions(Struct):
    """Part of ConsumerGroupHeartbeatResponse."""

    topic_id: Uuid = uuid("0+")
    partitions: list[int] = array(int32("0+"), "0+")


class Assignment(Struct):
    """Part of ConsumerGroupHeartbeatResponse."""

    topic_partitions: list[TopicPartitions] = array(TopicPartitions, "0+")


class ConsumerGroupHeartbeatResponse(Message, versions="0-1", flexible="0+", api_key=68):
    """ConsumerGroupHeartbeatResponse, API key 68, versions 0-1, flexible 0+."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", default=None, nullable="0+")
    member_id: str | None = string("0+", default=None, nullable="0+")
    member_epoch: int = int32("0+")
    heartbeat_interval_ms: int = int32("0+")
    assignment: Assignment | None = struct(Assignment, "0+", default=None, nullable="0+")
