"""EndTransactionRecord. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message


class EndTransactionRecord(Message, versions="0", flexible="0+", api_key=24):
    """EndTransactionRecord, metadata, versions 0, flexible 0+."""
