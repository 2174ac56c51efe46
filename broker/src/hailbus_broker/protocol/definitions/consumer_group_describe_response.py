"""ConsumerGroupDescribeResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, Uuid, array, int8, int16, int32, string, struct, uuid


class TopicPartitions(Struct):
    """Part of ConsumerGroupDescribeResponse."""

    topic_id: Uuid = uuid("0+")
    topic_name: str = string("0+")
    partitions: list[int] = array(int32("0+"), "0+")


class Assignment(Struct):
    """Part of ConsumerGroupDescribeResponse."""

    topic_partitions: list[TopicPartitions] = array(TopicPartitions, "0+")


class Member(Struct):
    """Part of ConsumerGroupDescribeResponse."""

    member_id: str = string("0+")
    instance_id: str | None = string("0+", default=None, nullable="0+")
    rack_id: str | None = string("0+", default=None, nullable="0+")
    member_epoch: int = int32("0+")
    client_id: str = string("0+")
    client_host: str = string("0+")
    subscribed_topic_names: list[str] = array(string("0+"), "0+")
    subscribed_topic_regex: str | None = string("0+", default=None, nullable="0+")
    assignment: Assignment = struct(Assignment, "0+")
    target_assignment: Assignment = struct(Assignment, "0+")
    member_type: int = int8("1+", default=-1)


class DescribedGroup(Struct):
    """Part of ConsumerGroupDescribeResponse."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", default=None, nullable="0+")
    group_id: str = string("0+")
    group_state: str = string("0+")
    group_epoch: int = int32("0+")
    assignment_epoch: int = int32("0+")
    assignor_name: str = string("0+")
    members: list[Member] = array(Member, "0+")
    authorized_operations: int = int32("0+", default=-2147483648)


class ConsumerGroupDescribeResponse(Message, versions="0-1", flexible="0+", api_key=69):
    """ConsumerGroupDescribeResponse, API key 69, versions 0-1, flexible 0+."""

    throttle_time_ms: int = int32("0+")
    groups: list[DescribedGroup] = array(DescribedGroup, "0+")
