"""One partition of `__consumer_offsets`: the groups whose name hashes to it, and their committed offsets.

Requests come in as method calls, with a token that identifies them; answers leave as outcomes, perhaps for other
tokens and perhaps later. Time passes by `tick`, which is due at `next_deadline_ms`.

There are two times: `now_ms` never goes back, and sessions and deadlines go by it; `wall_ms` is milliseconds since
1970 UTC, and what is recorded carries it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.coordinators.group.classic import ClassicState
from hailbus_broker.coordinators.group.classic_members import ClassicMembers
from hailbus_broker.coordinators.group.classic_protocol import ClassicProtocol, Join
from hailbus_broker.coordinators.group.classic_rebalance import ClassicRebalances
from hailbus_broker.coordinators.group.classic_records import replay_group
from hailbus_broker.coordinators.group.consumer_protocol import ConsumerProtocol
from hailbus_broker.coordinators.group.consumer_records import (
    CONSUMER_KEY_TYPES,
    CONSUMER_VALUE_TYPES,
    group_removal_records,
    replay_consumer,
)
from hailbus_broker.coordinators.group.consumer_removal import ConsumerRemovals
from hailbus_broker.coordinators.group.decision import GroupDecision
from hailbus_broker.coordinators.group.group_expiry import GroupExpiry
from hailbus_broker.coordinators.group.offsets import OFFSET_KEY_TYPES, CommittedOffsets
from hailbus_broker.coordinators.group.reconciliation import Reconciliation
from hailbus_broker.coordinators.group.state import GroupState
from hailbus_broker.coordinators.group.views import GroupViews
from hailbus_broker.coordinators.outcome import decode_key, decode_value
from hailbus_broker.protocol.definitions.consumer_group_heartbeat_response import ConsumerGroupHeartbeatResponse
from hailbus_broker.protocol.definitions.group_metadata_key import GroupMetadataKey
from hailbus_broker.protocol.definitions.group_metadata_value import GroupMetadataValue
from hailbus_broker.protocol.definitions.heartbeat_response import HeartbeatResponse
from hailbus_broker.protocol.definitions.join_group_response import JoinGroupResponse
from hailbus_broker.protocol.definitions.leave_group_response import LeaveGroupResponse, MemberResponse
from hailbus_broker.protocol.definitions.offset_commit_key import OffsetCommitKey
from hailbus_broker.protocol.definitions.offset_commit_value import OffsetCommitValue
from hailbus_broker.protocol.definitions.sync_group_response import SyncGroupResponse
from hailbus_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    import random
    from collections import Counter
    from collections.abc import Callable, Iterator, Sequence

    from hailbus_broker.cluster.metadata.image import MetadataImage
    from hailbus_broker.coordinators.group.classic import ClassicGroup
    from hailbus_broker.coordinators.group.config import GroupConfig
    from hailbus_broker.coordinators.group.consumer import ConsumerGroup
    from hailbus_broker.coordinators.group.offsets import GroupOffsets
    from hailbus_broker.coordinators.group.rebalances import RebalanceCause
    from hailbus_broker.coordinators.group.state import MemberKey
    from hailbus_broker.coordinators.outcome import Token
    from hailbus_broker.protocol.definitions.consumer_group_heartbeat_request import ConsumerGroupHeartbeatRequest
    from hailbus_broker.protocol.definitions.heartbeat_request import HeartbeatRequest
    from hailbus_broker.protocol.definitions.join_group_request import JoinGroupRequest
    from hailbus_broker.protocol.definitions.leave_group_request import LeaveGroupRequest, MemberIdentity
    from hailbus_broker.protocol.definitions.sync_group_request import SyncGroupRequest
    from hailbus_broker.protocol.schema import Message

RETRY_MS: Final = 1_000
"""After which time a timer's decision is made again when its records were refused."""

