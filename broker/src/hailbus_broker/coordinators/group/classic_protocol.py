"""Requests of members of groups of the classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from hailbus_broker.coordinators.group.classic import WITHOUT_MEMBERS, ClassicGroup, ClassicState, Member, Protocols
from hailbus_broker.coordinators.group.classic_rebalance import ClassicRebalances, abandon_join, join_response
from hailbus_broker.coordinators.group.classic_records import current_record, group_record
from hailbus_broker.coordinators.group.decision import GroupDecision
from hailbus_broker.coordinators.group.rebalances import RebalanceCause
from hailbus_broker.protocol.definitions.heartbeat_response import HeartbeatResponse
from hailbus_broker.protocol.definitions.join_group_response import JoinGroupResponse
from hailbus_broker.protocol.definitions.sync_group_response import SyncGroupResponse
from hailbus_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hailbus_broker.coordinators.group.state import GroupState
    from hailbus_broker.coordinators.outcome import Token
    from hailbus_broker.protocol.definitions.heartbeat_request import HeartbeatRequest
    from hailbus_broker.protocol.definitions.join_group_request import JoinGroupRequest
    from hailbus_broker.protocol.definitions.leave_group_request import MemberIdentity
    from hailbus_broker.protocol.definitions.sync_group_request import SyncGroupRequest

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
"""A member that waits in its first join may stay silent for so long: its client gives up earlier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A JoinGroup request and what the broker knows of its client.

    Attributes:
        message: The request.
        token: Answers the request; perhaps with a later outcome.
        client_id: From the request's header.
        client_host: Where it came from.
        requires_known_member: Whether a newcomer is first given an id and has to come back with it (KIP-394).
        can_skip_assignment: Whether the answer can tell a returning static leader to keep the assignment (KIP-814).
    """

    message: JoinGroupRequest
    token: Token[JoinGroupResponse]
    client_id: str
    client_host: str
    requires_known_member: bool
    can_skip_assignment: bool


class ClassicProtocol:
    """Decides on requests that concern groups of the classic protocol."""

    def __init__(self, state: GroupState, rebalances: ClassicRebalances) -> None:
        self._state: Final = state
        self._config: Final = state.config
        self._rebalances: Final = rebalances

    # ------------------------------------------------------------------ join

    def join(self, join: Join, decision: GroupDecision) -> None:
        """Let a member into the next generation.

        Raises:
            ApiError: It cannot join; the decision is to be dropped.
        """
        request = join.message
        known_group = self._state.groups.get(request.group_id)
        if known_group is None:
            if request.member_id:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            group = ClassicGroup(group_id=request.group_id, state_since_ms=decision.wall_ms)
            decision.add_classic(group)
        else:
            group = decision.copy_of(known_group)
        if not self._has_room(group, request.member_id):
            self._refuse_for_size(group, join, decision)
            return
        protocols = Protocols((entry.name, bytes(entry.metadata)) for entry in request.protocols)
        if not request.protocol_type or not protocols.entries or not _fits(group, request, protocols):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        has_timeout = request.rebalance_timeout_ms >= 0
        member = Member(
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            client_id=join.client_id,
            client_host=join.client_host,
            rebalance_timeout_ms=request.rebalance_timeout_ms if has_timeout else request.session_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocols=protocols,
        )
        if request.member_id:
            if request.member_id in group.pending:
                del group.pending[request.member_id]
                self._add(group, member, join, decision)
            else:
                known = known_member(group, request.member_id, request.group_instance_id)
                self._rejoin(group, known, member, join, decision)
            return
        prefix = join.client_id if request.group_instance_id is None else request.group_instance_id
        member = member._replace(member_id=self._state.new_member_id(prefix))
        if request.group_instance_id in group.static_members:
            self._replace_static(group, member, join, decision)
        elif join.requires_known_member and request.group_instance_id is None:
            group.pending[member.member_id] = decision.now_ms + request.session_timeout_ms
            decision.check_at((group.group_id, member.member_id), group.pending[member.member_id])
            response = JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member.member_id)
            decision.reply(join.token, response)
        else:
            self._add(group, member, join, decision)

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        """Whether a member may join, as Apache Kafka decides it.

        During a rebalance only members that have joined it count, so that a group that is too large loses those that
        join last. Otherwise all members count. Ids that were assigned and not used yet do not count.
        """
        member = group.members.get(member_id)
        match group.state:
            case ClassicState.EMPTY | ClassicState.DEAD:
                return True
            case ClassicState.PREPARING_REBALANCE:
                joined = sum(other.join_token is not None for other in group.members.values())
                return (member is not None and member.join_token is not None) or joined < self._config.max_size
            case ClassicState.COMPLETING_REBALANCE | ClassicState.STABLE:
                return member is not None or len(group.members) < self._config.max_size

    def _refuse_for_size(self, group: ClassicGroup, join: Join, decision: GroupDecision) -> None:
        member_id = join.message.member_id
        group.pending.pop(member_id, None)
        known = group.members.get(member_id)
        if known is not None:
            reason = f"member {member_id} was too much for group.max.size={self._config.max_size}"
            self._rebalances.remove_member(group, known, RebalanceCause.MEMBER_LEFT, reason, decision)
        response = JoinGroupResponse(error_code=ErrorCode.GROUP_MAX_SIZE_REACHED, member_id="")
        decision.reply(join.token, response)

    def _add(self, group: ClassicGroup, member: Member, join: Join, decision: GroupDecision) -> None:
        if not group.members:
            group.protocol_type = join.message.protocol_type
        group.add(member._replace(is_new=True, join_token=join.token))
        group.has_newcomers = True
        decision.touch(group, member, timeout_ms=NEW_MEMBER_JOIN_TIMEOUT_MS)
        reason = f"a new member {member.member_id} joined; its reason: {join.message.reason or 'not given'}"
        self._rebalances.maybe_rebalance(group, RebalanceCause.MEMBER_JOINED, reason, decision)

    def _rejoin(self, group: ClassicGroup, known: Member, new: Member, join: Join, decision: GroupDecision) -> None:
        if group.state in WITHOUT_MEMBERS:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        has_changed = known.protocols != new.protocols
        is_leader = group.leader == known.member_id
        if not has_changed and (
            group.state is ClassicState.COMPLETING_REBALANCE or (group.state is ClassicState.STABLE and not is_leader)
        ):
            # It lost our answer, or repeats its request: it gets the same answer.
            decision.touch(group, known)
            decision.reply(join.token, join_response(group, known))
            return
        known = abandon_join(group, known, decision)
        group.put(
            known._replace(
                protocols=new.protocols,
                rebalance_timeout_ms=new.rebalance_timeout_ms,
                session_timeout_ms=new.session_timeout_ms,
                client_id=new.client_id,
                client_host=new.client_host,
                join_token=join.token,
            )
        )
        reason = join.message.reason or "not given"
        if has_changed:
            cause = RebalanceCause.SUBSCRIPTION_CHANGED
            why = f"member {known.member_id} changed its subscription; its reason: {reason}"
        else:
            cause = RebalanceCause.MEMBER_REJOINED
            role = "the leader" if is_leader else "member"
            why = f"{role} {known.member_id} joined again; its reason: {reason}"
        self._rebalances.maybe_rebalance(group, cause, why, decision)

    def _replace_static(self, group: ClassicGroup, new: Member, join: Join, decision: GroupDecision) -> None:
        """Give the place of a static member to the same member under a new id (KIP-345)."""
        assert new.group_instance_id is not None
        token, instance_id = join.token, new.group_instance_id
        old = group.members[group.static_members[instance_id]]
        old = abandon_join(group, old, decision, code=ErrorCode.FENCED_INSTANCE_ID)
        if old.sync_token is not None:
            decision.reply(old.sync_token, SyncGroupResponse(error_code=ErrorCode.FENCED_INSTANCE_ID))
        new = new._replace(assignment=old.assignment)
        was_leader = group.leader == old.member_id
        selected_before = group.protocol
        group.members = {
            (new.member_id if key == old.member_id else key): (new if key == old.member_id else value)
            for key, value in group.members.items()
        }
        group.static_members[instance_id] = new.member_id
        if was_leader:
            group.leader = new.member_id
        decision.touch(group, new)
        if group.state is not ClassicState.STABLE:
            group.put(new._replace(join_token=token))
            if group.state is ClassicState.EMPTY:
                group.move_to(ClassicState.PREPARING_REBALANCE, decision.wall_ms)
            reason = f"static member {instance_id} came back during a rebalance"
            self._rebalances.maybe_rebalance(group, RebalanceCause.STATIC_MEMBER_RETURNED, reason, decision)
            return
        # As in Apache Kafka its subscription may differ: consumers write their last generation into it (KIP-792).
        if group.select_protocol() != selected_before:
            group.put(new._replace(join_token=token))
            reason = f"static member {instance_id} came back with other protocols"
            self._rebalances.maybe_rebalance(group, RebalanceCause.STATIC_MEMBER_RETURNED, reason, decision)
            return
        # The other members need not know, but a restart must find the new id.
        decision.records.append(current_record(group))
        response = join_response(group, new)
        if was_leader and join.can_skip_assignment:
            response.skip_assignment = True
        elif was_leader:
            # An older client would assign again, so the answer names another leader.
            response.leader = old.member_id
            response.members = []
        decision.reply(token, response)

    # ------------------------------------------------------------------ sync

    def sync(self, request: SyncGroupRequest, token: Token[SyncGroupResponse], decision: GroupDecision) -> None:
        """Give a member its assignment, once the leader has sent those of all.

        Raises:
            ApiError: It cannot have one now.
        """
        group = self._known_group(request.group_id)
        member = known_member(group, request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        if request.protocol_type is not None and request.protocol_type != group.protocol_type:
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if request.protocol_name is not None and request.protocol_name != group.protocol:
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        match group.state:
            case ClassicState.EMPTY | ClassicState.DEAD:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            case ClassicState.PREPARING_REBALANCE:
                raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
            case ClassicState.STABLE:
                decision.touch(group, member)
                decision.reply(token, _sync_response(group, member.assignment))
            case ClassicState.COMPLETING_REBALANCE:
                if member.sync_token is not None:
                    response = SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
                    decision.reply(member.sync_token, response)
                changed = decision.copy_of(group)
                decision.touch(changed, changed.put(member._replace(sync_token=token)))
                if request.member_id == group.leader:
                    self._assign(changed, request, decision)

    def _assign(self, group: ClassicGroup, request: SyncGroupRequest, decision: GroupDecision) -> None:
        given = {entry.member_id: bytes(entry.assignment) for entry in request.assignments}
        assignments = {member_id: given.get(member_id, b"") for member_id in group.members}
        decision.records.append(group_record(group, assignments))
        decision.on_refused = partial(self._assignments_refused, group.group_id, decision.now_ms, decision.wall_ms)
        for member in list(group.members.values()):
            if member.sync_token is not None:
                response = _sync_response(group, assignments[member.member_id])
                decision.reply(member.sync_token, response)
                decision.touch(group, group.put(member._replace(sync_token=None)))
        decision.log_events.append(
            (
                "rebalance_completed",
                {
                    "group": group.group_id,
                    "generation": group.generation,
                    "members": len(group.members),
                    "protocol": group.protocol,
                },
            )
        )

    def _assignments_refused(self, group_id: str, now_ms: int, wall_ms: int, code: ErrorCode) -> GroupDecision:
        """Refuse the members that wait for the leader's assignments, and rebalance, as Apache Kafka does."""
        decision = GroupDecision(self._state, now_ms=now_ms, wall_ms=wall_ms)
        reason = "the assignments of the leader could not be recorded"
        group = decision.copy_of(self._state.groups[group_id])
        for member in list(group.members.values()):
            if member.sync_token is not None:
                decision.reply(member.sync_token, SyncGroupResponse(error_code=code))
                decision.touch(group, group.put(member._replace(sync_token=None)))
        self._rebalances.maybe_rebalance(group, RebalanceCause.MEMBER_REJOINED, reason, decision)
        return decision

    # ------------------------------------------------------------------ heartbeat, leave

    def heartbeat(self, request: HeartbeatRequest, token: Token[HeartbeatResponse], decision: GroupDecision) -> None:
        """Extend a member's session, and tell it whether it has to join again.

        Raises:
            ApiError: It is not a member of the present generation.
        """
        group = self._known_group(request.group_id)
        member = known_member(group, request.member_id, request.group_instance_id)
        if group.state in WITHOUT_MEMBERS:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        if request.generation_id != group.generation:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        decision.touch(group, member)
        is_rebalancing = group.state is ClassicState.PREPARING_REBALANCE
        code = ErrorCode.REBALANCE_IN_PROGRESS if is_rebalancing else ErrorCode.NONE
        decision.reply(token, HeartbeatResponse(error_code=code))

    def leave(self, group: ClassicGroup, entries: Sequence[MemberIdentity], decision: GroupDecision) -> list[ErrorCode]:
        """Remove members at their own request, or at an administrator's; the others rebalance once.

        Args:
            group: The copy that the decision changes.
            entries: Name the members.
            decision: What the request leads to.

        Returns:
            A result for each.
        """
        codes: list[ErrorCode] = []
        leaving: dict[str, tuple[Member, str]] = {}
        has_pending = False
        for entry in entries:
            try:
                member_id = _id_of(group, entry)
                if member_id in group.pending:
                    del group.pending[member_id]
                    has_pending = True
                else:
                    member = known_member(group, member_id, entry.group_instance_id)
                    if member_id in leaving:
                        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
                    reason = f"member {member_id} left; its reason: {entry.reason or 'not given'}"
                    leaving[member_id] = member, reason
            except ApiError as refused:
                codes.append(refused.code)
            else:
                codes.append(ErrorCode.NONE)
        if leaving:
            self._rebalances.remove_members(group, list(leaving.values()), RebalanceCause.MEMBER_LEFT, decision)
        elif has_pending and group.state is ClassicState.PREPARING_REBALANCE:
            self._rebalances.maybe_complete_join(group, decision)
        return codes

    # ------------------------------------------------------------------ migration

    def adopt(self, group: ClassicGroup, reason: str, decision: GroupDecision) -> None:
        """Take over a group that has changed over from the consumer protocol.

        Its members have to join again as soon as its record is replayed.
        """
        group.has_changed_over = True
        group.change_reason = reason
        decision.add_classic(group)
        decision.records.append(current_record(group))
        # Not at once: the record is not replayed yet.
        decision.check_group_at(group, decision.now_ms + 1)

    def _known_group(self, group_id: str) -> ClassicGroup:
        if not group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        group = self._state.groups.get(group_id)
        if group is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group


