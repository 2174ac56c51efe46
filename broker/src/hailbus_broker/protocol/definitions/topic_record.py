"""TopicRecord. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Uuid, string, uuid


class TopicRecord(Message, versions="0", flexible="0+", api_key=2):
    """TopicRecord, metadata, versions 0, flexible 0+."""

    name: str = string("0+")
    topic_id: Uuid = uuid("0+")
