"""AlterConfigsResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, int8, int16, int32, string


class AlterConfigsResourceResponse(Struct):
    """Part of AlterConfigsResponse."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    resource_type: int = int8("0+")
    resource_name: str = string("0+")


class AlterConfigsResponse(Message, versions="0-2", flexible="2+", api_key=33):
    """AlterConfigsResponse, API key 33, versions 0-2, flexible 2+."""

    throttle_time_ms: int = int32("0+")
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse, "0+")
