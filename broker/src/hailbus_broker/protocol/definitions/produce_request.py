"""ProduceRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, Uuid, array, data, int16, int32, string, uuid


class PartitionProduceData(Struct):
    """Part of ProduceRequest."""

    index: int = int32("0+")
    records: bytes | memoryview | None = data("0+", nullable="0+")


class TopicProduceData(Struct):
    """Part of ProduceRequest."""

    name: str = string("0-12")
    topic_id: Uuid = uuid("13+")
    partition_data: list[PartitionProduceData] = array(PartitionProduceData, "0+")


class ProduceRequest(Message, versions="3-13", flexible="9+", api_key=0):
    """ProduceRequest, API key 0, versions 3-13, flexible 9+."""

    transactional_id: str | None = string("3+", default=None, nullable="3+")
    acks: int = int16("0+")
    timeout_ms: int = int32("0+")
    topic_data: list[TopicProduceData] = array(TopicProduceData, "0+")
