"""EndQuorumEpochResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, int16, int32, string, uint16


class PartitionData(Struct):
    """Part of EndQuorumEpochResponse."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+")


class TopicData(Struct):
    """Part of EndQuorumEpochResponse."""

    topic_name: str = string("0+")
    partitions: list[PartitionData] = array(PartitionData, "0+")


class NodeEndpoint(Struct):
    """Part of EndQuorumEpochResponse."""

    node_id: int = int32("1+")
    host: str = string("1+")
    port: int = uint16("1+")


class EndQuorumEpochResponse(Message, versions="0-1", flexible="1+", api_key=54):
    """EndQuorumEpochResponse, API key 54, versions 0-1, flexible 1+."""

    error_code: int = int16("0+")
    topics: list[TopicData] = array(TopicData, "0+")
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "1+", tag=0)
