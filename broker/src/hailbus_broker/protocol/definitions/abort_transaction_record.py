"""AbortTransactionRecord. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, string


class AbortTransactionRecord(Message, versions="0", flexible="0+", api_key=25):
    """AbortTransactionRecord, metadata, versions 0, flexible 0+."""

    reason: str | None = string("0+", default=None, nullable="0+", tag=0)
