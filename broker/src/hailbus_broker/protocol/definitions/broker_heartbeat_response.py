"""BrokerHeartbeatResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, boolean, int16, int32


class BrokerHeartbeatResponse(Message, versions="0-2", flexible="0+", api_key=63):
    """BrokerHeartbeatResponse, API key 63, versions 0-2, flexible 0+."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    is_caught_up: bool = boolean("0+", default=False)
    is_fenced: bool = boolean("0+", default=True)
    should_shut_down: bool = boolean("0+")
