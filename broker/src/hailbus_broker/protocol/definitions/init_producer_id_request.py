"""InitProducerIdRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, boolean, int16, int32, int64, string


class InitProducerIdRequest(Message, versions="0-6", flexible="2+", api_key=22):
    """InitProducerIdRequest, API key 22, versions 0-6, flexible 2+."""

    transactional_id: str | None = string("0+", nullable="0+")
    transaction_timeout_ms: int = int32("0+")
    producer_id: int = int64("3+", default=-1)
    producer_epoch: int = int16("3+", default=-1)
    enable2_pc: bool = boolean("6+", default=False)
    keep_prepared_txn: bool = boolean("6+", default=False)
