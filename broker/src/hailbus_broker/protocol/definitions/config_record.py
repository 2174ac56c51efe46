"""ConfigRecord. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, int8, string


class ConfigRecord(Message, versions="0", flexible="0+", api_key=4):
    """ConfigRecord, metadata, versions 0, flexible 0+."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    name: str = string("0+")
    value: str | None = string("0+", nullable="0+")
