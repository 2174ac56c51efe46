"""OffsetFetchRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, Uuid, array, boolean, int32, string, uuid


class OffsetFetchRequestTopic(Struct):
    """Part of OffsetFetchRequest."""

    name: str = string("0-7")
    partition_indexes: list[int] = array(int32("0+"), "0-7")


class OffsetFetchRequestTopics(Struct):
    """Part of OffsetFetchRequest."""

    name: str = string("8-9")
    topic_id: Uuid = uuid("10+")
    partition_indexes: list[int] = array(int32("0+"), "8+")


class OffsetFetchRequestGroup(Struct):
    """Part of OffsetFetchRequest."""

    group_id: str = string("8+")
    member_id: str | None = string("9+", default=None, nullable="9+")
    member_epoch: int = int32("9+", default=-1)
    topics: list[OffsetFetchRequestTopics] | None = array(OffsetFetchRequestTopics, "8+", nullable="8+")


class OffsetFetchRequest(Message, versions="1-10", flexible="6+", api_key=9):
    """OffsetFetchRequest, API key 9, versions 1-10, flexible 6+."""

    group_id: str = string("0-7")
    topics: list[OffsetFetchRequestTopic] | None = array(OffsetFetchRequestTopic, "0-7", nullable="2-7")
    groups: list[OffsetFetchRequestGroup] = array(OffsetFetchRequestGroup, "8+")
    require_stable: bool = boolean("7+", default=False)
