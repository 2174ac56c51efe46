"""The part of a group shard that runs the consumer protocol."""

from __future__ import annotations

from dataclasses import replace
from heapq import heappush
from typing import TYPE_CHECKING, Final
from zlib import crc32

from hailbus_broker.coordinators.group.assignors import ASSIGNORS, Assignment
from hailbus_broker.coordinators.group.consumer import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    contains,
    intersects,
    without_empty,
)
from hailbus_broker.coordinators.group.migration import (
    CONSUMER_PROTOCOL,
    NotConsumerProtocolError,
    classic_update,
    from_classic,
    has_to_rejoin,
    owned_by,
    to_classic,
    write_assignment,
)
from hailbus_broker.coordinators.group.rebalances import Rebalance, RebalanceCause, rebalances_tag
from hailbus_broker.coordinators.numbering import following
from hailbus_broker.coordinators.outcome import CoordinatorRecord, Outcome
from hailbus_broker.coordinators.patterns import PatternError, whole_match
from hailbus_broker.protocol.definitions import (
    consumer_group_current_member_assignment_value as current_value,
)
from hailbus_broker.protocol.definitions import consumer_group_describe_response as describe_response
from hailbus_broker.protocol.definitions import consumer_group_heartbeat_response as heartbeat_response
from hailbus_broker.protocol.definitions import consumer_group_target_assignment_member_value as target_value
from hailbus_broker.protocol.definitions.consumer_group_current_member_assignment_key import (
    ConsumerGroupCurrentMemberAssignmentKey,
)
from hailbus_broker.protocol.definitions.consumer_group_heartbeat_request import ConsumerGroupHeartbeatRequest
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
from hailbus_broker.protocol.definitions.group_metadata_key import GroupMetadataKey
from hailbus_broker.protocol.definitions.join_group_response import JoinGroupResponse
from hailbus_broker.protocol.definitions.sync_group_response import SyncGroupResponse
from hailbus_broker.protocol.errors import ApiError, ErrorCode, ProtocolError

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Mapping

    from hailbus_broker.cluster.metadata.image import MetadataImage
    from hailbus_broker.coordinators.group.classic import ClassicGroup
    from hailbus_broker.coordinators.group.config import GroupConfig
    from hailbus_broker.protocol.definitions.join_group_request import JoinGroupRequest
    from hailbus_broker.protocol.definitions.leave_group_request import MemberIdentity
    from hailbus_broker.protocol.schema import Message, Uuid

REMOVAL_RETRY_MS: Final = 1_000
"""After which time the removal of a member is retried when its records were refused."""

CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1

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


