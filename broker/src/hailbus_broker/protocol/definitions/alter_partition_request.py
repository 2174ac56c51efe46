"""AlterPartitionRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, Uuid, array, int8, int32, int64, uuid


class BrokerState(Struct):
    """Part of AlterPartitionRequest."""

    broker_id: int = int32("3+")
    broker_epoch: int = int64("3+", default=-1)


class PartitionData(Struct):
    """Part of AlterPartitionRequest."""

    partition_index: int = int32("0+")
    leader_epoch: int = int32("0+")
    new_isr: list[int] = array(int32("0+"), "0-2")
    new_isr_with_epochs: list[BrokerState] = array(BrokerState, "3+")
    leader_recovery_state: int = int8("1+", default=0)
    partition_epoch: int = int32("0+")


class TopicData(Struct):
    """Part of AlterPartitionRequest."""

    topic_id: Uuid = uuid("2+")
    partitions: list[PartitionData] = array(PartitionData, "0+")


class AlterPartitionRequest(Message, versions="2-3", flexible="0+", api_key=56):
    """AlterPartitionRequest, API key 56, versions 2-3, flexible 0+."""

    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+", default=-1)
    topics: list[TopicData] = array(TopicData, "0+")
