"""JoinGroupRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, data, int32, string


class JoinGroupRequestProtocol(Struct):
    """Part of JoinGroupRequest."""

    name: str = string("0+")
    metadata: bytes | memoryview = data("0+")


class JoinGroupRequest(Message, versions="0-9", flexible="6+", api_key=11):
    """JoinGroupRequest, API key 11, versions 0-9, flexible 6+."""

    group_id: str = string("0+")
    session_timeout_ms: int = int32("0+")
    rebalance_timeout_ms: int = int32("1+", default=-1)
    member_id: str = string("0+")
    group_instance_id: str | None = string("5+", default=None, nullable="5+")
    protocol_type: str = string("0+")
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol, "0+")
    reason: str | None = string("8+", default=None, nullable="8+")
