"""One partition of `__consumer_offsets`: the groups whose name hashes to it, and their committed offsets.

Requests come in as method calls, with a token that identifies them; answers leave as `Outcome`s, perhaps for other
tokens and perhaps later. Time passes by `tick`, which is due at `next_deadline_ms`.

There are two times: `now_ms` never goes back, and sessions and deadlines go by it; `wall_ms` is milliseconds since
1970 UTC, and what is recorded carries it.
"""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from hailbus_broker.coordinators.group.classic import ClassicGroup, ClassicState, Member
from hailbus_broker.coordinators.group.consumer_shard import (
    CONSUMER_KEY_TYPES,
    CONSUMER_VALUE_TYPES,
    ConsumerGroupsMixin,
)
from hailbus_broker.coordinators.group.offsets import CommittedOffset, GroupOffsets, OffsetsMixin
from hailbus_broker.coordinators.group.rebalances import Rebalance, RebalanceCause, rebalances_tag
from hailbus_broker.coordinators.numbering import following
from hailbus_broker.coordinators.outcome import CoordinatorRecord, Outcome, decode_key, decode_value
from hailbus_broker.protocol import codec
from hailbus_broker.protocol.definitions.describe_groups_response import DescribedGroup, DescribedGroupMember
from hailbus_broker.protocol.definitions.group_metadata_key import GroupMetadataKey
from hailbus_broker.protocol.definitions.group_metadata_value import GroupMetadataValue, MemberMetadata
from hailbus_broker.protocol.definitions.heartbeat_response import HeartbeatResponse
from hailbus_broker.protocol.definitions.join_group_response import JoinGroupResponse, JoinGroupResponseMember
from hailbus_broker.protocol.definitions.leave_group_response import LeaveGroupResponse, MemberResponse
from hailbus_broker.protocol.definitions.list_groups_response import ListedGroup
from hailbus_broker.protocol.definitions.offset_commit_key import OffsetCommitKey
from hailbus_broker.protocol.definitions.offset_commit_value import OffsetCommitValue
from hailbus_broker.protocol.definitions.sync_group_response import SyncGroupResponse
from hailbus_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    from hailbus_broker.cluster.metadata.image import MetadataImage
    from hailbus_broker.coordinators.group.config import GroupConfig
    from hailbus_broker.coordinators.group.consumer import ConsumerGroup
    from hailbus_broker.protocol.definitions.heartbeat_request import HeartbeatRequest
    from hailbus_broker.protocol.definitions.join_group_request import JoinGroupRequest
    from hailbus_broker.protocol.definitions.leave_group_request import LeaveGroupRequest, MemberIdentity
    from hailbus_broker.protocol.definitions.sync_group_request import SyncGroupRequest
    from hailbus_broker.protocol.schema import Message

NO_GENERATION: Final = -1
MIN_JOIN_RETRY_MS: Final = 1_000
"""The shortest wait of a rebalance in which every member is away, whatever timeout the members have asked for."""

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
"""A member that waits in its first join may stay silent for so long: its client gives up earlier."""

GROUP_METADATA_VERSION: Final = 3
KEY_TYPES: Final[dict[int, type[Message]]] = {
    0: OffsetCommitKey,
    1: OffsetCommitKey,
    2: GroupMetadataKey,
    **CONSUMER_KEY_TYPES,
}


