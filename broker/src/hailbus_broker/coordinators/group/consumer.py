"""The consumer group protocol's state (KIP-848): the server assigns, and each member gets there by itself.

| epoch | grows when |
|---|---|
| group epoch | members, subscriptions or the topics' partitions change |
| assignment epoch | a new target assignment was computed for the group epoch |
| member epoch | the member has given up what it must, and knows what it gets |

| member state | means | ends when |
|---|---|---|
| Stable | owns its target assignment | the target changes |
| UnrevokedPartitions | must revoke partitions | it reports that it has |
| UnreleasedPartitions | waits for partitions that another member still owns | that member revokes them |

Durable: everything but the deadlines of sessions and revocations, which a restart sets again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from hailbus_broker.coordinators.group.assignors import Assignment
from hailbus_broker.coordinators.group.rebalances import RebalanceHistory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hailbus_broker.protocol.schema import Uuid

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2


class MemberState(IntEnum):
    """The state that ConsumerGroupCurrentMemberAssignmentValue stores.

    Each can follow each, since every heartbeat compares with the newest target.
    """

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """One member: what it asked for, and how far it has come."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    subscribed_topics: frozenset[str] = frozenset()
    subscribed_regex: str = ""
    server_assignor: str | None = None
    member_epoch: int = 0
    previous_member_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Assignment = field(default_factory=dict)
    pending_revocation: Assignment = field(default_factory=dict)
    classic_session_timeout_ms: int | None = None
    classic_protocols: tuple[tuple[str, bytes], ...] = ()

    @property
    def is_classic(self) -> bool:
        """Whether the member speaks the classic protocol: its group has changed over (see `migration`)."""
        return self.classic_session_timeout_ms is not None


@dataclass(slots=True, kw_only=True)
class ConsumerGroup:
    """One group.

    Attributes:
        subscription_hash: Of the subscribed topics with their ids and partition counts, when the epoch last grew.
        target: Target assignment by member.
        regex_topics: What each regular expression matched last.
        image_version: Of the metadata that all this was computed from; not durable.
    """

    group_id: str
    group_epoch: int = 0
    assignment_epoch: int = 0
    subscription_hash: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    target: dict[str, Assignment] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    regex_topics: dict[str, frozenset[str]] = field(default_factory=dict)
    image_version: int = -1
    rebalances: RebalanceHistory = field(default_factory=RebalanceHistory)

    def state(self) -> str:
        """As ListGroups and ConsumerGroupDescribe show it."""
        if not self.members:
            return "Empty"
        if self.group_epoch > self.assignment_epoch:
            return "Assigning"
        if all(
            member.state is MemberState.STABLE and member.member_epoch == self.assignment_epoch
            for member in self.members.values()
        ):
            return "Stable"
        return "Reconciling"

    def preferred_assignor(self, default: str) -> str:
        """The assignor that most members ask for."""
        votes: dict[str, int] = {}
        for member in self.members.values():
            if member.server_assignor is not None:
                votes[member.server_assignor] = votes.get(member.server_assignor, 0) + 1
        return max(votes, key=lambda name: votes[name]) if votes else default


def held(members: Iterable[ConsumerMember], topic: Uuid, indexes: frozenset[int]) -> frozenset[int]:
    """Return those of some partitions that members have, or have not given up yet."""
    found: frozenset[int] = frozenset()
    for member in members:
        for partitions in (member.assigned, member.pending_revocation):
            of_topic = partitions.get(topic)
            if of_topic is not None and not indexes.isdisjoint(of_topic):
                found |= indexes & of_topic
    return found


def without_empty(assignment: Mapping[Uuid, frozenset[int]]) -> dict[Uuid, frozenset[int]]:
    """The same assignment without topics that have no partitions in it."""
    return {topic: partitions for topic, partitions in assignment.items() if partitions}


def contains(outer: Assignment, inner: Mapping[Uuid, Iterable[int]]) -> bool:
    """Whether all of one assignment's partitions are in the other."""
    return all(set(partitions) <= outer.get(topic, frozenset()) for topic, partitions in inner.items())


def intersects(one: Assignment, other: Mapping[Uuid, Iterable[int]]) -> bool:
    """Whether two assignments have a partition in common."""
    return any(not one.get(topic, frozenset()).isdisjoint(partitions) for topic, partitions in other.items())
