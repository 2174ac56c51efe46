"""RemoveTopicRecord. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Uuid, uuid


class RemoveTopicRecord(Message, versions="0", flexible="0+", api_key=9):
    """RemoveTopicRecord, metadata, versions 0, flexible 0+."""

    topic_id: Uuid = uuid("0+")
