"""DescribeQuorumRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, int32, string


class PartitionData(Struct):
    """Part of DescribeQuorumRequest."""

    partition_index: int = int32("0+")


class TopicData(Struct):
    """Part of DescribeQuorumRequest."""

    topic_name: str = string("0+")
    partitions: list[PartitionData] = array(PartitionData, "0+")


class DescribeQuorumRequest(Message, versions="0-2", flexible="0+", api_key=55):
    """DescribeQuorumRequest, API key 55, versions 0-2, flexible 0+."""

    topics: list[TopicData] = array(TopicData, "0+")
