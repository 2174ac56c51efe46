"""DeleteGroupsResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, int16, int32, string


class DeletableGroupResult(Struct):
    """Part of DeleteGroupsResponse."""

    group_id: str = string("0+")
    error_code: int = int16("0+")


class DeleteGroupsResponse(Message, versions="0-2", flexible="2+", api_key=42):
    """DeleteGroupsResponse, API key 42, versions 0-2, flexible 2+."""

    throttle_time_ms: int = int32("0+")
    results: list[DeletableGroupResult] = array(DeletableGroupResult, "0+")