def _id_of(group: ClassicGroup, entry: MemberIdentity) -> str:
    """Return the id of the member that a LeaveGroup names.

    Raises:
        ApiError: There is no static member of that name.
    """
    if entry.member_id or entry.group_instance_id is None:
        return entry.member_id
    member_id = group.static_members.get(entry.group_instance_id)
    if member_id is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
    return member_id


def known_member(group: ClassicGroup, member_id: str, group_instance_id: str | None) -> Member:
    """Return the member that a request names.

    Raises:
        ApiError: No member has that id, or another process has taken the static member's place.
    """
    if group_instance_id is not None:
        current = group.static_members.get(group_instance_id)
        if current is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        if current != member_id:
            raise ApiError(ErrorCode.FENCED_INSTANCE_ID)
    member = group.members.get(member_id)
    if member is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
    return member


def _fits(group: ClassicGroup, request: JoinGroupRequest, protocols: Protocols) -> bool:
    """Whether the group would still have a protocol that all its members know."""
    if not group.members:
        return True
    if request.protocol_type != group.protocol_type:
        return False
    replaced = request.member_id or group.static_members.get(request.group_instance_id or "", "")
    others = [member.protocols.names for member_id, member in group.members.items() if member_id != replaced]
    return bool(protocols.names.intersection(*others))


def _sync_response(group: ClassicGroup, assignment: bytes) -> SyncGroupResponse:
    return SyncGroupResponse(protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=assignment)
