"""SnapshotHeaderRecord. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, int16, int64


class SnapshotHeaderRecord(Message, versions="0", flexible="0+"):
    """SnapshotHeaderRecord, data, versions 0, flexible 0+."""

    version: int = int16("0+")
    last_contained_log_timestamp: int = int64("0+")
