"""OffsetDeleteRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, int32, string


class OffsetDeleteRequestPartition(Struct):
    """Part of OffsetDeleteRequest."""

    partition_index: int = int32("0+")


class OffsetDeleteRequestTopic(Struct):
    """Part of OffsetDeleteRequest."""

    name: str = string("0+")
    partitions: list[OffsetDeleteRequestPartition] = array(OffsetDeleteRequestPartition, "0+")


class OffsetDeleteRequest(Message, versions="0", flexible="none", api_key=47):
    """OffsetDeleteRequest, API key 47, versions 0, flexible none."""

    group_id: str = string("0+")
    topics: list[OffsetDeleteRequestTopic] = array(OffsetDeleteRequestTopic, "0+")
