"""ConsumerGroupTargetAssignmentMemberValue. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, Uuid, array, int32, uuid


class TopicPartition(Struct):
    """Part of ConsumerGroupTargetAssignmentMemberValue."""

    topic_id: Uuid = uuid("0+")
    partitions: list[int] = array(int32("0+"), "0+")


class ConsumerGroupTargetAssignmentMemberValue(Message, versions="0", flexible="0+", api_key=7):
    """ConsumerGroupTargetAssignmentMemberValue, coordinator-value, versions 0, flexible 0+."""

    topic_partitions: list[TopicPartition] = array(TopicPartition, "0+")
