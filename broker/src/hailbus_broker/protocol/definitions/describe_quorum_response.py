"""DescribeQuorumResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, Uuid, array, int16, int32, int64, string, uint16, uuid


class ReplicaState(Struct):
    """Part of DescribeQuorumResponse."""

    replica_id: int = int32("0+")
    replica_directory_id: Uuid = uuid("2+")
    log_end_offset: int = int64("0+")
    last_fetch_timestamp: int = int64("1+", default=-1)
    last_caught_up_timestamp: int = int64("1+", default=-1)


class PartitionData(Struct):
    """Part of DescribeQuorumResponse."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("2+", nullable="2+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+")
    high_watermark: int = int64("0+")
    current_voters: list[ReplicaState] = array(ReplicaState, "0+")
    observers: list[ReplicaState] = array(ReplicaState, "0+")


class TopicData(Struct):
    """Part of DescribeQuorumResponse."""

    topic_name: str = string("0+")
    partitions: list[PartitionData] = array(PartitionData, "0+")


class Listener(Struct):
    """Part of DescribeQuorumResponse."""

    name: str = string("2+")
    host: str = string("2+")
    port: int = uint16("2+")


class Node(Struct):
    """Part of DescribeQuorumResponse."""

    node_id: int = int32("2+")
    listeners: list[Listener] = array(Listener, "2+")


class DescribeQuorumResponse(Message, versions="0-2", flexible="0+", api_key=55):
    """DescribeQuorumResponse, API key 55, versions 0-2, flexible 0+."""

    error_code: int = int16("0+")
    error_message: str | None = string("2+", nullable="2+")
    topics: list[TopicData] = array(TopicData, "0+")
    nodes: list[Node] = array(Node, "2+")
