"""SyncGroupRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, data, int32, string


class SyncGroupRequestAssignment(Struct):
    """Part of SyncGroupRequest."""

    member_id: str = string("0+")
    assignment: bytes | memoryview = data("0+")


class SyncGroupRequest(Message, versions="0-5", flexible="4+", api_key=14):
    """SyncGroupRequest, API key 14, versions 0-5, flexible 4+."""

    group_id: str = string("0+")
    generation_id: int = int32("0+")
    member_id: str = string("0+")
    group_instance_id: str | None = string("3+", default=None, nullable="3+")
    protocol_type: str | None = string("5+", default=None, nullable="5+")
    protocol_name: str | None = string("5+", default=None, nullable="5+")
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment, "0+")
