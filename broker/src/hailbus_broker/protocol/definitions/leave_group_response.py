"""LeaveGroupResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, int16, int32, string


class MemberResponse(Struct):
    """Part of LeaveGroupResponse."""

    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", nullable="3+")
    error_code: int = int16("3+")


class LeaveGroupResponse(Message, versions="0-5", flexible="4+", api_key=13):
    """LeaveGroupResponse, API key 13, versions 0-5, flexible 4+."""

    throttle_time_ms: int = int32("1+")
    error_code: int = int16("0+")
    members: list[MemberResponse] = array(MemberResponse, "3+")
