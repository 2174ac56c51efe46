"""SnapshotFooterRecord. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, int16


class SnapshotFooterRecord(Message, versions="0", flexible="0+"):
    """SnapshotFooterRecord, data, versions 0, flexible 0+."""

    version: int = int16("0+")
