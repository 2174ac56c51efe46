"""LeaveGroupRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, string


class MemberIdentity(Struct):
    """Part of LeaveGroupRequest."""

    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", default=None, nullable="3+")
    reason: str | None = string("5+", default=None, nullable="5+")


class LeaveGroupRequest(Message, versions="0-5", flexible="4+", api_key=13):
    """LeaveGroupRequest, API key 13, versions 0-5, flexible 4+."""

    group_id: str = string("0+")
    member_id: str = string("0-2")
    members: list[MemberIdentity] = array(MemberIdentity, "3+")
