"""DescribeTopicPartitionsResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, Uuid, array, boolean, int16, int32, string, struct, uuid


class DescribeTopicPartitionsResponsePartition(Struct):
    """Part of DescribeTopicPartitionsResponse."""

    error_code: int = int16("0+")
    partition_index: int = int32("0+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+", default=-1)
    replica_nodes: list[int] = array(int32("0+"), "0+")
    isr_nodes: list[int] = array(int32("0+"), "0+")
    eligible_leader_replicas: list[int] | None = array(int32("0+"), "0+", default=None, nullable="0+")
    last_known_elr: list[int] | None = array(int32("0+"), "0+", default=None, nullable="0+")
    offline_replicas: list[int] = array(int32("0+"), "0+")


class DescribeTopicPartitionsResponseTopic(Struct):
    """Part of DescribeTopicPartitionsResponse."""

    error_code: int = int16("0+")
    name: str | None = string("0+", nullable="0+")
    topic_id: Uuid = uuid("0+")
    is_internal: bool = boolean("0+", default=False)
    partitions: list[DescribeTopicPartitionsResponsePartition] = array(DescribeTopicPartitionsResponsePartition, "0+")
    topic_authorized_operations: int = int32("0+", default=-2147483648)


class Cursor(Struct):
    """Part of DescribeTopicPartitionsResponse."""

    topic_name: str = string("0+")
    partition_index: int = int32("0+")


class DescribeTopicPartitionsResponse(Message, versions="0", flexible="0+", api_key=75):
    """DescribeTopicPartitionsResponse, API key 75, versions 0, flexible 0+."""

    throttle_time_ms: int = int32("0+")
    topics: list[DescribeTopicPartitionsResponseTopic] = array(DescribeTopicPartitionsResponseTopic, "0+")
    next_cursor: Cursor | None = struct(Cursor, "0+", default=None, nullable="0+")
