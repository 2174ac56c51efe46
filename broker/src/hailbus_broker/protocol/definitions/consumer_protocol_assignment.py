"""ConsumerProtocolAssignment. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, data, int32, string


class TopicPartition(Struct):
    """Part of ConsumerProtocolAssignment."""

    topic: str = string("0+")
    partitions: list[int] = array(int32("0+"), "0+")


class ConsumerProtocolAssignment(Message, versions="0-3", flexible="none"):
    """ConsumerProtocolAssignment, data, versions 0-3, flexible none."""

    assigned_partitions: list[TopicPartition] = array(TopicPartition, "0+")
    user_data: bytes | memoryview | None = data("0+", default=None, nullable="0+")
