"""FenceBrokerRecord. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, int32, int64


class FenceBrokerRecord(Message, versions="0", flexible="0+", api_key=7):
    """FenceBrokerRecord, metadata, versions 0, flexible 0+."""

    id: int = int32("0+")
    epoch: int = int64("0+")
