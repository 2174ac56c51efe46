"""EndTxnResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, int16, int32, int64


class EndTxnResponse(Message, versions="0-5", flexible="3+", api_key=26):
    """EndTxnResponse, API key 26, versions 0-5, flexible 3+."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    producer_id: int = int64("5+", default=-1)
    producer_epoch: int = int16("5+", default=-1)
