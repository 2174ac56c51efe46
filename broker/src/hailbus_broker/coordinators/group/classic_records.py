"""GroupMetadata records: groups of the classic protocol as `__consumer_offsets` stores them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hailbus_broker.coordinators.group.classic import ClassicGroup, ClassicState, Member, Protocols
from hailbus_broker.coordinators.outcome import CoordinatorRecord
from hailbus_broker.protocol.definitions.group_metadata_key import GroupMetadataKey
from hailbus_broker.protocol.definitions.group_metadata_value import GroupMetadataValue, MemberMetadata

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hailbus_broker.coordinators.group.state import GroupState

GROUP_METADATA_VERSION: Final = 3


def group_record(group: ClassicGroup, assignments: Mapping[str, bytes]) -> CoordinatorRecord:
    """Return the record of a group whose members have these assignments."""
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol,
        leader=group.leader,
        current_state_timestamp=group.state_since_ms,
        members=[
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.metadata(group.protocol),
                assignment=assignments[member.member_id],
            )
            for member in group.members.values()
        ],
    )
    return CoordinatorRecord(GroupMetadataKey(group=group.group_id), value, GROUP_METADATA_VERSION)


def current_record(group: ClassicGroup) -> CoordinatorRecord:
    """Return the record of a group whose members keep their assignments."""
    return group_record(group, {member.member_id: member.assignment for member in group.members.values()})


def removal_record(group_id: str) -> CoordinatorRecord:
    """Return the tombstone that removes a group."""
    return CoordinatorRecord(GroupMetadataKey(group=group_id), None)


def replay_group(state: GroupState, group_id: str, value: GroupMetadataValue | None, now_ms: int) -> None:
    """Apply the record of a group; None removes it."""
    if value is None:
        removed = state.groups.pop(group_id, None)
        if removed is not None:
            for member_id in removed.members:
                state.drop_deadlines((group_id, member_id))
            if removed.state is ClassicState.EMPTY:
                removed.move_to(ClassicState.DEAD, now_ms)
        return
    group = state.groups.get(group_id)
    if group is None:
        group = ClassicGroup(group_id=group_id)
        state.groups[group_id] = group
    group.protocol_type = value.protocol_type or None
    group.generation = value.generation
    group.protocol = value.protocol
    group.leader = value.leader
    recorded = {member.member_id: member for member in value.members}
    if group.leader not in recorded:
        group.leader = None  # the first member that joins becomes the leader
    for member_id in [key for key in group.members if key not in recorded]:
        del group.members[member_id]
    for member_id, entry in recorded.items():
        member = group.members.get(member_id)
        if member is None:
            member = Member(
                member_id=member_id,
                group_instance_id=entry.group_instance_id,
                client_id=entry.client_id,
                client_host=entry.client_host,
                rebalance_timeout_ms=entry.rebalance_timeout if entry.rebalance_timeout >= 0 else entry.session_timeout,
                session_timeout_ms=entry.session_timeout,
                protocols=Protocols([(value.protocol or "", bytes(entry.subscription))]),
                assignment=bytes(entry.assignment),
            )
            group.add(member)
        else:
            group.put(member._replace(assignment=bytes(entry.assignment)))
        if (group_id, member_id) not in state.session_deadlines:
            state.touch((group_id, member_id), now_ms + member.session_timeout_ms)
    group.static_members = {
        member.group_instance_id: member_id
        for member_id, member in group.members.items()
        if member.group_instance_id is not None
    }
    # How long a group has been empty must not restart with each start of the broker.
    group.recorded(value.current_state_timestamp if value.current_state_timestamp >= 0 else now_ms)
    group.sync_deadline_ms = None
