"""DescribeClientQuotasResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, float64, int16, int32, string


class EntityData(Struct):
    """Part of DescribeClientQuotasResponse."""

    entity_type: str = string("0+")
    entity_name: str | None = string("0+", nullable="0+")


class ValueData(Struct):
    """Part of DescribeClientQuotasResponse."""

    key: str = string("0+")
    value: float = float64("0+")


class EntryData(Struct):
    """Part of DescribeClientQuotasResponse."""

    entity: list[EntityData] = array(EntityData, "0+")
    values: list[ValueData] = array(ValueData, "0+")


class DescribeClientQuotasResponse(Message, versions="0-1", flexible="1+", api_key=48):
    """DescribeClientQuotasResponse, API key 48, versions 0-1, flexible 1+."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    entries: list[EntryData] | None = array(EntryData, "0+", nullable="0+")
