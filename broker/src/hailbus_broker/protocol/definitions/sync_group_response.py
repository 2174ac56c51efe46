"""SyncGroupResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, data, int16, int32, string


class SyncGroupResponse(Message, versions="0-5", flexible="4+", api_key=14):
    """SyncGroupResponse, API key 14, versions 0-5, flexible 4+."""

    throttle_time_ms: int = int32("1+")
    error_code: int = int16("0+")
    protocol_type: str | None = string("5+", default=None, nullable="5+")
    protocol_name: str | None = string("5+", default=None, nullable="5+")
    assignment: bytes | memoryview = data("0+")
