"""Epochs and assignments of the consumer protocol: what each member should have, and what it may have by now."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final
from zlib import crc32

from hailbus_broker.coordinators.group.assignors import ASSIGNORS, Assignment
from hailbus_broker.coordinators.group.consumer import (
    JOIN_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    held,
    intersects,
    without_empty,
)
from hailbus_broker.coordinators.group.consumer_records import (
    assignment_record,
    current_record,
    group_epoch_record,
    target_record,
)
from hailbus_broker.coordinators.group.rebalances import Rebalance, RebalanceCause
from hailbus_broker.coordinators.numbering import following
from hailbus_broker.coordinators.outcome import CoordinatorRecord
from hailbus_broker.coordinators.patterns import PatternError, whole_match
from hailbus_broker.protocol.definitions.consumer_group_regular_expression_key import (
    ConsumerGroupRegularExpressionKey,
)
from hailbus_broker.protocol.definitions.consumer_group_regular_expression_value import (
    ConsumerGroupRegularExpressionValue,
)
from hailbus_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hailbus_broker.coordinators.group.decision import GroupDecision
    from hailbus_broker.coordinators.group.state import GroupState
    from hailbus_broker.protocol.schema import Uuid


class Reconciliation:
    """Decides on epochs and assignments of consumer groups."""

    def __init__(self, state: GroupState) -> None:
        self._state: Final = state

    def advance(
        self,
        group: ConsumerGroup,
        members: dict[str, ConsumerMember],
        target: dict[str, Assignment],
        updated: ConsumerMember,
        owned: Assignment | None,
        reasons: list[tuple[RebalanceCause, str]],
        decision: GroupDecision,
    ) -> ConsumerMember:
        """Begin a new epoch if there are reasons for one, and give a member what it may have now.

        Args:
            group: The group, as it is before the decision.
            members: Its members with the changes of the decision so far.
            target: Its target assignment with these changes.
            updated: The member, as its request describes it.
            owned: The partitions that it says it has; None if it does not say.
            reasons: Why a new epoch begins; may be empty.
            decision: What the request leads to.

        Returns:
            The member in its new state.
        """
        member_id = updated.member_id
        members[member_id] = updated
        regex_topics = self._resolve_regexes(group, members, decision)
        subscriptions = {
            key: value.subscribed_topics | regex_topics.get(value.subscribed_regex, frozenset())
            if value.subscribed_regex
            else value.subscribed_topics
            for key, value in members.items()
        }
        subscription_hash = self.subscription_hash(subscriptions)
        if subscription_hash != group.subscription_hash and not reasons:
            reasons.append((RebalanceCause.TOPICS_CHANGED, "the subscribed topics or their partitions changed"))
        group_epoch, assignment_epoch = group.group_epoch, group.assignment_epoch
        if reasons:
            group_epoch = following(group_epoch)
            decision.records.append(group_epoch_record(group.group_id, group_epoch, subscription_hash))
            sentence = "; ".join(reason for _, reason in reasons)
            self.note_rebalance(group, group_epoch, len(members), reasons[0][0], sentence, decision)
        if assignment_epoch < group_epoch:
            target = self._assign(group, members, target, subscriptions, group_epoch, decision)
            assignment_epoch = group_epoch
        reconciled = _reconcile(members, updated, assignment_epoch, target.get(member_id, {}), owned)
        if reconciled != updated or member_id not in group.members:
            decision.records.append(current_record(group.group_id, reconciled))
        decision.add_consumer(group)
        key = group.group_id, member_id
        if reconciled.state is not MemberState.UNREVOKED_PARTITIONS:
            decision.set_revocation(key, None)
        elif reconciled != updated or key not in self._state.revocation_deadlines:
            # Each revocation has its own deadline, even when it follows another one in the same epoch.
            decision.set_revocation(key, decision.now_ms + reconciled.rebalance_timeout_ms)
        return reconciled

    def _resolve_regexes(
        self, group: ConsumerGroup, members: Mapping[str, ConsumerMember], decision: GroupDecision
    ) -> dict[str, frozenset[str]]:
        """What each regular expression in use matches; looked up again when topics have changed."""
        in_use = sorted({member.subscribed_regex for member in members.values() if member.subscribed_regex})
        found: dict[str, frozenset[str]] = {}
        for pattern in in_use:
            if pattern in group.regex_topics and group.image_version == self._state.image.version:
                found[pattern] = group.regex_topics[pattern]
                continue
            try:
                matches = whole_match(pattern)
            except PatternError as error:
                raise ApiError(
                    ErrorCode.INVALID_REGULAR_EXPRESSION, f"SubscribedTopicRegex `{pattern}` is not valid: {error}."
                ) from error
            topics = frozenset(filter(matches, self._state.image.topics))  # as in Apache Kafka also internal ones
            found[pattern] = topics
            if group.regex_topics.get(pattern) != topics:
                value = ConsumerGroupRegularExpressionValue(
                    topics=sorted(topics), version=self._state.image.version, timestamp=decision.wall_ms
                )
                key = ConsumerGroupRegularExpressionKey(group_id=group.group_id, regular_expression=pattern)
                decision.records.append(CoordinatorRecord(key, value))
        for pattern in sorted(set(group.regex_topics) - set(in_use)):
            key = ConsumerGroupRegularExpressionKey(group_id=group.group_id, regular_expression=pattern)
            decision.records.append(CoordinatorRecord(key, None))
        return found

    def subscription_hash(self, subscriptions: Mapping[str, frozenset[str]]) -> int:
        """Return a number that changes with the subscribed topics, their ids and their partition counts."""
        value = 0
        for name in sorted(frozenset().union(*set(subscriptions.values()))):
            topic = self._state.image.topics.get(name)
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
        decision: GroupDecision,
    ) -> dict[str, Assignment]:
        """A new target assignment; only what differs is written."""
        topics = self._state.image.topics
        different = set(subscriptions.values())  # most members subscribe to the same
        ids = {names: frozenset(topics[name].topic_id for name in names if name in topics) for names in different}
        by_id = {member_id: ids[names] for member_id, names in subscriptions.items()}
        wanted = [topics[name] for name in frozenset().union(*different) if name in topics]
        counts = {topic.topic_id: len(topic.partitions) for topic in wanted}
        votes = ConsumerGroup(group_id=group.group_id, members=dict(members))
        assignor = votes.preferred_assignor(self._state.config.consumer_assignors[0])
        # Static members keep their place when they come back under a new id.
        names = {member_id: member.instance_id or member_id for member_id, member in members.items()}
        target = ASSIGNORS[assignor](by_id, counts, before, names)
        changed = [key for key, assignment in target.items() if key not in before or before[key] != assignment]
        for member_id in sorted(changed):
            decision.records.append(target_record(group.group_id, member_id, target[member_id]))
        decision.records.append(assignment_record(group.group_id, epoch, decision.wall_ms))
        return target

    @staticmethod
    def note_rebalance(
        group: ConsumerGroup,
        epoch: int,
        count: int,
        cause: RebalanceCause,
        reason: str,
        decision: GroupDecision,
    ) -> None:
        """Remember that a new epoch begins."""
        rebalance = Rebalance(at_ms=decision.wall_ms, generation=epoch, members=count, cause=cause, reason=reason)
        decision.note_rebalance(group.rebalances, rebalance, group_id=group.group_id)


def _reconcile(
    members: Mapping[str, ConsumerMember],
    member: ConsumerMember,
    target_epoch: int,
    target: Assignment,
    owned: Assignment | None,
) -> ConsumerMember:
    """Move a member as far towards its target as is possible now."""
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
    others = [other for key, other in members.items() if key != member.member_id]
    got: dict[Uuid, frozenset[int]] = {}
    has_unreleased = False
    for topic, indexes in target.items():
        available = indexes - held(others, topic, indexes)
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
