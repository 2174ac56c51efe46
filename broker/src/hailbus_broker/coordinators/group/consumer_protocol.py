"""ConsumerGroupHeartbeat: members of the consumer protocol join, report, and leave (KIP-848)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from hailbus_broker.coordinators.group.classic_records import removal_record
from hailbus_broker.coordinators.group.consumer import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    contains,
)
from hailbus_broker.coordinators.group.consumer_records import (
    assignment_record,
    current_record,
    group_epoch_record,
    member_record,
    member_removal_records,
    target_record,
)
from hailbus_broker.coordinators.group.migration import from_classic
from hailbus_broker.coordinators.group.rebalances import RebalanceCause
from hailbus_broker.protocol.definitions import consumer_group_heartbeat_response as heartbeat_response
from hailbus_broker.protocol.definitions.join_group_response import JoinGroupResponse
from hailbus_broker.protocol.definitions.sync_group_response import SyncGroupResponse
from hailbus_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from hailbus_broker.coordinators.group.assignors import Assignment
    from hailbus_broker.coordinators.group.classic import ClassicGroup
    from hailbus_broker.coordinators.group.config import GroupConfig
    from hailbus_broker.coordinators.group.consumer_removal import ConsumerRemovals
    from hailbus_broker.coordinators.group.decision import GroupDecision
    from hailbus_broker.coordinators.group.reconciliation import Reconciliation
    from hailbus_broker.coordinators.group.state import GroupState
    from hailbus_broker.protocol.definitions.consumer_group_heartbeat_request import ConsumerGroupHeartbeatRequest


class ConsumerProtocol:
    """Decides on heartbeats of the consumer protocol."""

    def __init__(self, state: GroupState, reconciliation: Reconciliation, removals: ConsumerRemovals) -> None:
        self._state: Final = state
        self._reconciliation: Final = reconciliation
        self._removals: Final = removals

    def heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        member_id: str,
        client_id: str,
        client_host: str,
        decision: GroupDecision,
    ) -> heartbeat_response.ConsumerGroupHeartbeatResponse:
        """Let a member join, live on, report what it has given up, or leave.

        Raises:
            ApiError: It cannot do that; the decision is to be dropped.
        """
        _check(request, member_id, self._state.config)
        if request.member_epoch in {LEAVE_EPOCH, STATIC_LEAVE_EPOCH}:
            return self._leave(request, decision)
        return self._heartbeat(request, member_id, client_id, client_host, decision)

    def _heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        member_id: str,
        client_id: str,
        client_host: str,
        decision: GroupDecision,
    ) -> heartbeat_response.ConsumerGroupHeartbeatResponse:
        group = self._group_for(request, decision)
        is_joining = request.member_epoch == JOIN_EPOCH
        max_size = self._state.config.consumer_max_size
        if member_id not in group.members and is_joining and len(group.members) >= max_size:
            raise ApiError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {max_size} members.",
            )
        members = dict(group.members)
        reasons: list[tuple[RebalanceCause, str]] = []
        owned = (
            None
            if request.topic_partitions is None
            else {entry.topic_id: frozenset(entry.partitions) for entry in request.topic_partitions}
        )
        target = dict(group.target)
        member = _find_member(group, members, target, request, member_id, owned, decision, reasons)
        updated = _updated(member, request, client_id, client_host)
        if updated != member or member.member_id not in group.members:
            decision.records.append(member_record(group.group_id, updated))
            if (updated.subscribed_topics, updated.subscribed_regex) != (
                member.subscribed_topics,
                member.subscribed_regex,
            ) and member.member_id in group.members:
                reasons.append((RebalanceCause.SUBSCRIPTION_CHANGED, f"member {member_id} changed its subscription"))
            elif updated.server_assignor != member.server_assignor and member.member_id in group.members:
                reasons.append((RebalanceCause.ASSIGNOR_CHANGED, f"member {member_id} changed its assignor"))
        reconciled = self._reconciliation.advance(group, members, target, updated, owned, reasons, decision)
        classic = self._state.groups.get(group.group_id)
        if classic is not None:
            _answer_waiting(classic, decision)
        session_timeout_ms, heartbeat_interval_ms = self._state.group_settings(group.group_id)
        if member_id in group.members:  # the session of a new member starts when its record is replayed
            decision.extend_session((group.group_id, member_id), decision.now_ms + session_timeout_ms)
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

    def _group_for(self, request: ConsumerGroupHeartbeatRequest, decision: GroupDecision) -> ConsumerGroup:
        """Return the group of a request: a known one, a new one, or a classic group that changes over."""
        group = self._state.consumer_groups.get(request.group_id)
        if group is not None:
            return group
        if request.member_epoch != JOIN_EPOCH:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {request.group_id} not found.")
        classic = self._state.groups.get(request.group_id)
        if classic is not None:
            if classic.members:
                return self._upgrade(classic, decision)
            decision.records.append(removal_record(request.group_id))
        return ConsumerGroup(group_id=request.group_id)

    def _upgrade(self, classic: ClassicGroup, decision: GroupDecision) -> ConsumerGroup:
        """Turn a classic group with members into a consumer group."""
        if not self._state.config.can_upgrade:
            raise ApiError(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"Group {classic.group_id} is a classic group with members, and group.consumer.migration.policy is "
                f"{self._state.config.consumer_migration_policy}: let them leave before it changes over.",
            )
        if len(classic.members) >= self._state.config.consumer_max_size:
            raise ApiError(
                ErrorCode.GROUP_MAX_SIZE_REACHED, "The group has too many members for the consumer protocol."
            )
        group = from_classic(classic, self._state.image)
        decision.records.append(removal_record(classic.group_id))
        for member_id, member in sorted(group.members.items()):
            decision.records.append(member_record(group.group_id, member))
            decision.records.append(target_record(group.group_id, member_id, member.assigned))
            decision.records.append(current_record(group.group_id, member))
        decision.records.append(assignment_record(group.group_id, group.assignment_epoch, decision.wall_ms))
        decision.records.append(group_epoch_record(group.group_id, group.group_epoch, group.subscription_hash))
        decision.log_events.append(("group_upgraded", {"group": group.group_id, "members": len(group.members)}))
        return group

    def _leave(
        self, request: ConsumerGroupHeartbeatRequest, decision: GroupDecision
    ) -> heartbeat_response.ConsumerGroupHeartbeatResponse:
        group = self._state.consumer_groups.get(request.group_id)
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
                decision.records.append(current_record(group.group_id, away))
                decision.set_revocation((group.group_id, member_id), None)
                return response
        if member_id not in group.members:
            raise ApiError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group.group_id}."
            )
        self._removals.remove(group, [member_id], RebalanceCause.MEMBER_LEFT, f"member {member_id} left", decision)
        return response


def _find_member(
    group: ConsumerGroup,
    members: dict[str, ConsumerMember],
    target: dict[str, Assignment],
    request: ConsumerGroupHeartbeatRequest,
    member_id: str,
    owned: Assignment | None,
    decision: GroupDecision,
    reasons: list[tuple[RebalanceCause, str]],
) -> ConsumerMember:
    """Return the member that a heartbeat comes from; a new one joins, a static one takes its place again."""
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
                return replace_static(group, members, target, holder, member_id, decision)
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


def replace_static(
    group: ConsumerGroup,
    members: dict[str, ConsumerMember],
    target: dict[str, Assignment],
    holder: ConsumerMember,
    member_id: str,
    decision: GroupDecision,
) -> ConsumerMember:
    """Give the place and the partitions of a static member to the same member under a new id."""
    decision.records += member_removal_records(group.group_id, holder.member_id)
    del members[holder.member_id]
    target[member_id] = target.pop(holder.member_id, {})
    decision.records.append(target_record(group.group_id, member_id, target[member_id]))
    return replace(holder, member_id=member_id, member_epoch=0, previous_member_epoch=0)


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


def _answer_waiting(classic: ClassicGroup, decision: GroupDecision) -> None:
    """Tell the members that wait in a rebalance of a classic group to join again: it becomes a consumer group.

    Replaying the tombstone of the classic group removes the group itself.
    """
    for waiting in classic.members.values():
        if waiting.join_token is not None:
            response = JoinGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS, member_id=waiting.member_id)
            decision.reply(waiting.join_token, response)
        if waiting.sync_token is not None:
            decision.reply(waiting.sync_token, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))


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
