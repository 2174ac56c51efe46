"""DescribeLogDirsRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, int32, string


class DescribableLogDirTopic(Struct):
    """Part of DescribeLogDirsRequest."""

    topic: str = string("0+")
    partitions: list[int] = array(int32("0+"), "0+")


class DescribeLogDirsRequest(Message, versions="1-5", flexible="2+", api_key=35):
    """DescribeLogDirsRequest, API key 35, versions 1-5, flexible 2+."""

    topics: list[DescribableLogDirTopic] | None = array(DescribableLogDirTopic, "0+", nullable="0+")
