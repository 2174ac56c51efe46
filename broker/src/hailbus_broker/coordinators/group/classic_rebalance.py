"""Rebalances of the classic protocol: what starts them, what they wait for, and how they end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hailbus_broker.coordinators.group.classic import ClassicState
from hailbus_broker.coordinators.group.classic_records import group_record
from hailbus_broker.coordinators.group.rebalances import Rebalance, RebalanceCause
from hailbus_broker.coordinators.numbering import following
from hailbus_broker.protocol.definitions.join_group_response import JoinGroupResponse, JoinGroupResponseMember
from hailbus_broker.protocol.definitions.sync_group_response import SyncGroupResponse
from hailbus_broker.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hailbus_broker.coordinators.group.classic import ClassicGroup, Member
    from hailbus_broker.coordinators.group.config import GroupConfig
    from hailbus_broker.coordinators.group.decision import GroupDecision
    from hailbus_broker.coordinators.group.state import GroupState

MIN_JOIN_RETRY_MS: Final = 1_000
"""The shortest wait of a rebalance in which every member is away, whatever timeout the members have asked for."""


class ClassicRebalances:
    """Decides when a group has to be rebalanced and when a rebalance is complete.

    Every `group` is a copy that the decision changes, unless a method says otherwise.
    """

    def __init__(self, state: GroupState) -> None:
        self._state: Final = state
        self._config: Final[GroupConfig] = state.config

    # ------------------------------------------------------------------ time

    def member_due(self, group: ClassicGroup, member_id: str, decision: GroupDecision) -> None:
        """Act on the deadlines of a member; `group` is the shard's own."""
        key, now_ms = (group.group_id, member_id), decision.now_ms
        lapses_ms = group.pending.get(member_id)
        if lapses_ms is not None:
            if lapses_ms > now_ms:
                self._state.timers.arm(key, lapses_ms)
                return
            changed = decision.copy_of(group)
            del changed.pending[member_id]
            if changed.state is ClassicState.PREPARING_REBALANCE:
                self.maybe_complete_join(changed, decision)
            return
        member = group.members.get(member_id)
        if member is None:
            self._state.drop_deadlines(key)
            return
        deadline_ms = self._state.session_deadlines.get(key, now_ms)
        waits = member.sync_token is not None or (member.join_token is not None and not member.is_new)
        if waits or key in self._state.parked_replies:
            # A member that waits for our answer is not silent.
            deadline_ms = max(deadline_ms, now_ms + member.session_timeout_ms)
        if deadline_ms > now_ms:
            decision.extend_session(key, deadline_ms)
            return
        reason = f"member {member_id} was silent for its session timeout"
        self.remove_member(decision.copy_of(group), member, RebalanceCause.SESSION_EXPIRED, reason, decision)

    def group_due(self, group: ClassicGroup, decision: GroupDecision) -> None:
        """Act on the deadlines of a group; `group` is the shard's own."""
        now_ms = decision.now_ms
        if group.has_changed_over:
            group = decision.copy_of(group)
            group.has_changed_over = False
            reason = f"the group changed over to the classic protocol: {group.change_reason}"
            self.maybe_rebalance(group, RebalanceCause.PROTOCOL_CHANGED, reason, decision)
        elif group.join_deadline_ms is not None and group.join_deadline_ms <= now_ms:
            group = decision.copy_of(group)
            if group.join_remaining_ms is not None and group.has_newcomers and group.join_remaining_ms > 0:
                delay_ms = min(self._config.initial_rebalance_delay_ms, group.join_remaining_ms)
                group.join_remaining_ms -= delay_ms
                group.has_newcomers = False
                self._wait_for_joins(group, delay_ms, decision)
            else:
                self.complete_join(group, decision)
        elif group.sync_deadline_ms is not None and group.sync_deadline_ms <= now_ms:
            group = decision.copy_of(group)
            group.sync_deadline_ms = None
            if group.state is ClassicState.COMPLETING_REBALANCE:
                late = [
                    (member, f"member {member.member_id} did not sync in time")
                    for member in group.members.values()
                    if member.sync_token is None
                ]
                if late:
                    self.remove_members(group, late, RebalanceCause.SYNC_TIMED_OUT, decision)
        for due_ms in (group.join_deadline_ms, group.sync_deadline_ms):
            if due_ms is not None:
                decision.check_group_at(group, due_ms)

    @staticmethod
    def _wait_for_joins(group: ClassicGroup, delay_ms: int, decision: GroupDecision) -> None:
        group.join_deadline_ms = decision.now_ms + delay_ms
        decision.check_group_at(group, group.join_deadline_ms)

    # ------------------------------------------------------------------ start

    def maybe_rebalance(self, group: ClassicGroup, cause: RebalanceCause, reason: str, decision: GroupDecision) -> None:
        """Start a rebalance; during one, complete it if everybody has joined."""
        if group.state is ClassicState.PREPARING_REBALANCE:
            self.maybe_complete_join(group, decision)
            return
        if group.state is ClassicState.DEAD:
            return
        if group.state is ClassicState.COMPLETING_REBALANCE:
            for member in list(group.members.values()):
                if member.sync_token is not None:
                    decision.reply(member.sync_token, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
                    decision.touch(group, group.put(member._replace(sync_token=None)))
        was_empty = group.state is ClassicState.EMPTY
        group.move_to(ClassicState.PREPARING_REBALANCE, decision.wall_ms)
        group.sync_deadline_ms = None
        rebalance = Rebalance(
            at_ms=decision.wall_ms,
            generation=group.generation,
            members=len(group.members),
            cause=cause,
            reason=reason,
        )
        decision.note_rebalance(group.rebalances, rebalance, group_id=group.group_id)
        delay_ms = self._config.initial_rebalance_delay_ms
        if was_empty and delay_ms > 0:
            group.join_remaining_ms = max(group.rebalance_timeout_ms() - delay_ms, 0)
            group.has_newcomers = False
            self._wait_for_joins(group, delay_ms, decision)
            return
        group.join_remaining_ms = None
        self._wait_for_joins(group, group.rebalance_timeout_ms(), decision)
        self.maybe_complete_join(group, decision)

    def remove_member(
        self, group: ClassicGroup, member: Member, cause: RebalanceCause, reason: str, decision: GroupDecision
    ) -> None:
        """Remove a member, answer the requests that it waits for, and rebalance the others."""
        self.remove_members(group, [(member, reason)], cause, decision)

    def remove_members(
        self,
        group: ClassicGroup,
        leaving: Sequence[tuple[Member, str]],
        cause: RebalanceCause,
        decision: GroupDecision,
    ) -> None:
        """Remove members, each with a reason, answer the requests that they wait for, and rebalance the others once."""
        for known, reason in leaving:
            member = abandon_join(group, group.members.get(known.member_id, known), decision)
            if member.sync_token is not None:
                decision.reply(member.sync_token, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
            decision.log_events.append(
                ("member_removed", {"group": group.group_id, "member": member.member_id, "reason": reason})
            )
        group.remove(member for member, _ in leaving)
        reason = leaving[0][1]
        if len(leaving) > 1:
            reason = f"{reason}; so did {len(leaving) - 1} more"
        if group.state in {ClassicState.STABLE, ClassicState.COMPLETING_REBALANCE}:
            self.maybe_rebalance(group, cause, reason, decision)
        elif group.state is ClassicState.PREPARING_REBALANCE:
            self.maybe_complete_join(group, decision)

    # ------------------------------------------------------------------ end

    def maybe_complete_join(self, group: ClassicGroup, decision: GroupDecision) -> None:
        """Complete a rebalance if every member has joined and no member id is still to be used."""
        if group.join_remaining_ms is not None or group.pending:
            return
        if all(member.join_token is not None for member in group.members.values()):
            self.complete_join(group, decision)

    def complete_join(self, group: ClassicGroup, decision: GroupDecision) -> None:
        """End the wait for joins: members that have not joined are out, the others are in the next generation."""
        group.join_deadline_ms = None
        group.join_remaining_ms = None
        group.has_newcomers = False
        absent = [
            member
            for member in group.members.values()
            if member.join_token is None and member.group_instance_id is None
        ]
        group.remove(absent)
        for member in absent:
            data = {"group": group.group_id, "member": member.member_id, "reason": "did not rejoin in time"}
            decision.log_events.append(("member_removed", data))
        joined = [member for member in group.members.values() if member.join_token is not None]
        if group.members and not joined:
            # Only static members that are away: they keep their places until their sessions end.
            self._wait_for_joins(group, max(group.rebalance_timeout_ms(), MIN_JOIN_RETRY_MS), decision)
            return
        group.generation = following(group.generation)
        if not group.members:
            group.protocol = None
            group.leader = None
            group.move_to(ClassicState.EMPTY, decision.wall_ms)
            decision.records.append(group_record(group, {}))
            decision.log_events.append(("group_empty", {"group": group.group_id, "generation": group.generation}))
            return
        if group.leader is None or group.members[group.leader].join_token is None:
            group.leader = joined[0].member_id
        group.protocol = group.select_protocol()
        group.move_to(ClassicState.COMPLETING_REBALANCE, decision.wall_ms)
        for member in joined:
            if member.join_token is not None:
                decision.reply(member.join_token, join_response(group, member))
            decision.touch(group, group.put(member._replace(join_token=None, is_new=False)))
        group.sync_deadline_ms = decision.now_ms + group.rebalance_timeout_ms()
        decision.check_group_at(group, group.sync_deadline_ms)


def abandon_join(
    group: ClassicGroup, member: Member, decision: GroupDecision, *, code: ErrorCode = ErrorCode.UNKNOWN_MEMBER_ID
) -> Member:
    """Answer the JoinGroup that a member still waits for, because a newer request replaces it."""
    if member.join_token is None:
        return member
    decision.reply(member.join_token, JoinGroupResponse(error_code=code, member_id=member.member_id))
    return group.put(member._replace(join_token=None))


def join_response(group: ClassicGroup, member: Member) -> JoinGroupResponse:
    """Return a member's place in the present generation; the leader also gets the other members."""
    members = []
    if member.member_id == group.leader:
        members = [
            JoinGroupResponseMember(
                member_id=other.member_id,
                group_instance_id=other.group_instance_id,
                metadata=other.metadata(group.protocol),
            )
            for other in group.members.values()
        ]
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=group.leader or "",
        member_id=member.member_id,
        members=members,
    )
