"""ListConfigResourcesResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, int8, int16, int32, string


class ConfigResource(Struct):
    """Part of ListConfigResourcesResponse."""

    resource_name: str = string("0+")
    resource_type: int = int8("1+", default=16)


class ListConfigResourcesResponse(Message, versions="0-1", flexible="0+", api_key=74):
    """ListConfigResourcesResponse, API key 74, versions 0-1, flexible 0+."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    config_resources: list[ConfigResource] = array(ConfigResource, "0+")
