"""DeleteTopicsRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, Uuid, array, int32, string, uuid


class DeleteTopicState(Struct):
    """Part of DeleteTopicsRequest."""

    name: str | None = string("6+", default=None, nullable="6+")
    topic_id: Uuid = uuid("6+")


class DeleteTopicsRequest(Message, versions="1-6", flexible="4+", api_key=20):
    """DeleteTopicsRequest, API key 20, versions 1-6, flexible 4+."""

    topics: list[DeleteTopicState] = array(DeleteTopicState, "6+")
    topic_names: list[str] = array(string("0+"), "0-5")
    timeout_ms: int = int32("0+")
