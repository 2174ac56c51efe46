"""The end of a membership in a consumer group, and of the consumer protocol in a group whose last such member goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hailbus_broker.coordinators.group.consumer_records import (
    group_epoch_record,
    group_removal_records,
    member_removal_records,
)
from hailbus_broker.coordinators.group.migration import to_classic
from hailbus_broker.coordinators.group.rebalances import RebalanceCause
from hailbus_broker.coordinators.numbering import following

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from hailbus_broker.coordinators.group.classic import ClassicGroup
    from hailbus_broker.coordinators.group.consumer import ConsumerGroup, ConsumerMember
    from hailbus_broker.coordinators.group.decision import GroupDecision
    from hailbus_broker.coordinators.group.reconciliation import Reconciliation
    from hailbus_broker.coordinators.group.state import GroupState


class ConsumerRemovals:
    """Removes members of consumer groups.

    Args:
        state: What is decided on.
        reconciliation: Knows the topics that a group subscribes to.
        adopt_classic: Takes over a group that has only members of the classic protocol left.
    """

    def __init__(
        self,
        state: GroupState,
        reconciliation: Reconciliation,
        adopt_classic: Callable[[ClassicGroup, str, GroupDecision], None],
    ) -> None:
        self._state: Final = state
        self._reconciliation: Final = reconciliation
        self._adopt_classic: Final = adopt_classic

    def remove(
        self,
        group: ConsumerGroup,
        member_ids: Collection[str],
        cause: RebalanceCause,
        reason: str,
        decision: GroupDecision,
    ) -> None:
        """Remove members, which begins a new epoch."""
        rest = {key: member for key, member in group.members.items() if key not in member_ids}
        if rest and self._state.config.can_downgrade and all(member.is_classic for member in rest.values()):
            self._downgrade(group, rest, reason, decision)
            return
        for member_id in member_ids:
            decision.records += member_removal_records(group.group_id, member_id)
        epoch = following(group.group_epoch)
        subscriptions = {
            key: member.subscribed_topics | group.regex_topics.get(member.subscribed_regex, frozenset())
            for key, member in rest.items()
        }
        subscription_hash = self._reconciliation.subscription_hash(subscriptions)
        decision.records.append(group_epoch_record(group.group_id, epoch, subscription_hash))
        self._reconciliation.note_rebalance(group, epoch, len(rest), cause, reason, decision)

    def _downgrade(
        self, group: ConsumerGroup, rest: Mapping[str, ConsumerMember], reason: str, decision: GroupDecision
    ) -> None:
        """Turn a consumer group into a classic group, once all its members use the classic protocol."""
        for member_id in sorted(group.members):
            decision.records += member_removal_records(group.group_id, member_id)
        decision.records += group_removal_records(group)
        members = (rest[key] for key in sorted(rest))
        self._adopt_classic(to_classic(group, members, self._state.image), reason, decision)
        decision.log_events.append(("group_downgraded", {"group": group.group_id, "members": len(rest)}))

    def member_due(self, group: ConsumerGroup, member_id: str, decision: GroupDecision) -> None:
        """Remove a member whose session or revocation deadline has passed; otherwise schedule the next check."""
        state, key, now_ms = self._state, (group.group_id, member_id), decision.now_ms
        if member_id not in group.members:
            state.drop_deadlines(key)
        elif state.revocation_deadlines.get(key, now_ms + 1) <= now_ms:
            reason = f"member {member_id} did not give its partitions up in time"
            self.remove(group, [member_id], RebalanceCause.REVOCATION_TIMED_OUT, reason, decision)
        elif state.session_deadlines.get(key, now_ms + 1) <= now_ms:
            reason = f"member {member_id} was silent for its session timeout"
            self.remove(group, [member_id], RebalanceCause.SESSION_EXPIRED, reason, decision)
        else:
            state.arm(key)
