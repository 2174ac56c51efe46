"""AccessControlEntryRecord. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Uuid, int8, string, uuid


class AccessControlEntryRecord(Message, versions="0", flexible="0+", api_key=18):
    """AccessControlEntryRecord, metadata, versions 0, flexible 0+."""

    id: Uuid = uuid("0+")
    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    pattern_type: int = int8("0+")
    principal: str = string("0+")
    host: str = string("0+")
    operation: int = int8("0+")
    permission_type: int = int8("0+")
