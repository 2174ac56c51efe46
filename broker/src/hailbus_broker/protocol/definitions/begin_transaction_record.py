"""BeginTransactionRecord. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, string


class BeginTransactionRecord(Message, versions="0", flexible="0+", api_key=23):
    """BeginTransactionRecord, metadata, versions 0, flexible 0+."""

    name: str | None = string("0+", default=None, nullable="0+", tag=0)
