"""AlterPartitionResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, Uuid, array, int8, int16, int32, uuid


class PartitionData(Struct):
    """Part of AlterPartitionResponse."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+")
    isr: list[int] = array(int32("0+"), "0+")
    leader_recovery_state: int = int8("1+", default=0)
    partition_epoch: int = int32("0+")


class TopicData(Struct):
    """Part of AlterPartitionResponse."""

    topic_id: Uuid = uuid("2+")
    partitions: list[PartitionData] = array(PartitionData, "0+")


class AlterPartitionResponse(Message, versions="2-3", flexible="0+", api_key=56):
    """AlterPartitionResponse, API key 56, versions 2-3, flexible 0+."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    topics: list[TopicData] = array(TopicData, "0+")
