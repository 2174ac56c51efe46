"""BeginQuorumEpochRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, Uuid, array, int32, string, uint16, uuid


class PartitionData(Struct):
    """Part of BeginQuorumEpochRequest."""

    partition_index: int = int32("0+")
    voter_directory_id: Uuid = uuid("1+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+")


class TopicData(Struct):
    """Part of BeginQuorumEpochRequest."""

    topic_name: str = string("0+")
    partitions: list[PartitionData] = array(PartitionData, "0+")


class LeaderEndpoint(Struct):
    """Part of BeginQuorumEpochRequest."""

    name: str = string("1+")
    host: str = string("1+")
    port: int = uint16("1+")


class BeginQuorumEpochRequest(Message, versions="0-1", flexible="1+", api_key=53):
    """BeginQuorumEpochRequest, API key 53, versions 0-1, flexible 1+."""

    cluster_id: str | None = string("0+", default=None, nullable="0+")
    voter_id: int = int32("1+", default=-1)
    topics: list[TopicData] = array(TopicData, "0+")
    leader_endpoints: list[LeaderEndpoint] = array(LeaderEndpoint, "1+")
