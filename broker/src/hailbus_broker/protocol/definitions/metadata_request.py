"""MetadataRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, Uuid, array, boolean, string, uuid


class MetadataRequestTopic(Struct):
    """Part of MetadataRequest."""

    topic_id: Uuid = uuid("10+")
    name: str | None = string("0+", nullable="10+")


class MetadataRequest(Message, versions="0-13", flexible="9+", api_key=3):
    """MetadataRequest, API key 3, versions 0-13, flexible 9+."""

    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, "0+", nullable="1+")
    allow_auto_topic_creation: bool = boolean("4+", default=True)
    include_cluster_authorized_operations: bool = boolean("8-10")
    include_topic_authorized_operations: bool = boolean("8+")