class ConsumerGroupsMixin:
    """Consumer groups of a shard. The image is what the topics are looked up in."""

    config: GroupConfig
    groups: dict[str, ClassicGroup]
    consumer_groups: dict[str, ConsumerGroup]
    image: MetadataImage
    _timers: list[tuple[int, str, str]]
    _wall_ms: int
    rebalance_counts: Counter[RebalanceCause]
    group_settings: Callable[[str], tuple[int, int]]
    """Of a group: session timeout and heartbeat interval in ms."""

    # ------------------------------------------------------------------ heartbeat

    def consumer_heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        token: object,
        *,
        member_id: str,
        client_id: str,
        client_host: str,
        now_ms: int,
        wall_ms: int,
    ) -> Outcome:
        """A member joins, lives on, reports what it has given up, or leaves.

        Args:
            request: As it came.
            token: Of the request.
            member_id: The request's, or a new one where version 0 leaves it to the server.
            client_id: From the request's header.
            client_host: Where it came from.
            now_ms: The time.
            wall_ms: Milliseconds since 1970 UTC.
        """
        self._wall_ms = wall_ms
        out = Outcome()
        try:
            _check(request, member_id, self.config)
            if request.member_epoch in {LEAVE_EPOCH, STATIC_LEAVE_EPOCH}:
                response = self._consumer_leave(request, now_ms, out)
            else:
                response = self._consumer_heartbeat(request, member_id, client_id, client_host, now_ms, out)
        except ApiError as error:
            out = Outcome()
            response = heartbeat_response.ConsumerGroupHeartbeatResponse(
                error_code=error.code, error_message=error.message
            )
        out.replies.append((token, response))
        return out

    def _consumer_heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        member_id: str,
        client_id: str,
        client_host: str,
        now_ms: int,
        out: Outcome,
    ) -> heartbeat_response.ConsumerGroupHeartbeatResponse:
        group = self._consumer_group(request, out)
        is_joining = request.member_epoch == JOIN_EPOCH
        if member_id not in group.members and is_joining and len(group.members) >= self.config.consumer_max_size:
            raise ApiError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {self.config.consumer_max_size} members.",
            )
        members = dict(group.members)
        reasons: list[tuple[RebalanceCause, str]] = []
        owned = (
            None
            if request.topic_partitions is None
            else {entry.topic_id: frozenset(entry.partitions) for entry in request.topic_partitions}
        )
        target = dict(group.target)
        member = self._find_member(group, members, target, request, member_id, owned, out, reasons)
        updated = self._updated(member, request, client_id, client_host)
        if updated != member or member.member_id not in group.members:
            out.records.append(_member_record(group.group_id, updated))
            if (updated.subscribed_topics, updated.subscribed_regex) != (
                member.subscribed_topics,
                member.subscribed_regex,
            ) and member.member_id in group.members:
                reasons.append((RebalanceCause.SUBSCRIPTION_CHANGED, f"member {member_id} changed its subscription"))
            elif updated.server_assignor != member.server_assignor and member.member_id in group.members:
                reasons.append((RebalanceCause.ASSIGNOR_CHANGED, f"member {member_id} changed its assignor"))
        reconciled = self._advance(group, members, target, updated, owned, reasons, now_ms, out)
        classic = self.groups.get(group.group_id)
        if classic is not None:
            self._let_go(classic, out)
        session_timeout_ms, heartbeat_interval_ms = self.group_settings(group.group_id)
        if member_id in group.members:  # the session of a new member starts when its record is replayed
            self._touch_consumer(group, member_id, now_ms + session_timeout_ms)
        is_full = is_joining or (
            request.rebalance_timeout_ms != -1
            and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
            and owned is not None
        )
        assignment = None
        if is_full or reconciled.assigned != member.assigned:
            assignment = heartbeat_response.Assignment(
                topic_partitions=[
                    heartbeat_response.TopicPartitions(topic_id=topic, partitions=sorted(partitions))
                    for topic, partitions in sorted(reconciled.assigned.items())
                ]
            )
        return heartbeat_response.ConsumerGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=reconciled.member_epoch,
            heartbeat_interval_ms=heartbeat_interval_ms,
            assignment=assignment,
        )

    def _advance(
        self,
        group: ConsumerGroup,
        members: dict[str, ConsumerMember],
        target: dict[str, Assignment],
        updated: ConsumerMember,
        owned: Assignment | None,
        reasons: list[tuple[RebalanceCause, str]],
        now_ms: int,
        out: Outcome,
    ) -> ConsumerMember:
        """Take in what a member has said: a new epoch and assignment if there are reasons, and what it may have now."""
        member_id = updated.member_id
        members[member_id] = updated
        regex_topics = self._resolve_regexes(group, members, out)
        subscriptions = {
            key: value.subscribed_topics | regex_topics.get(value.subscribed_regex, frozenset())
            for key, value in members.items()
        }
        subscription_hash = self._subscription_hash(subscriptions)
        if subscription_hash != group.subscription_hash and not reasons:
            reasons.append((RebalanceCause.TOPICS_CHANGED, "the subscribed topics or their partitions changed"))
        group_epoch, assignment_epoch = group.group_epoch, group.assignment_epoch
        if reasons:
            group_epoch = following(group_epoch)
            out.records.append(_group_record(group.group_id, group_epoch, subscription_hash))
            sentence = "; ".join(reason for _, reason in reasons)
            self._note_rebalance(group, group_epoch, len(members), reasons[0][0], sentence, out)
        if assignment_epoch < group_epoch:
            target = self._assign(group, members, target, subscriptions, group_epoch, out)
            assignment_epoch = group_epoch
        reconciled = self._reconcile(group, members, updated, assignment_epoch, target.get(member_id, {}), owned)
        if reconciled != updated or member_id not in group.members:
            out.records.append(_current_record(group.group_id, reconciled))
        self._remember_soft_state(group, member_id, out)
        group.image_version = self.image.version
        self.consumer_groups[group.group_id] = group
        if reconciled.state is not MemberState.UNREVOKED_PARTITIONS:
            group.revocation_deadlines.pop(member_id, None)
        elif reconciled != updated or member_id not in group.revocation_deadlines:
            # Each revocation has its own deadline, even when it follows another one in the same epoch.
            group.revocation_deadlines[member_id] = now_ms + reconciled.rebalance_timeout_ms
            self._arm_consumer(group, member_id)
        return reconciled

    def _remember_soft_state(self, group: ConsumerGroup, member_id: str, out: Outcome) -> None:
        """Register the undo of what `_advance` changes before its records are written."""
        is_new = group.group_id not in self.consumer_groups
        version, deadline_ms = group.image_version, group.revocation_deadlines.get(member_id)

        def undo(_: Outcome) -> None:
            group.image_version = version
            if is_new:
                del self.consumer_groups[group.group_id]
            if deadline_ms is None:
                group.revocation_deadlines.pop(member_id, None)
            else:
                group.revocation_deadlines[member_id] = deadline_ms
                self._arm_consumer(group, member_id)

        out.undo.append(undo)

    def _consumer_group(self, request: ConsumerGroupHeartbeatRequest, out: Outcome) -> ConsumerGroup:
        group = self.consumer_groups.get(request.group_id)
        if group is not None:
            return group
        if request.member_epoch != JOIN_EPOCH:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {request.group_id} not found.")
        classic = self.groups.get(request.group_id)
        if classic is not None:
            if classic.members:
                return self._upgrade(classic, out)
            out.records.append(CoordinatorRecord(GroupMetadataKey(group=request.group_id), None))
        return ConsumerGroup(group_id=request.group_id)

    def _upgrade(self, classic: ClassicGroup, out: Outcome) -> ConsumerGroup:
        """Turn a classic group with members into a consumer group."""
        if not self.config.can_upgrade:
            raise ApiError(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"Group {classic.group_id} is a classic group with members, and group.consumer.migration.policy is "
                f"{self.config.consumer_migration_policy}: let them leave before it changes over.",
            )
        if len(classic.members) >= self.config.consumer_max_size:
            raise ApiError(
                ErrorCode.GROUP_MAX_SIZE_REACHED, "The group has too many members for the consumer protocol."
            )
        group = from_classic(classic, self.image)
        out.records.append(CoordinatorRecord(GroupMetadataKey(group=classic.group_id), None))
        for member_id, member in sorted(group.members.items()):
            out.records.append(_member_record(group.group_id, member))
            out.records.append(_target_record(group.group_id, member_id, member.assigned))
            out.records.append(_current_record(group.group_id, member))
        out.records.append(_assignment_record(group.group_id, group.assignment_epoch, self._wall_ms))
        out.records.append(_group_record(group.group_id, group.group_epoch, group.subscription_hash))
        out.facts.append(("group_upgraded", {"group": group.group_id, "members": len(group.members)}))
        return group

    def _let_go(self, classic: ClassicGroup, out: Outcome) -> None:
        """Tell the members of a classic group that wait in a rebalance to join again: it becomes a consumer group.

        Replaying the tombstone of the classic group removes the group itself.
        """
        for waiting in classic.members.values():
            if waiting.join_token is not None:
                response = JoinGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS, member_id=waiting.member_id)
                out.replies.append((waiting.join_token, response))
                waiting.join_token = None
            if waiting.sync_token is not None:
                out.replies.append((waiting.sync_token, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)))
                waiting.sync_token = None

    # ------------------------------------------------------------------ members of the classic protocol

    def join_as_classic(
        self,
        group: ConsumerGroup,
        request: JoinGroupRequest,
        token: object,
        client_id: str,
        client_host: str,
        requires_known_member: bool,
        now_ms: int,
        out: Outcome,
    ) -> None:
        """A member of the classic protocol joins a consumer group, or joins it again.

        Raises:
            ApiError: It cannot be a member.
        """
        names = [
            {name for name, _ in member.classic_protocols} for member in group.members.values() if member.is_classic
        ]
        common = set.intersection(*names) if names else {entry.name for entry in request.protocols}
        if request.protocol_type != CONSUMER_PROTOCOL or not common & {entry.name for entry in request.protocols}:
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        member_id, instance_id = request.member_id, request.group_instance_id
        if not member_id and instance_id is None and requires_known_member:
            member_id = self._new_id(client_id)
            response = JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
            out.replies.append((token, response))
            return
        members, target = dict(group.members), dict(group.target)
        reasons: list[tuple[RebalanceCause, str]] = []
        holder_id = None if instance_id is None else group.static_members.get(instance_id)
        if not member_id:
            member_id = self._new_id(instance_id or client_id)
            if holder_id is not None:
                holder = group.members[holder_id]
                members[member_id] = self._replace_consumer_static(group, members, target, holder, member_id, out)
        elif holder_id is not None and holder_id != member_id:
            raise ApiError(ErrorCode.FENCED_INSTANCE_ID)
        if member_id not in members and len(group.members) >= self.config.consumer_max_size:
            raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED)
        before = members.get(member_id, ConsumerMember(member_id=member_id))
        try:
            updated = classic_update(before, request, client_id, client_host)
            owned = owned_by(request, self.image)
        except NotConsumerProtocolError as error:
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from error
        if member_id not in members:
            reasons.append((RebalanceCause.MEMBER_JOINED, f"a new member {member_id} joined"))
        elif updated.subscribed_topics != before.subscribed_topics:
            reasons.append((RebalanceCause.SUBSCRIPTION_CHANGED, f"member {member_id} changed its subscription"))
        if updated != group.members.get(member_id):
            out.records.append(_member_record(group.group_id, updated))
        reconciled = self._advance(group, members, target, updated, owned, reasons, now_ms, out)
        if member_id in group.members:  # the session of a new member starts when its record is replayed
            self._touch_consumer(group, member_id, now_ms + request.session_timeout_ms)
        out.replies.append(
            (
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
        )

    def classic_member(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ConsumerMember:
        """The member of the classic protocol that a request names; it has shown that it lives.

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
        self._touch_consumer(group, member_id, now_ms + member.classic_session_timeout_ms)
        return member

    def tell_to_rejoin(self, group: ConsumerGroup, member: ConsumerMember, now_ms: int) -> bool:
        """Whether a member of the classic protocol has to join again, for which it has its rebalance timeout."""
        if not has_to_rejoin(group, member):
            return False
        if member.member_id not in group.revocation_deadlines:
            group.revocation_deadlines[member.member_id] = now_ms + member.rebalance_timeout_ms
            self._arm_consumer(group, member.member_id)
        return True

    def sync_as_classic(self, group: ConsumerGroup, member: ConsumerMember, now_ms: int) -> SyncGroupResponse:
        """What a member of the classic protocol gets.

        Raises:
            ApiError: It has to join again first.
        """
        if self.tell_to_rejoin(group, member, now_ms) and member.state is not MemberState.UNREVOKED_PARTITIONS:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        name, metadata = member.classic_protocols[0]
        return SyncGroupResponse(
            protocol_type=CONSUMER_PROTOCOL,
            protocol_name=name,
            assignment=write_assignment(member.assigned, self.image, like=metadata),
        )

    def leave_as_classic(self, group: ConsumerGroup, entry: MemberIdentity, now_ms: int, out: Outcome) -> None:
        """A LeaveGroup for a member of a consumer group.

        Raises:
            ApiError: There is no such member.
        """
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
        reason = f"member {member_id} left; its reason: {entry.reason or 'not given'}"
        self._remove_consumer(group, member_id, RebalanceCause.MEMBER_LEFT, reason, now_ms, out)

    def _downgrade(
        self, group: ConsumerGroup, rest: Mapping[str, ConsumerMember], reason: str, now_ms: int, out: Outcome
    ) -> None:
        """Turn a consumer group into a classic group, once all its members use the classic protocol."""
        for member_id in sorted(group.members):
            out.records += _removal_records(group.group_id, member_id)
        out.records += self.consumer_group_removal(group)
        self.take_classic(to_classic(group, (rest[key] for key in sorted(rest)), self.image), reason, now_ms, out)
        out.facts.append(("group_downgraded", {"group": group.group_id, "members": len(rest)}))

    def take_classic(self, group: ClassicGroup, reason: str, now_ms: int, out: Outcome) -> None:
        """Go on with a group that has become classic; the part of the shard for classic groups does."""
        raise NotImplementedError

    def _new_id(self, prefix: str) -> str:
        raise NotImplementedError

    def _find_member(
        self,
        group: ConsumerGroup,
        members: dict[str, ConsumerMember],
        target: dict[str, Assignment],
        request: ConsumerGroupHeartbeatRequest,
        member_id: str,
        owned: Assignment | None,
        out: Outcome,
        reasons: list[tuple[RebalanceCause, str]],
    ) -> ConsumerMember:
        """The member that a heartbeat is of; a new one joins, a static one takes its place again."""
        known = group.members.get(member_id)
        instance_id = request.instance_id
        if instance_id is not None:
            holder_id = group.static_members.get(instance_id)
            holder = None if holder_id is None else group.members[holder_id]
            if request.member_epoch == JOIN_EPOCH:
                if holder is not None and holder.member_id != member_id:
                    if holder.member_epoch != STATIC_LEAVE_EPOCH and not holder.is_classic:
                        raise ApiError(
                            ErrorCode.UNRELEASED_INSTANCE_ID,
                            f"Static member {member_id} with instance id {instance_id} cannot join the group because "
                            f"the instance id is owned by member {holder.member_id}.",
                        )
                    return self._replace_consumer_static(group, members, target, holder, member_id, out)
                if holder is None:
                    reasons.append((RebalanceCause.MEMBER_JOINED, f"a new static member {instance_id} joined"))
            elif holder is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
            elif holder.member_id != member_id:
                raise ApiError(
                    ErrorCode.FENCED_INSTANCE_ID,
                    f"Static member {member_id} with instance id {instance_id} was fenced by {holder.member_id}.",
                )
        elif known is None and request.member_epoch == JOIN_EPOCH:
            reasons.append((RebalanceCause.MEMBER_JOINED, f"a new member {member_id} joined"))
        if known is None:
            if request.member_epoch != JOIN_EPOCH:
                raise ApiError(
                    ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group.group_id}."
                )
            return ConsumerMember(member_id=member_id)
        if request.member_epoch == JOIN_EPOCH:
            return known
        epoch = request.member_epoch
        if epoch > known.member_epoch:
            raise ApiError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                f"The consumer group member has a greater member epoch ({epoch}) than the one known by the group "
                f"coordinator ({known.member_epoch}). The member must abandon all its partitions and rejoin.",
            )
        if epoch < known.member_epoch and not (
            # The answer that raised its epoch may have been lost.
            epoch == known.previous_member_epoch and owned is not None and contains(known.assigned, owned)
        ):
            raise ApiError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                f"The consumer group member has a smaller member epoch ({epoch}) than the one known by the group "
                f"coordinator ({known.member_epoch}). The member must abandon all its partitions and rejoin.",
            )
        return known

    def _replace_consumer_static(
        self,
        group: ConsumerGroup,
        members: dict[str, ConsumerMember],
        target: dict[str, Assignment],
        holder: ConsumerMember,
        member_id: str,
        out: Outcome,
    ) -> ConsumerMember:
        """A static member is back under a new id: it gets what it had, and nobody else moves."""
        out.records += _removal_records(group.group_id, holder.member_id)
        del members[holder.member_id]
        target[member_id] = target.pop(holder.member_id, {})
        out.records.append(_target_record(group.group_id, member_id, target[member_id]))
        return replace(holder, member_id=member_id, member_epoch=0, previous_member_epoch=0)

    @staticmethod
    def _updated(
        member: ConsumerMember, request: ConsumerGroupHeartbeatRequest, client_id: str, client_host: str
    ) -> ConsumerMember:
        changes: dict[str, object] = {
            "client_id": client_id,
            "client_host": client_host,
            "classic_session_timeout_ms": None,
            "classic_protocols": (),
        }
        if request.instance_id is not None:
            changes["instance_id"] = request.instance_id
        if request.rack_id is not None:
            changes["rack_id"] = request.rack_id
        if request.rebalance_timeout_ms != -1:
            changes["rebalance_timeout_ms"] = request.rebalance_timeout_ms
        if request.server_assignor is not None:
            changes["server_assignor"] = request.server_assignor
        if request.subscribed_topic_names is not None:
            changes["subscribed_topics"] = frozenset(request.subscribed_topic_names)
        if request.subscribed_topic_regex is not None:
            changes["subscribed_regex"] = request.subscribed_topic_regex
        return replace(member, **changes)  # type: ignore[arg-type]  # names and types as in the class

    def _resolve_regexes(
        self, group: ConsumerGroup, members: Mapping[str, ConsumerMember], out: Outcome
    ) -> dict[str, frozenset[str]]:
        """What each regular expression in use matches; looked up again when topics have changed."""
        in_use = sorted({member.subscribed_regex for member in members.values() if member.subscribed_regex})
        found: dict[str, frozenset[str]] = {}
        for pattern in in_use:
            if pattern in group.regex_topics and group.image_version == self.image.version:
                found[pattern] = group.regex_topics[pattern]
                continue
            try:
                matches = whole_match(pattern)
            except PatternError as error:
                raise ApiError(
                    ErrorCode.INVALID_REGULAR_EXPRESSION, f"SubscribedTopicRegex `{pattern}` is not valid: {error}."
                ) from error
            topics = frozenset(filter(matches, self.image.topics))  # as in Apache Kafka also internal ones
            found[pattern] = topics
            if group.regex_topics.get(pattern) != topics:
                value = ConsumerGroupRegularExpressionValue(
                    topics=sorted(topics), version=self.image.version, timestamp=self._wall_ms
                )
                key = ConsumerGroupRegularExpressionKey(group_id=group.group_id, regular_expression=pattern)
                out.records.append(CoordinatorRecord(key, value))
        for pattern in sorted(set(group.regex_topics) - set(in_use)):
            key = ConsumerGroupRegularExpressionKey(group_id=group.group_id, regular_expression=pattern)
            out.records.append(CoordinatorRecord(key, None))
        return found

    def _subscription_hash(self, subscriptions: Mapping[str, frozenset[str]]) -> int:
        value = 0
        for name in sorted({name for names in subscriptions.values() for name in names}):
            topic = self.image.topics.get(name)
            if topic is not None:
                value = crc32(f"{name} {topic.topic_id.hex()} {len(topic.partitions)};".encode(), value)
        return value

    def _assign(
        self,
        group: ConsumerGroup,
        members: Mapping[str, ConsumerMember],
        before: Mapping[str, Assignment],
        subscriptions: Mapping[str, frozenset[str]],
        epoch: int,
        out: Outcome,
    ) -> dict[str, Assignment]:
        """A new target assignment; only what differs is written."""
        topics = self.image.topics
        by_id = {
            member_id: frozenset(topics[name].topic_id for name in names if name in topics)
            for member_id, names in subscriptions.items()
        }
        counts = {topic.topic_id: len(topic.partitions) for topic in topics.values()}
        votes = ConsumerGroup(group_id=group.group_id, members=dict(members))
        assignor = votes.preferred_assignor(self.config.consumer_assignors[0])
        # Static members keep their place when they come back under a new id.
        names = {member_id: member.instance_id or member_id for member_id, member in members.items()}
        target = ASSIGNORS[assignor](by_id, counts, before, names)
        for member_id, assignment in sorted(target.items()):
            if member_id not in before or before[member_id] != assignment:
                out.records.append(_target_record(group.group_id, member_id, assignment))
        out.records.append(_assignment_record(group.group_id, epoch, self._wall_ms))
        return target

    def _reconcile(
        self,
        group: ConsumerGroup,
        members: Mapping[str, ConsumerMember],
        member: ConsumerMember,
        target_epoch: int,
        target: Assignment,
        owned: Assignment | None,
    ) -> ConsumerMember:
        """Take a member as far towards its target as is possible now."""
        if member.state is MemberState.STABLE and member.member_epoch == target_epoch:
            return member
        if member.state is MemberState.UNREVOKED_PARTITIONS and (
            owned is None or intersects(member.pending_revocation, owned)
        ):
            return member
        kept = without_empty(
            {topic: indexes & target.get(topic, frozenset()) for topic, indexes in member.assigned.items()}
        )
        revoked = without_empty(
            {topic: indexes - target.get(topic, frozenset()) for topic, indexes in member.assigned.items()}
        )
        if revoked and member.member_epoch != JOIN_EPOCH and (owned is None or intersects(revoked, owned)):
            return replace(member, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, pending_revocation=revoked)
        owners = group.owners(other for key, other in members.items() if key != member.member_id)
        got: dict[Uuid, frozenset[int]] = {}
        has_unreleased = False
        for topic, indexes in target.items():
            available = frozenset(index for index in indexes if (topic, index) not in owners)
            has_unreleased = has_unreleased or available != indexes
            got[topic] = available
        moved = replace(
            member,
            state=MemberState.UNRELEASED_PARTITIONS if has_unreleased else MemberState.STABLE,
            member_epoch=target_epoch,
            assigned=without_empty(got),
            pending_revocation={},
        )
        # A heartbeat that changes nothing must leave the previous epoch as it is, too.
        return moved if moved == member else replace(moved, previous_member_epoch=member.member_epoch)

    # ------------------------------------------------------------------ leaving

    def _consumer_leave(
        self, request: ConsumerGroupHeartbeatRequest, now_ms: int, out: Outcome
    ) -> heartbeat_response.ConsumerGroupHeartbeatResponse:
        group = self.consumer_groups.get(request.group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {request.group_id} not found.")
        response = heartbeat_response.ConsumerGroupHeartbeatResponse(
            member_id=request.member_id, member_epoch=request.member_epoch
        )
        member_id = request.member_id
        if request.instance_id is not None:
            holder_id = group.static_members.get(request.instance_id)
            if holder_id is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {request.instance_id} is unknown.")
            if holder_id != member_id:
                raise ApiError(ErrorCode.FENCED_INSTANCE_ID, f"Member {member_id} was fenced by member {holder_id}.")
            if request.member_epoch == STATIC_LEAVE_EPOCH:
                member = group.members[member_id]
                away = replace(
                    member,
                    member_epoch=STATIC_LEAVE_EPOCH,
                    previous_member_epoch=member.member_epoch,
                    pending_revocation={},
                )
                out.records.append(_current_record(group.group_id, away))
                group.revocation_deadlines.pop(member_id, None)
                return response
        if member_id not in group.members:
            raise ApiError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group.group_id}."
            )
        self._remove_consumer(group, member_id, RebalanceCause.MEMBER_LEFT, f"member {member_id} left", now_ms, out)
        return response

    def _remove_consumer(
        self, group: ConsumerGroup, member_id: str, cause: RebalanceCause, reason: str, now_ms: int, out: Outcome
    ) -> None:
        rest = {key: member for key, member in group.members.items() if key != member_id}
        if rest and self.config.can_downgrade and all(member.is_classic for member in rest.values()):
            self._downgrade(group, rest, reason, now_ms, out)
            return
        out.records += _removal_records(group.group_id, member_id)
        epoch = following(group.group_epoch)
        subscriptions = {
            key: member.subscribed_topics | group.regex_topics.get(member.subscribed_regex, frozenset())
            for key, member in rest.items()
        }
        out.records.append(_group_record(group.group_id, epoch, self._subscription_hash(subscriptions)))
        self._note_rebalance(group, epoch, len(rest), cause, reason, out)

    def _note_rebalance(
        self,
        group: ConsumerGroup,
        epoch: int,
        count: int,
        cause: RebalanceCause,
        reason: str,
        out: Outcome,
    ) -> None:
        group.rebalances.note(
            Rebalance(at_ms=self._wall_ms, generation=epoch, members=count, cause=cause, reason=reason),
            group_id=group.group_id,
            counts=self.rebalance_counts,
            out=out,
        )

    # ------------------------------------------------------------------ time

    def _touch_consumer(self, group: ConsumerGroup, member_id: str, deadline_ms: int) -> None:
        group.session_deadlines[member_id] = deadline_ms
        self._arm_consumer(group, member_id)

    def _arm_consumer(self, group: ConsumerGroup, member_id: str, *, not_before_ms: int = 0) -> None:
        """Schedule a check of a member's deadlines. A check that comes early schedules the next one."""
        deadlines = [
            due[member_id] for due in (group.session_deadlines, group.revocation_deadlines) if member_id in due
        ]
        if not deadlines:
            return
        due_ms = max(min(deadlines), not_before_ms)
        armed_ms = group.timers.get(member_id)
        if armed_ms is None or due_ms < armed_ms:
            group.timers[member_id] = due_ms
            heappush(self._timers, (due_ms, group.group_id, member_id))

    def _consumer_due(self, group: ConsumerGroup, member_id: str, due_ms: int, now_ms: int, out: Outcome) -> None:
        """Remove a member whose session or revocation deadline has passed; otherwise schedule the next check."""
        if group.timers.get(member_id) != due_ms:
            return  # superseded by an earlier entry
        del group.timers[member_id]
        session_due_ms = group.session_deadlines.get(member_id, now_ms + 1)
        revocation_due_ms = group.revocation_deadlines.get(member_id, now_ms + 1)
        is_out = min(session_due_ms, revocation_due_ms) <= now_ms
        # Replaying the removal deletes the deadlines. If its records are refused, the next check retries it.
        self._arm_consumer(group, member_id, not_before_ms=now_ms + REMOVAL_RETRY_MS if is_out else now_ms)
        if revocation_due_ms <= now_ms:
            reason = f"member {member_id} did not give its partitions up in time"
            self._remove_consumer(group, member_id, RebalanceCause.REVOCATION_TIMED_OUT, reason, now_ms, out)
        elif session_due_ms <= now_ms:
            reason = f"member {member_id} was silent for its session timeout"
            self._remove_consumer(group, member_id, RebalanceCause.SESSION_EXPIRED, reason, now_ms, out)

    # ------------------------------------------------------------------ looking

    def check_consumer_commit(self, group: ConsumerGroup, member_id: str, member_epoch: int) -> None:
        """Whether a member may commit or read offsets.

        Raises:
            ApiError: It is unknown, or its epoch is not its present one.
        """
        if member_epoch < 0 and not group.members:
            return
        member = group.members.get(member_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        if member_epoch != member.member_epoch:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION if member.is_classic else ErrorCode.STALE_MEMBER_EPOCH)

    def describe_consumer(self, group_id: str) -> describe_response.DescribedGroup | None:
        """A consumer group as ConsumerGroupDescribe shows it; None if there is none."""
        group = self.consumer_groups.get(group_id)
        if group is None:
            return None
        return describe_response.DescribedGroup(
            unknown_tags=rebalances_tag(group.rebalances),
            group_id=group_id,
            group_state=group.state(),
            group_epoch=group.group_epoch,
            assignment_epoch=group.assignment_epoch,
            assignor_name=group.preferred_assignor(self.config.consumer_assignors[0]),
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
                    topic_name=self.image.topics_by_id[topic_id].name,
                    partitions=sorted(partitions),
                )
                for topic_id, partitions in sorted(assignment.items())
                if topic_id in self.image.topics_by_id
            ]
        )

    def consumer_group_removal(self, group: ConsumerGroup) -> list[CoordinatorRecord]:
        """The records that make an empty consumer group go."""
        records = [
            CoordinatorRecord(
                ConsumerGroupRegularExpressionKey(group_id=group.group_id, regular_expression=pattern), None
            )
            for pattern in sorted(group.regex_topics)
        ]
        records.append(CoordinatorRecord(ConsumerGroupTargetAssignmentMetadataKey(group_id=group.group_id), None))
        records.append(CoordinatorRecord(ConsumerGroupMetadataKey(group_id=group.group_id), None))
        return records

    # ------------------------------------------------------------------ replay

    def replay_consumer(self, key: Message, value: Message | None, now_ms: int) -> None:
        """Take in one record of a consumer group.

        Raises:
            ProtocolError: It says something that no member can be in.
        """
        group_id: str = key.group_id  # type: ignore[attr-defined]  # all of these keys have it
        group = self.consumer_groups.get(group_id)
        if group is None:
            if value is None:
                return
            group = ConsumerGroup(group_id=group_id)
            self.consumer_groups[group_id] = group
        match key:
            case ConsumerGroupMetadataKey():
                if value is None:
                    del self.consumer_groups[group_id]
                    return
                assert isinstance(value, ConsumerGroupMetadataValue)
                group.group_epoch = value.epoch
                group.subscription_hash = value.metadata_hash
            case ConsumerGroupMemberMetadataKey():
                self._replay_member(group, key.member_id, value, now_ms)
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
                self._replay_current(group, key.member_id, value)
            case ConsumerGroupRegularExpressionKey():
                if value is None:
                    group.regex_topics.pop(key.regular_expression, None)
                else:
                    assert isinstance(value, ConsumerGroupRegularExpressionValue)
                    group.regex_topics[key.regular_expression] = frozenset(value.topics)
            case _:
                raise AssertionError(type(key))

    def _replay_member(self, group: ConsumerGroup, member_id: str, value: Message | None, now_ms: int) -> None:
        if value is None:
            for due in (group.session_deadlines, group.revocation_deadlines, group.timers):
                due.pop(member_id, None)
            member = group.members.pop(member_id, None)
            if member is not None and group.static_members.get(member.instance_id or "") == member_id:
                del group.static_members[member.instance_id or ""]
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
        if value.instance_id is not None:
            group.static_members[value.instance_id] = member_id
        if member_id not in group.session_deadlines:
            timeout_ms = self.group_settings(group.group_id)[0] if classic is None else classic.session_timeout_ms
            self._touch_consumer(group, member_id, now_ms + timeout_ms)

    @staticmethod
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


