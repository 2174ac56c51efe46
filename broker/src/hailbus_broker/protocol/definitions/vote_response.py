"""VoteResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, boolean, int16, int32, string, uint16


class PartitionData(Struct):
    """Part of VoteResponse."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+")
    vote_granted: bool = boolean("0+")


class TopicData(Struct):
    """Part of VoteResponse."""

    topic_name: str = string("0+")
    partitions: list[PartitionData] = array(PartitionData, "0+")


class NodeEndpoint(Struct):
    """Part of VoteResponse."""

    node_id: int = int32("1+")
    host: str = string("1+")
    port: int = uint16("1+")


class VoteResponse(Message, versions="0-2", flexible="0+", api_key=52):
    """VoteResponse, API key 52, versions 0-2, flexible 0+."""

    error_code: int = int16("0+")
    topics: list[TopicData] = array(TopicData, "0+")
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "1+", tag=0)
