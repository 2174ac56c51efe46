"""KRaftVersionRecord. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, int16


class KRaftVersionRecord(Message, versions="0", flexible="0+"):
    """KRaftVersionRecord, data, versions 0, flexible 0+."""

    version: int = int16("0+")
    kraft_version: int = int16("0+")
