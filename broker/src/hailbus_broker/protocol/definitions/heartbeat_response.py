"""HeartbeatResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, int16, int32


class HeartbeatResponse(Message, versions="0-4", flexible="4+", api_key=12):
    """HeartbeatResponse, API key 12, versions 0-4, flexible 4+."""

    throttle_time_ms: int = int32("1+")
    error_code: int = int16("0+")
