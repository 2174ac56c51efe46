"""GroupMetadataValue. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, data, int32, int64, string


class MemberMetadata(Struct):
    """Part of GroupMetadataValue."""

    member_id: str = string("0+")
    group_instance_id: str | None = string("3+", default=None, nullable="3+")
    client_id: str = string("0+")
    client_host: str = string("0+")
    rebalance_timeout: int = int32("1+", default=-1)
    session_timeout: int = int32("0+")
    subscription: bytes | memoryview = data("0+")
    assignment: bytes | memoryview = data("0+")


class GroupMetadataValue(Message, versions="0-4", flexible="4+", api_key=2):
    """GroupMetadataValue, coordinator-value, versions 0-4, flexible 4+."""

    protocol_type: str = string("0+")
    generation: int = int32("0+")
    protocol: str | None = string("0+", nullable="0+")
    leader: str | None = string("0+", nullable="0+")
    current_state_timestamp: int = int64("2+", default=-1)
    members: list[MemberMetadata] = array(MemberMetadata, "0+")
