"""ConsumerProtocolSubscription. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, data, int32, string


class TopicPartition(Struct):
    """Part of ConsumerProtocolSubscription."""

    topic: str = string("1+")
    partitions: list[int] = array(int32("0+"), "1+")


class ConsumerProtocolSubscription(Message, versions="0-3", flexible="none"):
    """ConsumerProtocolSubscription, data, versions 0-3, flexible none."""

    topics: list[str] = array(string("0+"), "0+")
    user_data: bytes | memoryview | None = data("0+", default=None, nullable="0+")
    owned_partitions: list[TopicPartition] = array(TopicPartition, "1+")
    generation_id: int = int32("2+", default=-1)
    rack_id: str | None = string("3+", default=None, nullable="3+")
