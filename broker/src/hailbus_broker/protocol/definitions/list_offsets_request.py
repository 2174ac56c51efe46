"""ListOffsetsRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, int8, int32, int64, string


class ListOffsetsPartition(Struct):
    """Part of ListOffsetsRequest."""

    partition_index: int = int32("0+")
    current_leader_epoch: int = int32("4+", default=-1)
    timestamp: int = int64("0+")


class ListOffsetsTopic(Struct):
    """Part of ListOffsetsRequest."""

    name: str = string("0+")
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition, "0+")


class ListOffsetsRequest(Message, versions="1-11", flexible="6+", api_key=2):
    """ListOffsetsRequest, API key 2, versions 1-11, flexible 6+."""

    replica_id: int = int32("0+")
    isolation_level: int = int8("2+")
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic, "0+")
    timeout_ms: int = int32("10+")
