"""Records of groups of the consumer protocol: how they are written and replayed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from hailbus_broker.coordinators.group.consumer import LEAVE_EPOCH, ConsumerGroup, ConsumerMember, MemberState
from hailbus_broker.coordinators.outcome import CoordinatorRecord
from hailbus_broker.protocol.definitions import (
    consumer_group_current_member_assignment_value as current_value,
)
from hailbus_broker.protocol.definitions import consumer_group_target_assignment_member_value as target_value
from hailbus_broker.protocol.definitions.consumer_group_current_member_assignment_key import (
    ConsumerGroupCurrentMemberAssignmentKey,
)
from hailbus_broker.protocol.definitions.consumer_group_member_metadata_key import ConsumerGroupMemberMetadataKey
from hailbus_broker.protocol.definitions.consumer_group_member_metadata_value import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMemberMetadataValue,
)
from hailbus_broker.protocol.definitions.consumer_group_metadata_key import ConsumerGroupMetadataKey
from hailbus_broker.protocol.definitions.consumer_group_metadata_value import ConsumerGroupMetadataValue
from hailbus_broker.protocol.definitions.consumer_group_regular_expression_key import (
    ConsumerGroupRegularExpressionKey,
)
from hailbus_broker.protocol.definitions.consumer_group_regular_expression_value import (
    ConsumerGroupRegularExpressionValue,
)
from hailbus_broker.protocol.definitions.consumer_group_target_assignment_member_key import (
    ConsumerGroupTargetAssignmentMemberKey,
)
from hailbus_broker.protocol.definitions.consumer_group_target_assignment_metadata_key import (
    ConsumerGroupTargetAssignmentMetadataKey,
)
from hailbus_broker.protocol.definitions.consumer_group_target_assignment_metadata_value import (
    ConsumerGroupTargetAssignmentMetadataValue,
)
from hailbus_broker.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from hailbus_broker.coordinators.group.assignors import Assignment
    from hailbus_broker.coordinators.group.state import GroupState
    from hailbus_broker.protocol.schema import Message

CONSUMER_KEY_TYPES: Final[dict[int, type[Message]]] = {
    cls.__api_key__: cls
    for cls in (
        ConsumerGroupMetadataKey,
        ConsumerGroupMemberMetadataKey,
        ConsumerGroupTargetAssignmentMetadataKey,
        ConsumerGroupTargetAssignmentMemberKey,
        ConsumerGroupCurrentMemberAssignmentKey,
        ConsumerGroupRegularExpressionKey,
    )
}

CONSUMER_VALUE_TYPES: Final[dict[int, type[Message]]] = {
    cls.__api_key__: cls
    for cls in (
        ConsumerGroupMetadataValue,
        ConsumerGroupMemberMetadataValue,
        ConsumerGroupTargetAssignmentMetadataValue,
        target_value.ConsumerGroupTargetAssignmentMemberValue,
        current_value.ConsumerGroupCurrentMemberAssignmentValue,
        ConsumerGroupRegularExpressionValue,
    )
}


def group_epoch_record(group_id: str, epoch: int, subscription_hash: int) -> CoordinatorRecord:
    """Return the record of a group's epoch."""
    value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=subscription_hash)
    return CoordinatorRecord(ConsumerGroupMetadataKey(group_id=group_id), value)


def assignment_record(group_id: str, epoch: int, wall_ms: int) -> CoordinatorRecord:
    """Return the record of the epoch of a group's target assignment."""
    value = ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=wall_ms)
    return CoordinatorRecord(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def member_record(group_id: str, member: ConsumerMember) -> CoordinatorRecord:
    """Return the record of what a member asks for."""
    value = ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscribed_topics),
        subscribed_topic_regex=member.subscribed_regex or None,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.server_assignor,
        classic_member_metadata=None
        if member.classic_session_timeout_ms is None
        else ClassicMemberMetadata(
            session_timeout_ms=member.classic_session_timeout_ms,
            supported_protocols=[
                ClassicProtocol(name=name, metadata=metadata) for name, metadata in member.classic_protocols
            ],
        ),
    )
    return CoordinatorRecord(ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id), value)


def target_record(group_id: str, member_id: str, assignment: Assignment) -> CoordinatorRecord:
    """Return the record of a member's target assignment."""
    value = target_value.ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=[
            target_value.TopicPartition(topic_id=topic, partitions=sorted(partitions))
            for topic, partitions in sorted(assignment.items())
        ]
    )
    return CoordinatorRecord(ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), value)


def current_record(group_id: str, member: ConsumerMember) -> CoordinatorRecord:
    """Return the record of a member's present assignment."""

    def written(assignment: Assignment) -> list[current_value.TopicPartitions]:
        return [
            current_value.TopicPartitions(topic_id=topic, partitions=sorted(partitions))
            for topic, partitions in sorted(assignment.items())
        ]

    value = current_value.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.member_epoch,
        previous_member_epoch=member.previous_member_epoch,
        state=member.state,
        assigned_partitions=written(member.assigned),
        partitions_pending_revocation=written(member.pending_revocation),
    )
    key = ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id)
    return CoordinatorRecord(key, value)


