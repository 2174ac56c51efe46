"""DescribeProducersRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, int32, string


class TopicRequest(Struct):
    """Part of DescribeProducersRequest."""

    name: str = string("0+")
    partition_indexes: list[int] = array(int32("0+"), "0+")


class DescribeProducersRequest(Message, versions="0", flexible="0+", api_key=61):
    """DescribeProducersRequest, API key 61, versions 0, flexible 0+."""

    topics: list[TopicRequest] = array(TopicRequest, "0+")
