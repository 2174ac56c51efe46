"""AssignReplicasToDirsRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, Uuid, array, int32, int64, uuid


class PartitionData(Struct):
    """Part of AssignReplicasToDirsRequest."""

    partition_index: int = int32("0+")


class TopicData(Struct):
    """Part of AssignReplicasToDirsRequest."""

    topic_id: Uuid = uuid("0+")
    partitions: list[PartitionData] = array(PartitionData, "0+")


class DirectoryData(Struct):
    """Part of AssignReplicasToDirsRequest."""

    id: Uuid = uuid("0+")
    topics: list[TopicData] = array(TopicData, "0+")


class AssignReplicasToDirsRequest(Message, versions="0", flexible="0+", api_key=73):
    """AssignReplicasToDirsRequest, API key 73, versions 0, flexible 0+."""

    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+", default=-1)
    directories: list[DirectoryData] = array(DirectoryData, "0+")
