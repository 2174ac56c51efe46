"""EndTxnRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, boolean, int16, int64, string


class EndTxnRequest(Message, versions="0-5", flexible="3+", api_key=26):
    """EndTxnRequest, API key 26, versions 0-5, flexible 3+."""

    transactional_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    committed: bool = boolean("0+")