KEY_TYPES: Final[dict[int, type[Message]]] = {
    **OFFSET_KEY_TYPES,
    2: GroupMetadataKey,
    **CONSUMER_KEY_TYPES,
}
VALUE_TYPES: Final[dict[int, type[Message]]] = {
    OffsetCommitKey.__api_key__: OffsetCommitValue,
    GroupMetadataKey.__api_key__: GroupMetadataValue,
    **CONSUMER_VALUE_TYPES,
}


class GroupShard:
    """The coordinator of the groups of one partition: hands each request to the part that decides on it.

    Args:
        config: Limits and times.
        image: The committed metadata: what topics there are.
        group_settings: Session timeout and heartbeat interval of a group, in ms, for the consumer protocol.
        rng: For member ids.
    """

    def __init__(
        self,
        config: GroupConfig,
        *,
        image: MetadataImage,
        group_settings: Callable[[str], tuple[int, int]],
        rng: random.Random,
    ) -> None:
        state = GroupState(config, image=image, group_settings=group_settings, rng=rng)
        reconciliation = Reconciliation(state)
        offsets = CommittedOffsets(state)
        expiry = GroupExpiry(state, offsets)
        views = GroupViews(state, offsets)
        self.config: Final = config
        self._state: Final = state
        self._offsets: Final = offsets
        self._rebalances: Final = ClassicRebalances(state)
        self._classic: Final = ClassicProtocol(state, self._rebalances)
        self._removals: Final = ConsumerRemovals(state, reconciliation, self._classic.adopt)
        self._consumer: Final = ConsumerProtocol(state, reconciliation, self._removals)
        self._classic_members: Final = ClassicMembers(state, reconciliation, self._removals)
        self.groups: Final[dict[str, ClassicGroup]] = state.groups
        self.consumer_groups: Final[dict[str, ConsumerGroup]] = state.consumer_groups
        self.rebalance_counts: Final[Counter[RebalanceCause]] = state.rebalance_counts
        self.offsets: Final[dict[str, GroupOffsets]] = offsets.by_group
        self.commit: Final = offsets.commit
        self.commit_in_transaction: Final = offsets.commit_in_transaction
        self.prepare_commit: Final = offsets.prepare
        self.check_fetch: Final = offsets.check_fetch
        self.committed: Final = offsets.committed
        self.all_committed: Final = offsets.all_committed
        self.is_unstable: Final = offsets.is_unstable
        self.pending_of: Final = offsets.pending_of
        self.replay_end_transaction: Final = offsets.replay_end_transaction
        self.delete_group: Final = expiry.delete_group
        self.delete_offsets: Final = expiry.delete_offsets
        self.knows: Final = expiry.knows
        self.subscribed_topics: Final = expiry.subscribed_topics
        self.group_ids: Final = expiry.group_ids
        self.expire_group: Final = expiry.expire_group
        self.expire_offsets: Final = expiry.expire_offsets
        self.forget_topic: Final = expiry.forget_topic
        self.describe: Final = views.describe
        self.describe_consumer: Final = views.describe_consumer
        self.list_groups: Final = views.list_groups

    def use_image(self, image: MetadataImage) -> None:
        """Look at another image from now on: a snapshot of the metadata has replaced the one before."""
        self._state.image = image

    # ------------------------------------------------------------------ time

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` has something to do, at the latest."""
        return self._state.timers.next_ms()

    def tick(self, now_ms: int, *, wall_ms: int) -> Iterator[GroupDecision]:
        """Do what time has made due: expired sessions, rebalances that waited long enough, unused member ids.

        Each has an outcome of its own, to be carried out before the next one is asked for.
        """
        while (key := self._state.timers.pop_due(now_ms)) is not None:
            yield self.check(key, now_ms=now_ms, wall_ms=wall_ms)

    def check(self, key: MemberKey, *, now_ms: int, wall_ms: int) -> GroupDecision:
        """Decide about the deadlines of a member or of a group."""
        state, (group_id, member_id) = self._state, key
        decision = GroupDecision(state, now_ms=now_ms, wall_ms=wall_ms)
        decision.on_refused = partial(self._retry, key, now_ms)
        group = state.groups.get(group_id)
        consumer_group = state.consumer_groups.get(group_id)
        if group is not None and member_id:
            self._rebalances.member_due(group, member_id, decision)
        elif group is not None:
            self._rebalances.group_due(group, decision)
        elif consumer_group is not None:
            self._removals.member_due(consumer_group, member_id, decision)
        else:
            state.drop_deadlines(key)
        return decision

    def _retry(self, key: MemberKey, now_ms: int, _: ErrorCode) -> None:
        self._state.timers.arm(key, now_ms + RETRY_MS)

    # ------------------------------------------------------------------ the classic protocol

    def join(
        self,
        request: JoinGroupRequest,
        token: Token[JoinGroupResponse],
        *,
        client_id: str,
        client_host: str,
        requires_known_member: bool,
        can_skip_assignment: bool,
        now_ms: int,
        wall_ms: int,
    ) -> GroupDecision:
        """Let a member join the next generation of its group.

        Args:
            request: The client's request.
            token: Of the request; its answer may come with a later outcome.
            client_id: From the request's header.
            client_host: Where it came from.
            requires_known_member: Whether a newcomer is first given an id and has to come back with it (KIP-394).
            can_skip_assignment: Whether the answer can tell a returning static leader to keep the assignment (KIP-814).
            now_ms: The time.
            wall_ms: Milliseconds since 1970 UTC.
        """
        join = Join(
            message=request,
            token=token,
            client_id=client_id,
            client_host=client_host,
            requires_known_member=requires_known_member,
            can_skip_assignment=can_skip_assignment,
        )
        decision = self._decision(token, now_ms, wall_ms)
        try:
            self._join(join, decision)
        except ApiError as refused:
            decision = self._decision(token, now_ms, wall_ms)
            response = JoinGroupResponse(error_code=refused.code, member_id=request.member_id)
            decision.reply(token, response)
        return decision

    def _join(self, join: Join, decision: GroupDecision) -> None:
        request, config = join.message, self._state.config
        if not request.group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        if not config.min_session_timeout_ms <= request.session_timeout_ms <= config.max_session_timeout_ms:
            raise ApiError(ErrorCode.INVALID_SESSION_TIMEOUT)
        consumer_group = self.consumer_groups.get(request.group_id)
        if consumer_group is not None:
            if consumer_group.members:
                self._classic_members.join(consumer_group, join, decision)
                return
            decision.records += group_removal_records(consumer_group)
        self._classic.join(join, decision)

    def sync(
        self, request: SyncGroupRequest, token: Token[SyncGroupResponse], *, now_ms: int, wall_ms: int
    ) -> GroupDecision:
        """Give a member its assignment; the leader brings those of all."""
        decision = self._decision(token, now_ms, wall_ms)
        try:
            consumer_group = self.consumer_groups.get(request.group_id)
            if consumer_group is not None:
                self._classic_members.sync(consumer_group, request, token, decision)
            else:
                self._classic.sync(request, token, decision)
        except ApiError as refused:
            decision = self._decision(token, now_ms, wall_ms)
            decision.reply(token, SyncGroupResponse(error_code=refused.code))
        return decision

    def heartbeat(self, request: HeartbeatRequest, token: Token[HeartbeatResponse], *, now_ms: int) -> GroupDecision:
        """Extend a member's session, and tell it whether it has to join again."""
        decision = self._decision(token, now_ms, 0)
        try:
            consumer_group = self.consumer_groups.get(request.group_id)
            if consumer_group is not None:
                self._classic_members.heartbeat(consumer_group, request, token, decision)
            else:
                self._classic.heartbeat(request, token, decision)
        except ApiError as refused:
            decision = self._decision(token, now_ms, 0)
            decision.reply(token, HeartbeatResponse(error_code=refused.code))
        return decision

    def leave(
        self,
        request: LeaveGroupRequest,
        members: Sequence[MemberIdentity],
        token: Token[LeaveGroupResponse],
        *,
        now_ms: int,
        wall_ms: int,
    ) -> GroupDecision:
        """Remove members, in order, each with a result of its own.

        Args:
            request: The client's request.
            members: Those of the request; before v3 there is one, and its result is that of the whole.
            token: Of the request.
            now_ms: The time.
            wall_ms: Milliseconds since 1970 UTC.
        """
        decision = self._decision(token, now_ms, wall_ms)
        group = self.groups.get(request.group_id)
        consumer_group = self.consumer_groups.get(request.group_id)
        if consumer_group is not None:
            codes = self._classic_members.leave(consumer_group, members, decision)
        elif group is None or group.state is ClassicState.DEAD:
            codes = [ErrorCode.UNKNOWN_MEMBER_ID] * len(members)
        else:
            codes = self._classic.leave(decision.copy_of(group), members, decision)
        results = [
            MemberResponse(member_id=entry.member_id, group_instance_id=entry.group_instance_id, error_code=code)
            for entry, code in zip(members, codes, strict=True)
        ]
        decision.reply(token, LeaveGroupResponse(members=results))
        return decision

    # ------------------------------------------------------------------ the consumer protocol

    def consumer_heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        token: Token[ConsumerGroupHeartbeatResponse],
        *,
        member_id: str,
        client_id: str,
        client_host: str,
        now_ms: int,
        wall_ms: int,
    ) -> GroupDecision:
        """Let a member join, live on, report what it has given up, or leave.

        Args:
            request: The client's request.
            token: Of the request.
            member_id: The request's, or a new one where version 0 leaves it to the server.
            client_id: From the request's header.
            client_host: Where it came from.
            now_ms: The time.
            wall_ms: Milliseconds since 1970 UTC.
        """
        decision = self._decision(token, now_ms, wall_ms)
        try:
            response = self._consumer.heartbeat(request, member_id, client_id, client_host, decision)
        except ApiError as error:
            decision = self._decision(token, now_ms, wall_ms)
            response = ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
        decision.reply(token, response)
        return decision

    # ------------------------------------------------------------------ replay

    def replay(
        self,
        key_data: bytes | memoryview,
        value_data: bytes | memoryview | None,
        *,
        now_ms: int,
        producer_id: int = -1,
    ) -> None:
        """Apply one record of the partition: the only place where durable state changes.

        Args:
            key_data: The record's key.
            value_data: Its value; None is a tombstone.
            now_ms: The time.
            producer_id: Of the transaction that it belongs to; it takes effect when that commits.

        Raises:
            ProtocolError: It says nothing that a group coordinator writes.
        """
        key = decode_key(key_data, KEY_TYPES)
        value = None if value_data is None else decode_value(value_data, VALUE_TYPES[key.__api_key__])
        self.replay_message(key, value, now_ms=now_ms, producer_id=producer_id)

    def replay_message(self, key: Message, value: Message | None, *, now_ms: int, producer_id: int = -1) -> None:
        """Apply one record that was decoded before; see `replay`."""
        match key:
            case OffsetCommitKey():
                assert value is None or isinstance(value, OffsetCommitValue)
                self._offsets.replay(key, value, producer_id)
            case GroupMetadataKey():
                assert value is None or isinstance(value, GroupMetadataValue)
                replay_group(self._state, key.group, value, now_ms)
            case _:
                replay_consumer(self._state, key, value, now_ms)

    # ------------------------------------------------------------------ load and unload

    def extend_sessions(self, duration_ms: int) -> None:
        """Let all sessions last longer, since a load took so long."""
        for key, deadline_ms in list(self._state.session_deadlines.items()):
            self._state.touch(key, deadline_ms + duration_ms)

    def waiting(self) -> Iterator[Token[Any]]:
        """Return the tokens of all requests that wait for the end of a rebalance."""
        for group in self.groups.values():
            for member in group.members.values():
                for token in (member.join_token, member.sync_token):
                    if token is not None:
                        yield token

    def _decision(self, token: Token[Any], now_ms: int, wall_ms: int) -> GroupDecision:
        return GroupDecision(self._state, now_ms=now_ms, wall_ms=wall_ms, request=token)
