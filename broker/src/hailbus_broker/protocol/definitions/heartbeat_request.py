"""HeartbeatRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, int32, string


class HeartbeatRequest(Message, versions="0-4", flexible="4+", api_key=12):
    """HeartbeatRequest, API key 12, versions 0-4, flexible 4+."""

    group_id: str = string("0+")
    generation_id: int = int32("0+")
    member_id: str = string("0+")
    group_instance_id: str | None = string("3+", default=None, nullable="3+")
