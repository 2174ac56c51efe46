"""NoOpRecord. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message


class NoOpRecord(Message, versions="0", flexible="0+", api_key=20):
    """NoOpRecord, metadata, versions 0, flexible 0+."""
