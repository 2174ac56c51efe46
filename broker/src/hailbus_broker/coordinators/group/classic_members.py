"""Members of the classic protocol in a consumer group: their requests are answered from its state (KIP-848)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hailbus_broker.coordinators.group.consumer import ConsumerGroup, ConsumerMember, MemberState
from hailbus_broker.coordinators.group.consumer_protocol import replace_static
from hailbus_broker.coordinators.group.consumer_records import member_record
from hailbus_broker.coordinators.group.migration import (
    CONSUMER_PROTOCOL,
    NotConsumerProtocolError,
    classic_update,
    has_to_rejoin,
    owned_by,
    write_assignment,
)
from hailbus_broker.coordinators.group.rebalances import RebalanceCause
from hailbus_broker.protocol.definitions.heartbeat_response import HeartbeatResponse
from hailbus_broker.protocol.definitions.join_group_response import JoinGroupResponse
from hailbus_broker.protocol.definitions.sync_group_response import SyncGroupResponse
from hailbus_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hailbus_broker.coordinators.group.classic_protocol import Join
    from hailbus_broker.coordinators.group.consumer_removal import ConsumerRemovals
    from hailbus_broker.coordinators.group.decision import GroupDecision
    from hailbus_broker.coordinators.group.reconciliation import Reconciliation
    from hailbus_broker.coordinators.group.state import GroupState
    from hailbus_broker.coordinators.outcome import Token
    from hailbus_broker.protocol.definitions.heartbeat_request import HeartbeatRequest
    from hailbus_broker.protocol.definitions.leave_group_request import MemberIdentity
    from hailbus_broker.protocol.definitions.sync_group_request import SyncGroupRequest


class ClassicMembers:
    """Decides on requests of the classic protocol that concern a consumer group."""

    def __init__(self, state: GroupState, reconciliation: Reconciliation, removals: ConsumerRemovals) -> None:
        self._state: Final = state
        self._reconciliation: Final = reconciliation
        self._removals: Final = removals

    def join(self, group: ConsumerGroup, join: Join, decision: GroupDecision) -> None:
        """Let a member join the group, for the first time or again.

        Raises:
            ApiError: It cannot be a member.
        """
        request, token = join.message, join.token
        names = [
            {name for name, _ in member.classic_protocols} for member in group.members.values() if member.is_classic
        ]
        common = set.intersection(*names) if names else {entry.name for entry in request.protocols}
        if request.protocol_type != CONSUMER_PROTOCOL or not common & {entry.name for entry in request.protocols}:
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        member_id, instance_id = request.member_id, request.group_instance_id
        if not member_id and instance_id is None and join.requires_known_member:
            member_id = self._state.new_member_id(join.client_id)
            response = JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
            decision.reply(token, response)
            return
        members, target = dict(group.members), dict(group.target)
        reasons: list[tuple[RebalanceCause, str]] = []
        holder_id = None if instance_id is None else group.static_members.get(instance_id)
        if not member_id:
            member_id = self._state.new_member_id(instance_id or join.client_id)
            if holder_id is not None:
                holder = group.members[holder_id]
                members[member_id] = replace_static(group, members, target, holder, member_id, decision)
        elif holder_id is not None and holder_id != member_id:
            raise ApiError(ErrorCode.FENCED_INSTANCE_ID)
        if member_id not in members and len(group.members) >= self._state.config.consumer_max_size:
            raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED)
        before = members.get(member_id, ConsumerMember(member_id=member_id))
        try:
            updated = classic_update(before, request, join.client_id, join.client_host)
            owned = owned_by(request, self._state.image)
        except NotConsumerProtocolError as error:
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from error
        if member_id not in members:
            reasons.append((RebalanceCause.MEMBER_JOINED, f"a new member {member_id} joined"))
        elif updated.subscribed_topics != before.subscribed_topics:
            reasons.append((RebalanceCause.SUBSCRIPTION_CHANGED, f"member {member_id} changed its subscription"))
        if updated != group.members.get(member_id):
            decision.records.append(member_record(group.group_id, updated))
        reconciled = self._reconciliation.advance(group, members, target, updated, owned, reasons, decision)
        if member_id in group.members:  # the session of a new member starts when its record is replayed
            decision.extend_session((group.group_id, member_id), decision.now_ms + request.session_timeout_ms)
        decision.reply(
            token,
            JoinGroupResponse(
                generation_id=reconciled.member_epoch,
                protocol_type=CONSUMER_PROTOCOL,
                protocol_name=request.protocols[0].name,
                # Nobody leads: the coordinator assigns.
                leader="",
                member_id=member_id,
            ),
        )

    @staticmethod
    def _member(
        group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int, decision: GroupDecision
    ) -> ConsumerMember:
        """Return the member that a request names, and extend its session.

        Raises:
            ApiError: There is none, it is another's, or its generation is over.
        """
        if instance_id is not None:
            holder_id = group.static_members.get(instance_id)
            if holder_id is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            if holder_id != member_id:
                raise ApiError(ErrorCode.FENCED_INSTANCE_ID)
        member = group.members.get(member_id)
        if member is None or member.classic_session_timeout_ms is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        if generation != member.member_epoch:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        decision.extend_session((group.group_id, member_id), decision.now_ms + member.classic_session_timeout_ms)
        return member

    def _must_rejoin(self, group: ConsumerGroup, member: ConsumerMember, decision: GroupDecision) -> bool:
        """Whether a member has to join again, for which it has its rebalance timeout."""
        if not has_to_rejoin(group, member):
            return False
        key = group.group_id, member.member_id
        if key not in self._state.revocation_deadlines:
            decision.set_revocation(key, decision.now_ms + member.rebalance_timeout_ms)
        return True

    def sync(
        self, group: ConsumerGroup, request: SyncGroupRequest, token: Token[SyncGroupResponse], decision: GroupDecision
    ) -> None:
        """Give a member the partitions that it may have.

        Raises:
            ApiError: There is no such member, or its generation is over.
        """
        member = self._member(group, request.member_id, request.group_instance_id, request.generation_id, decision)
        if self._must_rejoin(group, member, decision) and member.state is not MemberState.UNREVOKED_PARTITIONS:
            decision.reply(token, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
            return
        name, metadata = member.classic_protocols[0]
        response = SyncGroupResponse(
            protocol_type=CONSUMER_PROTOCOL,
            protocol_name=name,
            assignment=write_assignment(member.assigned, self._state.image, like=metadata),
        )
        decision.reply(token, response)

    def heartbeat(
        self, group: ConsumerGroup, request: HeartbeatRequest, token: Token[HeartbeatResponse], decision: GroupDecision
    ) -> None:
        """Extend a member's session, and tell it whether it has to join again.

        Raises:
            ApiError: There is no such member, or its generation is over.
        """
        member = self._member(group, request.member_id, request.group_instance_id, request.generation_id, decision)
        must_rejoin = self._must_rejoin(group, member, decision)
        code = ErrorCode.REBALANCE_IN_PROGRESS if must_rejoin else ErrorCode.NONE
        decision.reply(token, HeartbeatResponse(error_code=code))

    def leave(
        self, group: ConsumerGroup, entries: Sequence[MemberIdentity], decision: GroupDecision
    ) -> list[ErrorCode]:
        """Remove the members that a LeaveGroup names, and return a code for each."""
        leaving: dict[str, str] = {}
        codes = []
        for entry in entries:
            try:
                member_id = self._leaving_member_id(group, entry)
                if member_id in leaving:
                    raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            except ApiError as refused:
                codes.append(refused.code)
                continue
            codes.append(ErrorCode.NONE)
            leaving[member_id] = f"member {member_id} left; its reason: {entry.reason or 'not given'}"
        if leaving:
            reason = "; ".join(leaving.values())
            self._removals.remove(group, leaving, RebalanceCause.MEMBER_LEFT, reason, decision)
        return codes

    @staticmethod
    def _leaving_member_id(group: ConsumerGroup, entry: MemberIdentity) -> str:
        member_id = entry.member_id
        if entry.group_instance_id is not None:
            holder_id = group.static_members.get(entry.group_instance_id)
            if holder_id is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            if member_id and holder_id != member_id:
                raise ApiError(ErrorCode.FENCED_INSTANCE_ID)
            member_id = holder_id
        if member_id not in group.members:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member_id
