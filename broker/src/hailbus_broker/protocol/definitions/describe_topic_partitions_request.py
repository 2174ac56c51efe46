"""DescribeTopicPartitionsRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, int32, string, struct


class TopicRequest(Struct):
    """Part of DescribeTopicPartitionsRequest."""

    name: str = string("0+")


class Cursor(Struct):
    """Part of DescribeTopicPartitionsRequest."""

    topic_name: str = string("0+")
    partition_index: int = int32("0+")


class DescribeTopicPartitionsRequest(Message, versions="0", flexible="0+", api_key=75):
    """DescribeTopicPartitionsRequest, API key 75, versions 0, flexible 0+."""

    topics: list[TopicRequest] = array(TopicRequest, "0+")
    response_partition_limit: int = int32("0+", default=2000)
    cursor: Cursor | None = struct(Cursor, "0+", default=None, nullable="0+")
