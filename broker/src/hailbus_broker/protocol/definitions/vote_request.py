"""VoteRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, Uuid, array, boolean, int32, int64, string, uuid


class PartitionData(Struct):
    """Part of VoteRequest."""

    partition_index: int = int32("0+")
    replica_epoch: int = int32("0+")
    replica_id: int = int32("0+")
    replica_directory_id: Uuid = uuid("1+")
    voter_directory_id: Uuid = uuid("1+")
    last_offset_epoch: int = int32("0+")
    last_offset: int = int64("0+")
    pre_vote: bool = boolean("2+")


class TopicData(Struct):
    """Part of VoteRequest."""

    topic_name: str = string("0+")
    partitions: list[PartitionData] = array(PartitionData, "0+")


class VoteRequest(Message, versions="0-2", flexible="0+", api_key=52):
    """VoteRequest, API key 52, versions 0-2, flexible 0+."""

    cluster_id: str | None = string("0+", default=None, nullable="0+")
    voter_id: int = int32("1+", default=-1)
    topics: list[TopicData] = array(TopicData, "0+")
