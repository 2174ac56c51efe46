"""ProducerIdsRecord. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, int32, int64


class ProducerIdsRecord(Message, versions="0", flexible="0+", api_key=15):
    """ProducerIdsRecord, metadata, versions 0, flexible 0+."""

    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+", default=-1)
    next_producer_id: int = int64("0+")
