"""DescribeClientQuotasRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, boolean, int8, string


class ComponentData(Struct):
    """Part of DescribeClientQuotasRequest."""

    entity_type: str = string("0+")
    match_type: int = int8("0+")
    match: str | None = string("0+", nullable="0+")


class DescribeClientQuotasRequest(Message, versions="0-1", flexible="1+", api_key=48):
    """DescribeClientQuotasRequest, API key 48, versions 0-1, flexible 1+."""

    components: list[ComponentData] = array(ComponentData, "0+")
    strict: bool = boolean("0+")
