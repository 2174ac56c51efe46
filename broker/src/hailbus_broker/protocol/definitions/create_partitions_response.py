"""CreatePartitionsResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, int16, int32, string


class CreatePartitionsTopicResult(Struct):
    """Part of CreatePartitionsResponse."""

    name: str = string("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", default=None, nullable="0+")


class CreatePartitionsResponse(Message, versions="0-3", flexible="2+", api_key=37):
    """CreatePartitionsResponse, API key 37, versions 0-3, flexible 2+."""

    throttle_time_ms: int = int32("0+")
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult, "0+")
