"""ConsumerGroupHeartbeatRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, Uuid, array, int32, string, uuid


class TopicPartitions(Struct):
    """Part of ConsumerGroupHeartbeatRequest."""

    topic_id: Uuid = uuid("0+")
    partitions: list[int] = array(int32("0+"), "0+")


class ConsumerGroupHeartbeatRequest(Message, versions="0-1", flexible="0+", api_key=68):
    """ConsumerGroupHeartbeatRequest, API key 68, versions 0-1, flexible 0+."""

    group_id: str = string("0+")
    member_id: str = string("0+")
    member_epoch: int = int32("0+")
    instance_id: str | None = string("0+", default=None, nullable="0+")
    rack_id: str | None = string("0+", default=None, nullable="0+")
    rebalance_timeout_ms: int = int32("0+", default=-1)
    subscribed_topic_names: list[str] | None = array(string("0+"), "0+", default=None, nullable="0+")
    subscribed_topic_regex: str | None = string("1+", default=None, nullable="1+")
    server_assignor: str | None = string("0+", default=None, nullable="0+")
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, "0+", default=None, nullable="0+")
