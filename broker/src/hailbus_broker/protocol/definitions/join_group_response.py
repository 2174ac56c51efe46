"""JoinGroupResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, boolean, data, int16, int32, string


class JoinGroupResponseMember(Struct):
    """Part of JoinGroupResponse."""

    member_id: str = string("0+")
    group_instance_id: str | None = string("5+", default=None, nullable="5+")
    metadata: bytes | memoryview = data("0+")


class JoinGroupResponse(Message, versions="0-9", flexible="6+", api_key=11):
    """JoinGroupResponse, API key 11, versions 0-9, flexible 6+."""

    throttle_time_ms: int = int32("2+")
    error_code: int = int16("0+")
    generation_id: int = int32("0+", default=-1)
    protocol_type: str | None = string("7+", default=None, nullable="7+")
    protocol_name: str | None = string("0+", nullable="7+")
    leader: str = string("0+")
    skip_assignment: bool = boolean("9+", default=False)
    member_id: str = string("0+")
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember, "0+")
