"""ConsumerGroupMemberMetadataValue. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, data, int32, string, struct


class ClassicProtocol(Struct):
    """Part of ConsumerGroupMemberMetadataValue."""

    name: str = string("0+")
    metadata: bytes | memoryview = data("0+")


class ClassicMemberMetadata(Struct):
    """Part of ConsumerGroupMemberMetadataValue."""

    session_timeout_ms: int = int32("0+")
    supported_protocols: list[ClassicProtocol] = array(ClassicProtocol, "0+")


class ConsumerGroupMemberMetadataValue(Message, versions="0", flexible="0+", api_key=5):
    """ConsumerGroupMemberMetadataValue, coordinator-value, versions 0, flexible 0+."""

    instance_id: str | None = string("0+", nullable="0+")
    rack_id: str | None = string("0+", nullable="0+")
    client_id: str = string("0+")
    client_host: str = string("0+")
    subscribed_topic_names: list[str] = array(string("0+"), "0+")
    subscribed_topic_regex: str | None = string("0+", nullable="0+")
    rebalance_timeout_ms: int = int32("0+", default=-1)
    server_assignor: str | None = string("0+", nullable="0+")
    classic_member_metadata: ClassicMemberMetadata | None = struct(ClassicMemberMetadata, "0+", nullable="0+", tag=0)
