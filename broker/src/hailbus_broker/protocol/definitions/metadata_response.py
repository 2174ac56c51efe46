"""MetadataResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, Uuid, array, boolean, int16, int32, string, uuid


class MetadataResponseBroker(Struct):
    """Part of MetadataResponse."""

    node_id: int = int32("0+")
    host: str = string("0+")
    port: int = int32("0+")
    rack: str | None = string("1+", default=None, nullable="1+")


class MetadataResponsePartition(Struct):
    """Part of MetadataResponse."""

    error_code: int = int16("0+")
    partition_index: int = int32("0+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("7+", default=-1)
    replica_nodes: list[int] = array(int32("0+"), "0+")
    isr_nodes: list[int] = array(int32("0+"), "0+")
    offline_replicas: list[int] = array(int32("0+"), "5+")


class MetadataResponseTopic(Struct):
    """Part of MetadataResponse."""

    error_code: int = int16("0+")
    name: str | None = string("0+", nullable="12+")
    topic_id: Uuid = uuid("10+")
    is_internal: bool = boolean("1+", default=False)
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition, "0+")
    topic_authorized_operations: int = int32("8+", default=-2147483648)


class MetadataResponse(Message, versions="0-13", flexible="9+", api_key=3):
    """MetadataResponse, API key 3, versions 0-13, flexible 9+."""

    throttle_time_ms: int = int32("3+")
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker, "0+")
    cluster_id: str | None = string("2+", default=None, nullable="2+")
    controller_id: int = int32("1+", default=-1)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic, "0+")
    cluster_authorized_operations: int = int32("8-10", default=-2147483648)
    error_code: int = int16("13+")
