"""UnregisterBrokerResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, int16, int32, string


class UnregisterBrokerResponse(Message, versions="0", flexible="0+", api_key=64):
    """UnregisterBrokerResponse, API key 64, versions 0, flexible 0+."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