def _check(request: ConsumerGroupHeartbeatRequest, member_id: str, config: GroupConfig) -> None:
    """Refuse what no client should send."""

    def refuse(sentence: str) -> ApiError:
        return ApiError(ErrorCode.INVALID_REQUEST, sentence)

    if not request.group_id:
        raise refuse("GroupId can't be empty.")
    if not member_id:
        raise refuse("MemberId can't be empty.")
    if request.instance_id == "":
        raise refuse("InstanceId can't be empty.")
    if request.rack_id == "":
        raise refuse("RackId can't be empty.")
    if request.member_epoch < STATIC_LEAVE_EPOCH:
        raise refuse(f"MemberEpoch is {request.member_epoch}, but must be greater than or equal to -2.")
    if request.member_epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        raise refuse("InstanceId can't be null.")
    if request.member_epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms == -1:
            raise refuse("RebalanceTimeoutMs must be provided in first request.")
        if request.topic_partitions is None or request.topic_partitions:
            raise refuse("TopicPartitions must be empty when (re-)joining.")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            raise refuse("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")
    if request.server_assignor is not None and request.server_assignor not in config.consumer_assignors:
        raise ApiError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: "
            f"{', '.join(config.consumer_assignors)}.",
        )


def _group_record(group_id: str, epoch: int, subscription_hash: int) -> CoordinatorRecord:
    value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=subscription_hash)
    return CoordinatorRecord(ConsumerGroupMetadataKey(group_id=group_id), value)


def _assignment_record(group_id: str, epoch: int, wall_ms: int) -> CoordinatorRecord:
    value = ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=wall_ms)
    return CoordinatorRecord(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def _member_record(group_id: str, member: ConsumerMember) -> CoordinatorRecord:
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


def _target_record(group_id: str, member_id: str, assignment: Assignment) -> CoordinatorRecord:
    value = target_value.ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=[
            target_value.TopicPartition(topic_id=topic, partitions=sorted(partitions))
            for topic, partitions in sorted(assignment.items())
        ]
    )
    return CoordinatorRecord(ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), value)


def _current_record(group_id: str, member: ConsumerMember) -> CoordinatorRecord:
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


def _removal_records(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    return [
        CoordinatorRecord(ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None),
        CoordinatorRecord(ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None),
        CoordinatorRecord(ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None),
    ]
