"""DeleteTopicsResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, Uuid, array, int16, int32, string, uuid


class DeletableTopicResult(Struct):
    """Part of DeleteTopicsResponse."""

    name: str | None = string("0+", nullable="6+")
    topic_id: Uuid = uuid("6+")
    error_code: int = int16("0+")
    error_message: str | None = string("5+", default=None, nullable="5+")


class DeleteTopicsResponse(Message, versions="1-6", flexible="4+", api_key=20):
    """DeleteTopicsResponse, API key 20, versions 1-6, flexible 4+."""

    throttle_time_ms: int = int32("1+")
    responses: list[DeletableTopicResult] = array(DeletableTopicResult, "0+")
