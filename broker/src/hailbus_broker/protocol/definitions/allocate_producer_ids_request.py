"""AllocateProducerIdsRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, int32, int64


class AllocateProducerIdsRequest(Message, versions="0", flexible="0+", api_key=67):
    """AllocateProducerIdsRequest, API key 67, versions 0, flexible 0+."""

    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+", default=-1)
