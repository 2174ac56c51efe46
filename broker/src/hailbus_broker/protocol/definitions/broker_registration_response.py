"""BrokerRegistrationResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, int16, int32, int64


class BrokerRegistrationResponse(Message, versions="0-4", flexible="0+", api_key=62):
    """BrokerRegistrationResponse, API key 62, versions 0-4, flexible 0+."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    broker_epoch: int = int64("0+", default=-1)
