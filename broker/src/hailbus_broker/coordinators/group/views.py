"""Groups as DescribeGroups, ConsumerGroupDescribe and ListGroups show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hailbus_broker.coordinators.group.classic import ClassicState
from hailbus_broker.coordinators.group.rebalances import rebalances_tag
from hailbus_broker.protocol.definitions import consumer_group_describe_response as describe_response
from hailbus_broker.protocol.definitions.describe_groups_response import DescribedGroup, DescribedGroupMember
from hailbus_broker.protocol.definitions.list_groups_response import ListedGroup

if TYPE_CHECKING:
    from hailbus_broker.coordinators.group.assignors import Assignment
    from hailbus_broker.coordinators.group.offsets import CommittedOffsets
    from hailbus_broker.coordinators.group.state import GroupState

CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1


class GroupViews:
    """Describes and lists groups."""

    def __init__(self, state: GroupState, offsets: CommittedOffsets) -> None:
        self._state: Final = state
        self._offsets: Final = offsets

    def describe(self, group_id: str) -> DescribedGroup | None:
        """A classic group as DescribeGroups shows it; None if there is none."""
        group = self._state.groups.get(group_id)
        if group is None or group.state is ClassicState.DEAD:
            if group_id in self._offsets.by_group and group_id not in self._state.consumer_groups:
                return DescribedGroup(group_id=group_id, group_state=ClassicState.EMPTY)
            return None
        is_stable = group.state is ClassicState.STABLE
        return DescribedGroup(
            unknown_tags=rebalances_tag(group.rebalances),
            group_id=group_id,
            group_state=group.state,
            protocol_type=group.protocol_type or "",
            protocol_data=(group.protocol or "") if is_stable else "",
            members=[
                DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=member.metadata(group.protocol) if is_stable else b"",
                    member_assignment=member.assignment if is_stable else b"",
                )
                for member in group.members.values()
            ],
        )

    def list_groups(self) -> list[ListedGroup]:
        """All groups, by name. A group that only has offsets counts as empty."""
        found = {
            group.group_id: ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state,
                group_type="Classic",
            )
            for group in self._state.groups.values()
            if group.state is not ClassicState.DEAD
        }
        for consumer_group in self._state.consumer_groups.values():
            found[consumer_group.group_id] = ListedGroup(
                group_id=consumer_group.group_id,
                protocol_type="consumer",
                group_state=consumer_group.state(),
                group_type="Consumer",
            )
        for group_id in self._offsets.by_group:
            if group_id not in found:
                found[group_id] = ListedGroup(group_id=group_id, group_state=ClassicState.EMPTY, group_type="Classic")
        return [found[group_id] for group_id in sorted(found)]

    def describe_consumer(self, group_id: str) -> describe_response.DescribedGroup | None:
        """A consumer group as ConsumerGroupDescribe shows it; None if there is none."""
        group = self._state.consumer_groups.get(group_id)
        if group is None:
            return None
        return describe_response.DescribedGroup(
            unknown_tags=rebalances_tag(group.rebalances),
            group_id=group_id,
            group_state=group.state(),
            group_epoch=group.group_epoch,
            assignment_epoch=group.assignment_epoch,
            assignor_name=group.preferred_assignor(self._state.config.consumer_assignors[0]),
            members=[
                describe_response.Member(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    rack_id=member.rack_id,
                    member_epoch=member.member_epoch,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    subscribed_topic_names=sorted(member.subscribed_topics),
                    subscribed_topic_regex=member.subscribed_regex or None,
                    assignment=self._described(member.assigned),
                    target_assignment=self._described(group.target.get(member.member_id, {})),
                    member_type=CLASSIC_MEMBER if member.is_classic else CONSUMER_MEMBER,
                )
                for member in group.members.values()
            ],
        )

    def _described(self, assignment: Assignment) -> describe_response.Assignment:
        return describe_response.Assignment(
            topic_partitions=[
                describe_response.TopicPartitions(
                    topic_id=topic_id,
                    topic_name=self._state.image.topics_by_id[topic_id].name,
                    partitions=sorted(partitions),
                )
                for topic_id, partitions in sorted(assignment.items())
                if topic_id in self._state.image.topics_by_id
            ]
        )
