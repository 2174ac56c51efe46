"""EndQuorumEpochRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, Uuid, array, int32, string, uint16, uuid


class ReplicaInfo(Struct):
    """Part of EndQuorumEpochRequest."""

    candidate_id: int = int32("1+")
    candidate_directory_id: Uuid = uuid("1+")


class PartitionData(Struct):
    """Part of EndQuorumEpochRequest."""

    partition_index: int = int32("0+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+")
    preferred_successors: list[int] = array(int32("0+"), "0")
    preferred_candidates: list[ReplicaInfo] = array(ReplicaInfo, "1+")


class TopicData(Struct):
    """Part of EndQuorumEpochRequest."""

    topic_name: str = string("0+")
    partitions: list[PartitionData] = array(PartitionData, "0+")


class LeaderEndpoint(Struct):
    """Part of EndQuorumEpochRequest."""

    name: str = string("1+")
    host: str = string("1+")
    port: int = uint16("1+")


class EndQuorumEpochRequest(Message, versions="0-1", flexible="1+", api_key=54):
    """EndQuorumEpochRequest, API key 54, versions 0-1, flexible 1+."""

    cluster_id: str | None = string("0+", default=None, nullable="0+")
    topics: list[TopicData] = array(TopicData, "0+")
    leader_endpoints: list[LeaderEndpoint] = array(LeaderEndpoint, "1+")
