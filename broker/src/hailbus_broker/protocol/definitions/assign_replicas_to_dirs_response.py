"""AssignReplicasToDirsResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, Uuid, array, int16, int32, uuid


class PartitionData(Struct):
    """Part of AssignReplicasToDirsResponse."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")


class TopicData(Struct):
    """Part of AssignReplicasToDirsResponse."""

    topic_id: Uuid = uuid("0+")
    partitions: list[PartitionData] = array(PartitionData, "0+")


class DirectoryData(Struct):
    """Part of AssignReplicasToDirsResponse."""

    id: Uuid = uuid("0+")
    topics: list[TopicData] = array(TopicData, "0+")


class AssignReplicasToDirsResponse(Message, versions="0", flexible="0+", api_key=73):
    """AssignReplicasToDirsResponse, API key 73, versions 0, flexible 0+."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    directories: list[DirectoryData] = array(DirectoryData, "0+")
