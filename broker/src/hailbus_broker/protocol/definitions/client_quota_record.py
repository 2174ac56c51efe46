"""ClientQuotaRecord. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, boolean, float64, string


class EntityData(Struct):
    """Part of ClientQuotaRecord."""

    entity_type: str = string("0+")
    entity_name: str | None = string("0+", nullable="0+")


class ClientQuotaRecord(Message, versions="0", flexible="0+", api_key=14):
    """ClientQuotaRecord, metadata, versions 0, flexible 0+."""

    entity: list[EntityData] = array(EntityData, "0+")
    key: str = string("0+")
    value: float = float64("0+")
    remove: bool = boolean("0+")
