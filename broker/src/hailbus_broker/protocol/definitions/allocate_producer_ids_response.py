"""AllocateProducerIdsResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, int16, int32, int64


class AllocateProducerIdsResponse(Message, versions="0", flexible="0+", api_key=67):
    """AllocateProducerIdsResponse, API key 67, versions 0, flexible 0+."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    producer_id_start: int = int64("0+")
    producer_id_len: int = int32("0+")
