"""ElectLeadersRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, int8, int32, string


class TopicPartitions(Struct):
    """Part of ElectLeadersRequest."""

    topic: str = string("0+")
    partitions: list[int] = array(int32("0+"), "0+")


class ElectLeadersRequest(Message, versions="0-2", flexible="2+", api_key=43):
    """ElectLeadersRequest, API key 43, versions 0-2, flexible 2+."""

    election_type: int = int8("1+")
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, "0+", nullable="0+")
    timeout_ms: int = int32("0+", default=60000)