def member_removal_records(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    """Return the tombstones that remove a member."""
    return [
        CoordinatorRecord(ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None),
        CoordinatorRecord(ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None),
        CoordinatorRecord(ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None),
    ]


def group_removal_records(group: ConsumerGroup) -> list[CoordinatorRecord]:
    """Return the tombstones that remove a group without members."""
    records = [
        CoordinatorRecord(ConsumerGroupRegularExpressionKey(group_id=group.group_id, regular_expression=pattern), None)
        for pattern in sorted(group.regex_topics)
    ]
    records.append(CoordinatorRecord(ConsumerGroupTargetAssignmentMetadataKey(group_id=group.group_id), None))
    records.append(CoordinatorRecord(ConsumerGroupMetadataKey(group_id=group.group_id), None))
    return records


def replay_consumer(state: GroupState, key: Message, value: Message | None, now_ms: int) -> None:
    """Apply one record of a consumer group.

    Raises:
        ProtocolError: It says something that no member can be in.
    """
    group_id: str = key.group_id  # type: ignore[attr-defined]  # all of these keys have it
    group = state.consumer_groups.get(group_id)
    if group is None:
        if value is None:
            return
        group = ConsumerGroup(group_id=group_id)
        state.consumer_groups[group_id] = group
    match key:
        case ConsumerGroupMetadataKey():
            if value is None:
                del state.consumer_groups[group_id]
                return
            assert isinstance(value, ConsumerGroupMetadataValue)
            group.group_epoch = value.epoch
            group.subscription_hash = value.metadata_hash
        case ConsumerGroupMemberMetadataKey():
            _replay_member(state, group, key.member_id, value, now_ms)
        case ConsumerGroupTargetAssignmentMetadataKey():
            if isinstance(value, ConsumerGroupTargetAssignmentMetadataValue):
                group.assignment_epoch = value.assignment_epoch
        case ConsumerGroupTargetAssignmentMemberKey():
            if value is None:
                group.target.pop(key.member_id, None)
            else:
                assert isinstance(value, target_value.ConsumerGroupTargetAssignmentMemberValue)
                group.target[key.member_id] = {
                    entry.topic_id: frozenset(entry.partitions) for entry in value.topic_partitions
                }
        case ConsumerGroupCurrentMemberAssignmentKey():
            _replay_current(group, key.member_id, value)
        case ConsumerGroupRegularExpressionKey():
            if value is None:
                group.regex_topics.pop(key.regular_expression, None)
            else:
                assert isinstance(value, ConsumerGroupRegularExpressionValue)
                group.regex_topics[key.regular_expression] = frozenset(value.topics)
        case _:
            raise AssertionError(type(key))


def _replay_member(state: GroupState, group: ConsumerGroup, member_id: str, value: Message | None, now_ms: int) -> None:
    key = group.group_id, member_id
    if value is None:
        state.drop_deadlines(key)
        member = group.members.pop(member_id, None)
        if member is not None:
            _release_instance(group, member)
        return
    assert isinstance(value, ConsumerGroupMemberMetadataValue)
    before = group.members.get(member_id, ConsumerMember(member_id=member_id))
    classic = value.classic_member_metadata
    group.members[member_id] = replace(
        before,
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        subscribed_topics=frozenset(value.subscribed_topic_names),
        subscribed_regex=value.subscribed_topic_regex or "",
        server_assignor=value.server_assignor,
        classic_session_timeout_ms=None if classic is None else classic.session_timeout_ms,
        classic_protocols=()
        if classic is None
        else tuple((entry.name, bytes(entry.metadata)) for entry in classic.supported_protocols),
    )
    if before.instance_id != value.instance_id:
        _release_instance(group, before)
    if value.instance_id is not None:
        group.static_members[value.instance_id] = member_id
    if key not in state.session_deadlines:
        timeout_ms = state.group_settings(group.group_id)[0] if classic is None else classic.session_timeout_ms
        state.touch(key, now_ms + timeout_ms)


def _release_instance(group: ConsumerGroup, member: ConsumerMember) -> None:
    """Let another member have the instance id of one that is gone, or that has given it up."""
    instance_id = member.instance_id
    if instance_id is not None and group.static_members.get(instance_id) == member.member_id:
        del group.static_members[instance_id]


def _replay_current(group: ConsumerGroup, member_id: str, value: Message | None) -> None:
    member = group.members.get(member_id)
    if member is None:
        return
    if value is None:
        group.members[member_id] = replace(
            member, member_epoch=LEAVE_EPOCH, previous_member_epoch=LEAVE_EPOCH, assigned={}, pending_revocation={}
        )
        return
    assert isinstance(value, current_value.ConsumerGroupCurrentMemberAssignmentValue)
    if value.state not in MemberState._value2member_map_:
        raise ProtocolError(f"a member in state {value.state}, which there is not")
    group.members[member_id] = replace(
        member,
        member_epoch=value.member_epoch,
        previous_member_epoch=value.previous_member_epoch,
        state=MemberState(value.state),
        assigned={entry.topic_id: frozenset(entry.partitions) for entry in value.assigned_partitions},
        pending_revocation={
            entry.topic_id: frozenset(entry.partitions) for entry in value.partitions_pending_revocation
        },
    )
