"""AddOffsetsToTxnRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, int16, int64, string


class AddOffsetsToTxnRequest(Message, versions="0-4", flexible="3+", api_key=25):
    """AddOffsetsToTxnRequest, API key 25, versions 0-4, flexible 3+."""

    transactional_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    group_id: str = string("0+")
