"""RemoveAccessControlEntryRecord. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Uuid, uuid


class RemoveAccessControlEntryRecord(Message, versions="0", flexible="0+", api_key=19):
    """RemoveAccessControlEntryRecord, metadata, versions 0, flexible 0+."""

    id: Uuid = uuid("0+")