class GroupShard(ConsumerGroupsMixin, OffsetsMixin):
    """The coordinator of the groups of one partition.

    Args:
        config: Limits and times.
        image: Of the cluster's metadata: what topics there are.
        group_settings: Session timeout and heartbeat interval of a group, in ms, for the consumer protocol.
        chance: For member ids.
    """

    def __init__(
        self,
        config: GroupConfig,
        *,
        image: MetadataImage,
        group_settings: Callable[[str], tuple[int, int]],
        chance: random.Random,
    ) -> None:
        self.config = config
        self.image = image
        self.group_settings = group_settings
        self.consumer_groups: dict[str, ConsumerGroup] = {}
        self._chance = chance
        self.groups: dict[str, ClassicGroup] = {}
        self.offsets: dict[str, GroupOffsets] = {}
        self.pending_offsets: dict[int, dict[tuple[str, str, int], CommittedOffset]] = {}
        self.replay_count = 0
        self.rebalance_counts: Counter[RebalanceCause] = Counter()
        # (due, group, member or "" for the group's own deadlines); stale entries are found out when they come up
        self._timers: list[tuple[int, str, str]] = []
        self._wall_ms = 0  # of the decision that is being made

    # ------------------------------------------------------------------ time

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do, at the latest."""
        return self._timers[0][0] if self._timers else None

    def tick(self, now_ms: int, *, wall_ms: int) -> Iterator[Outcome]:
        """Do what time has made due: expired sessions, rebalances that waited long enough, unused member ids.

        Each thing has an outcome of its own, to be carried out before the next one is asked for.
        """
        while self._timers and self._timers[0][0] <= now_ms:
            self._wall_ms = wall_ms
            due_ms, group_id, member_id = heappop(self._timers)
            out = Outcome()
            group = self.groups.get(group_id)
            if group is None:
                consumer_group = self.consumer_groups.get(group_id)
                if consumer_group is not None:
                    self._consumer_due(consumer_group, member_id, due_ms, now_ms, out)
            elif member_id:
                self._member_due(group, member_id, due_ms, now_ms, out)
            else:
                self._group_due(group, now_ms, out)
            yield out

    def _member_due(self, group: ClassicGroup, member_id: str, due_ms: int, now_ms: int, out: Outcome) -> None:
        if member_id in group.pending:
            due = group.pending[member_id]
            if due > now_ms:
                heappush(self._timers, (due, group.group_id, member_id))
                return
            del group.pending[member_id]
            if group.state is ClassicState.PREPARING_REBALANCE:
                self._maybe_complete_join(group, now_ms, out)
            return
        member = group.members.get(member_id)
        if member is None or member.timer_ms != due_ms:
            return  # superseded by an earlier entry
        member.timer_ms = None
        waits = member.sync_token is not None or (member.join_token is not None and not member.is_new)
        if waits:
            # A member that waits for our answer is not silent.
            member.deadline_ms = max(member.deadline_ms, now_ms + member.session_timeout_ms)
        if member.deadline_ms > now_ms:
            self._arm(group, member)
            return
        self._remove_member(
            group,
            member,
            RebalanceCause.SESSION_EXPIRED,
            f"member {member_id} was silent for its session timeout",
            now_ms,
            out,
        )

    def _group_due(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        if group.has_changed_over:
            group.has_changed_over = False
            reason = f"the group changed over to the classic protocol: {group.change_reason}"
            self._maybe_rebalance(group, RebalanceCause.PROTOCOL_CHANGED, reason, now_ms, out)
            return
        if group.join_deadline_ms is not None and group.join_deadline_ms <= now_ms:
            if group.join_remaining_ms is not None and group.has_newcomers and group.join_remaining_ms > 0:
                delay = min(self.config.initial_rebalance_delay_ms, group.join_remaining_ms)
                group.join_remaining_ms -= delay
                group.has_newcomers = False
                self._schedule_join(group, now_ms + delay)
            else:
                self._complete_join(group, now_ms, out)
        if group.sync_deadline_ms is not None and group.sync_deadline_ms <= now_ms:
            group.sync_deadline_ms = None
            if group.state is ClassicState.COMPLETING_REBALANCE:
                silent = [member for member in group.members.values() if member.sync_token is None]
                for member in silent:
                    self._remove_member(
                        group,
                        member,
                        RebalanceCause.SYNC_TIMED_OUT,
                        f"member {member.member_id} did not sync in time",
                        now_ms,
                        out,
                    )

    def take_classic(self, group: ClassicGroup, reason: str, now_ms: int, out: Outcome) -> None:
        """See `ConsumerGroupsMixin`. Its members rejoin as soon as its record is replayed."""
        self.groups[group.group_id] = group
        out.undo.append(lambda _: self._forget_group(group))
        for member in group.members.values():
            self._touch(group, member, now_ms)
        assignments = {member.member_id: member.assignment for member in group.members.values()}
        out.records.append(self._group_record(group, assignments))
        group.has_changed_over = True
        group.change_reason = reason
        # Not in this tick: the record is not replayed yet.
        heappush(self._timers, (now_ms + 1, group.group_id, ""))

    def _forget_group(self, group: ClassicGroup) -> None:
        del self.groups[group.group_id]

    def _schedule_join(self, group: ClassicGroup, due_ms: int) -> None:
        group.join_deadline_ms = due_ms
        heappush(self._timers, (due_ms, group.group_id, ""))

    def _touch(self, group: ClassicGroup, member: Member, now_ms: int, *, timeout_ms: int | None = None) -> None:
        member.deadline_ms = now_ms + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
        self._arm(group, member)

    def _arm(self, group: ClassicGroup, member: Member) -> None:
        """Schedule a check of the member's deadline. A check that comes early schedules the next one."""
        if member.timer_ms is None or member.deadline_ms < member.timer_ms:
            member.timer_ms = member.deadline_ms
            heappush(self._timers, (member.deadline_ms, group.group_id, member.member_id))

    # ------------------------------------------------------------------ join

    def join(
        self,
        request: JoinGroupRequest,
        token: object,
        *,
        client_id: str,
        client_host: str,
        requires_known_member: bool,
        can_skip_assignment: bool,
        now_ms: int,
        wall_ms: int,
    ) -> Outcome:
        """A member wants to be in the next generation.

        Args:
            request: As it came.
            token: Of the request; its answer may come with a later outcome.
            client_id: From the request's header.
            client_host: Where it came from.
            requires_known_member: Whether a newcomer is first given an id and has to come back with it (KIP-394).
            can_skip_assignment: Whether the answer can tell a returning static leader to keep the assignment (KIP-814).
            now_ms: The time.
            wall_ms: Milliseconds since 1970 UTC.
        """
        self._wall_ms = wall_ms
        out = Outcome()
        try:
            self._join(request, token, client_id, client_host, requires_known_member, can_skip_assignment, now_ms, out)
        except ApiError as refused:
            out.records.clear()  # a refused request writes nothing
            member_id = getattr(refused, "member_id", None)
            if member_id is None:
                member_id = request.member_id
            out.replies.append((token, JoinGroupResponse(error_code=refused.code, member_id=member_id)))
        return out

    def _join(
        self,
        request: JoinGroupRequest,
        token: object,
        client_id: str,
        client_host: str,
        requires_known_member: bool,
        can_skip: bool,
        now_ms: int,
        out: Outcome,
    ) -> None:
        if not request.group_id:
            raise _RefusedError(ErrorCode.INVALID_GROUP_ID)
        if not self.config.min_session_timeout_ms <= request.session_timeout_ms <= self.config.max_session_timeout_ms:
            raise _RefusedError(ErrorCode.INVALID_SESSION_TIMEOUT)
        consumer_group = self.consumer_groups.get(request.group_id)
        if consumer_group is not None:
            if consumer_group.members:
                self.join_as_classic(
                    consumer_group, request, token, client_id, client_host, requires_known_member, now_ms, out
                )
                return
            out.records += self.consumer_group_removal(consumer_group)
        group = self.groups.get(request.group_id)
        if group is None:
            if request.member_id:
                raise _RefusedError(ErrorCode.UNKNOWN_MEMBER_ID)
            group = ClassicGroup(group_id=request.group_id, state_since_ms=self._wall_ms)
            self.groups[request.group_id] = group
        if not self._has_room(group, request.member_id):
            group.pending.pop(request.member_id, None)
            known = group.members.get(request.member_id)
            if known is not None:
                self._remove_member(
                    group,
                    known,
                    RebalanceCause.MEMBER_LEFT,
                    f"member {known.member_id} was too much for group.max.size={self.config.max_size}",
                    now_ms,
                    out,
                )
            raise _RefusedError(ErrorCode.GROUP_MAX_SIZE_REACHED, member_id="")
        protocols = [(entry.name, bytes(entry.metadata)) for entry in request.protocols]
        if not request.protocol_type or not protocols or not self._fits(group, request, protocols):
            raise _RefusedError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        member = Member(
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            client_id=client_id,
            client_host=client_host,
            rebalance_timeout_ms=request.rebalance_timeout_ms
            if request.rebalance_timeout_ms >= 0
            else request.session_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocols=protocols,
        )
        reason = request.reason or "not given"
        if not request.member_id:
            prefix = request.group_instance_id if request.group_instance_id is not None else client_id
            member.member_id = self._new_id(prefix)
            if request.group_instance_id in group.static_members:
                self._replace_static(group, member, token, can_skip, now_ms, out)
            elif requires_known_member and request.group_instance_id is None:
                group.pending[member.member_id] = now_ms + request.session_timeout_ms
                heappush(self._timers, (group.pending[member.member_id], group.group_id, member.member_id))
                raise _RefusedError(ErrorCode.MEMBER_ID_REQUIRED, member_id=member.member_id)
            else:
                self._add(group, member, token, request, now_ms, out)
            return
        if request.member_id in group.pending:
            del group.pending[request.member_id]
            self._add(group, member, token, request, now_ms, out)
            return
        known = self._known_member(group, request.member_id, request.group_instance_id)
        self._rejoin(group, known, member, token, reason, now_ms, out)

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
                return (member is not None and member.join_token is not None) or joined < self.config.max_size
            case ClassicState.COMPLETING_REBALANCE | ClassicState.STABLE:
                return member is not None or len(group.members) < self.config.max_size

    def _fits(self, group: ClassicGroup, request: JoinGroupRequest, protocols: list[tuple[str, bytes]]) -> bool:
        if not group.members:
            return True
        if request.protocol_type != group.protocol_type:
            return False
        replaced = request.member_id or group.static_members.get(request.group_instance_id or "", "")
        others = group.common_protocols(without=replaced)
        return (
            not (others or len(group.members) > 1)
            or bool(others & {name for name, _ in protocols})
            or (len(group.members) == 1 and replaced in group.members)
        )

    def _add(
        self,
        group: ClassicGroup,
        member: Member,
        token: object,
        request: JoinGroupRequest,
        now_ms: int,
        out: Outcome,
    ) -> None:
        if not group.members:
            group.protocol_type = request.protocol_type
        member.is_new = True
        member.join_token = token
        group.add(member)
        group.has_newcomers = True
        self._touch(group, member, now_ms, timeout_ms=NEW_MEMBER_JOIN_TIMEOUT_MS)
        reason = f"a new member {member.member_id} joined; its reason: {request.reason or 'not given'}"
        self._maybe_rebalance(group, RebalanceCause.MEMBER_JOINED, reason, now_ms, out)

    def _rejoin(
        self,
        group: ClassicGroup,
        known: Member,
        new: Member,
        token: object,
        reason: str,
        now_ms: int,
        out: Outcome,
    ) -> None:
        has_changed = known.protocols != new.protocols
        if group.state in {ClassicState.EMPTY, ClassicState.DEAD}:
            raise _RefusedError(ErrorCode.UNKNOWN_MEMBER_ID)
        is_leader = group.leader == known.member_id
        if not has_changed and (
            group.state is ClassicState.COMPLETING_REBALANCE or (group.state is ClassicState.STABLE and not is_leader)
        ):
            # It lost our answer, or repeats its request: it gets the same answer.
            self._touch(group, known, now_ms)
            out.replies.append((token, self._join_response(group, known)))
            return
        self._abandon_join(known, out)
        known.protocols = new.protocols
        known.rebalance_timeout_ms = new.rebalance_timeout_ms
        known.session_timeout_ms = new.session_timeout_ms
        known.client_id, known.client_host = new.client_id, new.client_host
        known.join_token = token
        if has_changed:
            cause = RebalanceCause.SUBSCRIPTION_CHANGED
            why = f"member {known.member_id} changed its subscription; its reason: {reason}"
        elif is_leader:
            cause = RebalanceCause.MEMBER_REJOINED
            why = f"the leader {known.member_id} joined again; its reason: {reason}"
        else:
            cause = RebalanceCause.MEMBER_REJOINED
            why = f"member {known.member_id} joined again; its reason: {reason}"
        self._maybe_rebalance(group, cause, why, now_ms, out)

    def _replace_static(
        self,
        group: ClassicGroup,
        new: Member,
        token: object,
        can_skip: bool,
        now_ms: int,
        out: Outcome,
    ) -> None:
        """A static member is back under a new member id: it takes over the place (KIP-345)."""
        assert new.group_instance_id is not None
        old = group.members[group.static_members[new.group_instance_id]]
        self._abandon_join(old, out, code=ErrorCode.FENCED_INSTANCE_ID)
        if old.sync_token is not None:
            out.replies.append((old.sync_token, SyncGroupResponse(error_code=ErrorCode.FENCED_INSTANCE_ID)))
        new.assignment = old.assignment
        was_leader = group.leader == old.member_id
        selected_before = group.protocol
        before = (group.members, dict(group.static_members), group.leader)

        def undo(_: Outcome) -> None:
            group.members, group.static_members, group.leader = before

        out.undo.append(undo)
        group.members = {
            (new.member_id if key == old.member_id else key): (new if key == old.member_id else value)
            for key, value in group.members.items()
        }
        group.static_members[new.group_instance_id] = new.member_id
        if was_leader:
            group.leader = new.member_id
        self._touch(group, new, now_ms)
        if group.state is ClassicState.STABLE:
            # As in Apache Kafka its subscription may differ: consumers write their last generation into it (KIP-792).
            if group.select_protocol() == selected_before:
                # Nobody else has to know, but a restart must find the new id.
                out.records.append(
                    self._group_record(
                        group, {member.member_id: member.assignment for member in group.members.values()}
                    )
                )
                response = self._join_response(group, new)
                if was_leader and can_skip:
                    response.skip_assignment = True
                elif was_leader:
                    # An older client would assign again, so the answer names another leader.
                    response.leader = old.member_id
                    response.members = []
                out.replies.append((token, response))
                return
            new.join_token = token
            self._maybe_rebalance(
                group,
                RebalanceCause.STATIC_MEMBER_RETURNED,
                f"static member {new.group_instance_id} came back with other protocols",
                now_ms,
                out,
            )
            return
        new.join_token = token
        if group.state is ClassicState.EMPTY:
            group.move_to(ClassicState.PREPARING_REBALANCE, self._wall_ms)
        self._maybe_rebalance(
            group,
            RebalanceCause.STATIC_MEMBER_RETURNED,
            f"static member {new.group_instance_id} came back during a rebalance",
            now_ms,
            out,
        )

    @staticmethod
    def _abandon_join(member: Member, out: Outcome, *, code: ErrorCode = ErrorCode.UNKNOWN_MEMBER_ID) -> None:
        """The member asks again while it waits: its earlier request gets an end, too."""
        if member.join_token is not None:
            out.replies.append((member.join_token, JoinGroupResponse(error_code=code, member_id=member.member_id)))
            member.join_token = None

    # ------------------------------------------------------------------ rebalance

    def _maybe_rebalance(
        self, group: ClassicGroup, cause: RebalanceCause, reason: str, now_ms: int, out: Outcome
    ) -> None:
        if group.state is ClassicState.PREPARING_REBALANCE:
            self._maybe_complete_join(group, now_ms, out)
            return
        if group.state is ClassicState.DEAD:
            return
        if group.state is ClassicState.COMPLETING_REBALANCE:
            for member in group.members.values():
                if member.sync_token is not None:
                    out.replies.append(
                        (member.sync_token, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
                    )
                    member.sync_token = None
                    self._touch(group, member, now_ms)
        was_empty = group.state is ClassicState.EMPTY
        group.move_to(ClassicState.PREPARING_REBALANCE, self._wall_ms)
        group.sync_deadline_ms = None
        group.rebalances.note(
            Rebalance(
                at_ms=self._wall_ms, generation=group.generation, members=len(group.members), cause=cause, reason=reason
            ),
            group_id=group.group_id,
            counts=self.rebalance_counts,
            out=out,
        )
        delay = self.config.initial_rebalance_delay_ms
        if was_empty and delay > 0:
            group.join_remaining_ms = max(group.rebalance_timeout_ms() - delay, 0)
            group.has_newcomers = False
            self._schedule_join(group, now_ms + delay)
            return
        group.join_remaining_ms = None
        self._schedule_join(group, now_ms + group.rebalance_timeout_ms())
        self._maybe_complete_join(group, now_ms, out)

    def _maybe_complete_join(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        if group.join_remaining_ms is not None or group.pending:
            return
        if all(member.join_token is not None for member in group.members.values()):
            self._complete_join(group, now_ms, out)

    def _complete_join(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        group.join_deadline_ms = None
        group.join_remaining_ms = None
        group.has_newcomers = False
        absent = [member for member in group.members.values() if member.join_token is None]
        for member in absent:
            if member.group_instance_id is None:
                group.remove(member)
                out.facts.append(
                    (
                        "member_removed",
                        {"group": group.group_id, "member": member.member_id, "reason": "did not rejoin in time"},
                    )
                )
        joined = [member for member in group.members.values() if member.join_token is not None]
        if group.members and not joined:
            # Only static members that are away: they keep their places until their sessions end.
            self._schedule_join(group, now_ms + max(group.rebalance_timeout_ms(), MIN_JOIN_RETRY_MS))
            return
        group.generation = following(group.generation)
        if not group.members:
            group.protocol = None
            group.leader = None
            group.move_to(ClassicState.EMPTY, self._wall_ms)
            out.records.append(self._group_record(group, {}))
            out.facts.append(("group_empty", {"group": group.group_id, "generation": group.generation}))
            return
        if group.leader is None or group.members[group.leader].join_token is None:
            group.leader = joined[0].member_id
        group.protocol = group.select_protocol()
        group.move_to(ClassicState.COMPLETING_REBALANCE, self._wall_ms)
        for member in joined:
            response = self._join_response(group, member)
            out.replies.append((member.join_token, response))
            member.join_token = None
            member.is_new = False
            self._touch(group, member, now_ms)
        group.sync_deadline_ms = now_ms + group.rebalance_timeout_ms()
        heappush(self._timers, (group.sync_deadline_ms, group.group_id, ""))

    def _join_response(self, group: ClassicGroup, member: Member) -> JoinGroupResponse:
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

    # ------------------------------------------------------------------ sync

    def sync(self, request: SyncGroupRequest, token: object, *, now_ms: int, wall_ms: int) -> Outcome:
        """A member asks for its assignment; the leader brings those of all."""
        self._wall_ms = wall_ms
        out = Outcome()
        try:
            self._sync(request, token, now_ms, out)
        except ApiError as refused:
            out.replies.append((token, SyncGroupResponse(error_code=refused.code)))
        return out

    def _sync(self, request: SyncGroupRequest, token: object, now_ms: int, out: Outcome) -> None:
        changed_over = self.consumer_groups.get(request.group_id)
        if changed_over is not None:
            found = self.classic_member(
                changed_over, request.member_id, request.group_instance_id, request.generation_id, now_ms
            )
            out.replies.append((token, self.sync_as_classic(changed_over, found, now_ms)))
            return
        group = self._known_group(request.group_id)
        member = self._known_member(group, request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise _RefusedError(ErrorCode.ILLEGAL_GENERATION)
        if request.protocol_type is not None and request.protocol_type != group.protocol_type:
            raise _RefusedError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if request.protocol_name is not None and request.protocol_name != group.protocol:
            raise _RefusedError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        match group.state:
            case ClassicState.EMPTY | ClassicState.DEAD:
                raise _RefusedError(ErrorCode.UNKNOWN_MEMBER_ID)
            case ClassicState.PREPARING_REBALANCE:
                raise _RefusedError(ErrorCode.REBALANCE_IN_PROGRESS)
            case ClassicState.STABLE:
                self._touch(group, member, now_ms)
                out.replies.append((token, self._sync_response(group, member.assignment)))
            case ClassicState.COMPLETING_REBALANCE:
                if member.sync_token is not None:
                    out.replies.append(
                        (member.sync_token, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
                    )
                member.sync_token = token
                self._touch(group, member, now_ms)
                if request.member_id != group.leader:
                    return
                given = {entry.member_id: bytes(entry.assignment) for entry in request.assignments}
                assignments = {member_id: given.get(member_id, b"") for member_id in group.members}
                out.records.append(self._group_record(group, assignments))
                out.undo.append(lambda follow_up: self._assignments_refused(group, now_ms, follow_up))
                for other in group.members.values():
                    if other.sync_token is not None:
                        out.replies.append((other.sync_token, self._sync_response(group, assignments[other.member_id])))
                        other.sync_token = None
                        self._touch(group, other, now_ms)
                out.facts.append(
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

    def _assignments_refused(self, group: ClassicGroup, now_ms: int, out: Outcome) -> None:
        """Start another rebalance because the leader's assignments were refused, as Apache Kafka does."""
        reason = "the assignments of the leader could not be recorded"
        self._maybe_rebalance(group, RebalanceCause.MEMBER_REJOINED, reason, now_ms, out)

    @staticmethod
    def _sync_response(group: ClassicGroup, assignment: bytes) -> SyncGroupResponse:
        return SyncGroupResponse(protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=assignment)

    # ------------------------------------------------------------------ heartbeat, leave

    def heartbeat(self, request: HeartbeatRequest, token: object, *, now_ms: int) -> Outcome:
        """A member says that it lives, and hears whether it has to rejoin."""
        out = Outcome()
        code = ErrorCode.NONE
        try:
            changed_over = self.consumer_groups.get(request.group_id)
            if changed_over is not None:
                found = self.classic_member(
                    changed_over, request.member_id, request.group_instance_id, request.generation_id, now_ms
                )
                if self.tell_to_rejoin(changed_over, found, now_ms):
                    raise _RefusedError(ErrorCode.REBALANCE_IN_PROGRESS)
                out.replies.append((token, HeartbeatResponse()))
                return out
            group = self._known_group(request.group_id)
            member = self._known_member(group, request.member_id, request.group_instance_id)
            if group.state in {ClassicState.EMPTY, ClassicState.DEAD}:
                raise _RefusedError(ErrorCode.UNKNOWN_MEMBER_ID)
            if request.generation_id != group.generation:
                raise _RefusedError(ErrorCode.ILLEGAL_GENERATION)
            self._touch(group, member, now_ms)
            if group.state is ClassicState.PREPARING_REBALANCE:
                code = ErrorCode.REBALANCE_IN_PROGRESS
        except ApiError as refused:
            code = refused.code
        out.replies.append((token, HeartbeatResponse(error_code=code)))
        return out

    def leave(
        self, request: LeaveGroupRequest, members: list[MemberIdentity], token: object, *, now_ms: int, wall_ms: int
    ) -> Outcome:
        """Members go: in order, each with a result of its own.

        Args:
            request: As it came.
            members: Those of the request; before v3 there is one, and its result is that of the whole.
            token: Of the request.
            now_ms: The time.
            wall_ms: Milliseconds since 1970 UTC.
        """
        self._wall_ms = wall_ms
        out = Outcome()
        group = self.groups.get(request.group_id)
        changed_over = self.consumer_groups.get(request.group_id)
        if changed_over is None and (group is None or group.state is ClassicState.DEAD):
            results = [
                MemberResponse(
                    member_id=entry.member_id,
                    group_instance_id=entry.group_instance_id,
                    error_code=ErrorCode.UNKNOWN_MEMBER_ID,
                )
                for entry in members
            ]
            out.replies.append((token, LeaveGroupResponse(members=results)))
            return out
        results = []
        for entry in members:
            code = ErrorCode.NONE
            try:
                if changed_over is not None:
                    self.leave_as_classic(changed_over, entry, now_ms, out)
                else:
                    assert group is not None
                    self._leave(group, entry, now_ms, out)
            except ApiError as refused:
                code = refused.code
            results.append(
                MemberResponse(member_id=entry.member_id, group_instance_id=entry.group_instance_id, error_code=code)
            )
        out.replies.append((token, LeaveGroupResponse(members=results)))
        return out

    def _leave(self, group: ClassicGroup, entry: MemberIdentity, now_ms: int, out: Outcome) -> None:
        if not entry.member_id and entry.group_instance_id is not None:
            member_id = group.static_members.get(entry.group_instance_id)
            if member_id is None:
                raise _RefusedError(ErrorCode.UNKNOWN_MEMBER_ID)
        else:
            member_id = entry.member_id
        if member_id in group.pending:
            del group.pending[member_id]
            if group.state is ClassicState.PREPARING_REBALANCE:
                self._maybe_complete_join(group, now_ms, out)
            return
        member = self._known_member(group, member_id, entry.group_instance_id)
        reason = entry.reason or "not given"
        why = f"member {member_id} left; its reason: {reason}"
        self._remove_member(group, member, RebalanceCause.MEMBER_LEFT, why, now_ms, out)

    def _remove_member(
        self, group: ClassicGroup, member: Member, cause: RebalanceCause, reason: str, now_ms: int, out: Outcome
    ) -> None:
        self._abandon_join(member, out)
        if member.sync_token is not None:
            out.replies.append((member.sync_token, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)))
        group.remove(member)
        out.facts.append(("member_removed", {"group": group.group_id, "member": member.member_id, "reason": reason}))
        if group.state in {ClassicState.STABLE, ClassicState.COMPLETING_REBALANCE}:
            self._maybe_rebalance(group, cause, reason, now_ms, out)
        elif group.state is ClassicState.PREPARING_REBALANCE:
            self._maybe_complete_join(group, now_ms, out)

    # ------------------------------------------------------------------ looking

    def describe(self, group_id: str) -> DescribedGroup | None:
        """A classic group as DescribeGroups shows it; None if there is none."""
        group = self.groups.get(group_id)
        if group is None or group.state is ClassicState.DEAD:
            if group_id in self.offsets and group_id not in self.consumer_groups:
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
            for group in self.groups.values()
            if group.state is not ClassicState.DEAD
        }
        for consumer_group in self.consumer_groups.values():
            found[consumer_group.group_id] = ListedGroup(
                group_id=consumer_group.group_id,
                protocol_type="consumer",
                group_state=consumer_group.state(),
                group_type="Consumer",
            )
        for group_id in self.offsets:
            if group_id not in found:
                found[group_id] = ListedGroup(group_id=group_id, group_state=ClassicState.EMPTY, group_type="Classic")
        return [found[group_id] for group_id in sorted(found)]

    # ------------------------------------------------------------------ replay

    def replay(
        self,
        key_data: bytes | memoryview,
        value_data: bytes | memoryview | None,
        *,
        now_ms: int,
        producer_id: int = -1,
    ) -> None:
        """Take in one record of the partition: the only place where durable state changes.

        Args:
            key_data: The record's key.
            value_data: Its value; None is a tombstone.
            now_ms: The time.
            producer_id: Of the transaction that it belongs to; it counts when that commits.

        Raises:
            ProtocolError: It says nothing that a group coordinator writes.
        """
        key = decode_key(key_data, KEY_TYPES)
        match key:
            case OffsetCommitKey():
                value = None if value_data is None else decode_value(value_data, OffsetCommitValue)
                assert value is None or isinstance(value, OffsetCommitValue)
                self.replay_offset(key, value, producer_id)
            case GroupMetadataKey():
                value = None if value_data is None else decode_value(value_data, GroupMetadataValue)
                assert value is None or isinstance(value, GroupMetadataValue)
                self._replay_group(key.group, value, now_ms)
            case _:
                cls = CONSUMER_VALUE_TYPES[key.__api_key__]
                self.replay_consumer(key, None if value_data is None else decode_value(value_data, cls), now_ms)

    def _replay_group(self, group_id: str, value: GroupMetadataValue | None, now_ms: int) -> None:
        if value is None:
            group = self.groups.pop(group_id, None)
            if group is not None and group.state is ClassicState.EMPTY:
                group.move_to(ClassicState.DEAD, now_ms)
            return
        group = self.groups.get(group_id)
        if group is None:
            group = ClassicGroup(group_id=group_id)
            self.groups[group_id] = group
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
                    rebalance_timeout_ms=entry.rebalance_timeout
                    if entry.rebalance_timeout >= 0
                    else entry.session_timeout,
                    session_timeout_ms=entry.session_timeout,
                    protocols=[(value.protocol or "", bytes(entry.subscription))],
                )
                group.add(member)
                self._touch(group, member, now_ms)
            member.assignment = bytes(entry.assignment)
        group.static_members = {
            member.group_instance_id: member_id
            for member_id, member in group.members.items()
            if member.group_instance_id is not None
        }
        # How long a group has been empty must not restart with each start of the broker.
        group.recorded(value.current_state_timestamp if value.current_state_timestamp >= 0 else now_ms)
        group.sync_deadline_ms = None

    def _group_record(self, group: ClassicGroup, assignments: dict[str, bytes]) -> CoordinatorRecord:
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

    # ------------------------------------------------------------------ common

    def _known_group(self, group_id: str) -> ClassicGroup:
        if not group_id:
            raise _RefusedError(ErrorCode.INVALID_GROUP_ID)
        group = self.groups.get(group_id)
        if group is None:
            raise _RefusedError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    @staticmethod
    def _known_member(group: ClassicGroup, member_id: str, group_instance_id: str | None) -> Member:
        """The member that a request names.

        Raises:
            ApiError: Nobody has that id, or another process has taken the static member's place.
        """
        if group_instance_id is not None:
            current = group.static_members.get(group_instance_id)
            if current is None:
                raise _RefusedError(ErrorCode.UNKNOWN_MEMBER_ID)
            if current != member_id:
                raise _RefusedError(ErrorCode.FENCED_INSTANCE_ID)
        member = group.members.get(member_id)
        if member is None:
            raise _RefusedError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def _new_id(self, prefix: str) -> str:
        """Create a member id.

        Raises:
            ApiError: The id would be longer than a string of the protocol may be.
        """
        raw = self._chance.randbytes(16).hex()
        member_id = f"{prefix}-{raw[:8]}-{raw[8:12]}-4{raw[13:16]}-a{raw[17:20]}-{raw[20:]}"
        if len(member_id.encode()) > codec.MAX_STRING_BYTES:
            raise _RefusedError(ErrorCode.UNKNOWN_SERVER_ERROR, member_id="")  # as from Apache Kafka
        return member_id


class _RefusedError(ApiError):
    """A refusal that knows which member id its answer must carry."""

    def __init__(self, code: ErrorCode, *, member_id: str | None = None) -> None:
        super().__init__(code)
        self.member_id = member_id
