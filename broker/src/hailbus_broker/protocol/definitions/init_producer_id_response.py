"""InitProducerIdResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, int16, int32, int64


class InitProducerIdResponse(Message, versions="0-6", flexible="2+", api_key=22):
    """InitProducerIdResponse, API key 22, versions 0-6, flexible 2+."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    producer_id: int = int64("0+", default=-1)
    producer_epoch: int = int16("0+")
    ongoing_txn_producer_id: int = int64("6+", default=-1)
    ongoing_txn_producer_epoch: int = int16("6+", default=-1)
