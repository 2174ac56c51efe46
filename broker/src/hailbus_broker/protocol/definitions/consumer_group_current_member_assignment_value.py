"""ConsumerGroupCurrentMemberAssignmentValue. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, Uuid, array, int8, int32, uuid


class TopicPartitions(Struct):
    """Part of ConsumerGroupCurrentMemberAssignmentValue."""

    topic_id: Uuid = uuid("0+")
    partitions: list[int] = array(int32("0+"), "0+")
    assignment_epochs: list[int] | None = array(int32("0+"), "0+", nullable="0+", tag=0)


class ConsumerGroupCurrentMemberAssignmentValue(Message, versions="0", flexible="0+", api_key=8):
    """ConsumerGroupCurrentMemberAssignmentValue, coordinator-value, versions 0, flexible 0+."""

    member_epoch: int = int32("0+")
    previous_member_epoch: int = int32("0+")
    state: int = int8("0+")
    assigned_partitions: list[TopicPartitions] = array(TopicPartitions, "0+")
    partitions_pending_revocation: list[TopicPartitions] = array(TopicPartitions, "0+")
