"""AddOffsetsToTxnResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, int16, int32


class AddOffsetsToTxnResponse(Message, versions="0-4", flexible="3+", api_key=25):
    """AddOffsetsToTxnResponse, API key 25, versions 0-4, flexible 3+."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
