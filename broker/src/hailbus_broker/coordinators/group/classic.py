"""The classic group protocol's state: who is in a group, which generation it is in, what each member was assigned.

| state | a join | a sync | completes |
|---|---|---|---|
| Empty | starts a rebalance | refused | |
| PreparingRebalance | waits | refused: rejoin | all joined, or the rebalance timeout passed → CompletingRebalance |
| CompletingRebalance | restarts, unless it changes nothing | waits | the leader's sync → Stable |
| Stable | restarts, unless it changes nothing | answered | |
| Dead | refused | refused | |

Durable (in GroupMetadataValue records): generation, protocol, leader, members with subscription and assignment.
Not durable: what is joining, waiting, or due; after a restart every member has a fresh session.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from hailbus_broker.coordinators.group.rebalances import RebalanceHistory

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hailbus_broker.coordinators.outcome import Token
    from hailbus_broker.protocol.definitions.join_group_response import JoinGroupResponse
    from hailbus_broker.protocol.definitions.sync_group_response import SyncGroupResponse


class ClassicState(StrEnum):
    """Names as DescribeGroups gives them."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


TRANSITIONS: Final[dict[ClassicState, frozenset[ClassicState]]] = {
    ClassicState.EMPTY: frozenset({ClassicState.PREPARING_REBALANCE, ClassicState.DEAD}),
    ClassicState.PREPARING_REBALANCE: frozenset({ClassicState.COMPLETING_REBALANCE, ClassicState.EMPTY}),
    ClassicState.COMPLETING_REBALANCE: frozenset({ClassicState.STABLE, ClassicState.PREPARING_REBALANCE}),
    ClassicState.STABLE: frozenset({ClassicState.PREPARING_REBALANCE}),
    ClassicState.DEAD: frozenset(),
}
"""Which state may follow which. A restart begins with what was recorded last, which is Empty or Stable."""

WITHOUT_MEMBERS: Final = frozenset({ClassicState.EMPTY, ClassicState.DEAD})


class Protocols:
    """What a member can work with: names and its subscription for each, the one that it likes best first.

    Attributes:
        entries: Names and subscriptions.
        names: The names alone: a join compares them with those of all other members.
    """

    __slots__ = ("entries", "names")

    def __init__(self, entries: Iterable[tuple[str, bytes]]) -> None:
        self.entries: Final = tuple(entries)
        self.names: Final = frozenset(name for name, _ in self.entries)

    def __eq__(self, other: object) -> bool:
        """Compare the entries."""
        return isinstance(other, Protocols) and self.entries == other.entries

    def __hash__(self) -> int:
        """Hash the entries."""
        return hash(self.entries)


class Member(NamedTuple):
    """One consumer. `join_token` and `sync_token` are its requests that wait for an answer."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    join_token: Token[JoinGroupResponse] | None = None
    sync_token: Token[SyncGroupResponse] | None = None
    is_new: bool = False

    def metadata(self, protocol: str | None) -> bytes:
        """The subscription for a protocol."""
        return next((data for name, data in self.protocols.entries if name == protocol), b"")


@dataclass(slots=True, kw_only=True)
class ClassicGroup:
    """One group.

    Attributes:
        state_since_ms: By the wall clock, as it is recorded: how long a group has been empty counts beyond a restart.
        join_deadline_ms: When a rebalance stops waiting for members that have not rejoined; None while there is none.
        join_remaining_ms: Of a group's first rebalance: for how long it may still be put off for newcomers.
        has_changed_over: Whether it was a consumer group a moment ago, for `change_reason`: its members have to rejoin.
        pending: Member ids that were given out and not used yet, with the time at which they lapse.
    """

    group_id: str
    state: ClassicState = ClassicState.EMPTY
    state_since_ms: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    generation: int = 0
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    pending: dict[str, int] = field(default_factory=dict)
    join_deadline_ms: int | None = None
    join_remaining_ms: int | None = None
    has_newcomers: bool = False
    sync_deadline_ms: int | None = None
    rebalances: RebalanceHistory = field(default_factory=RebalanceHistory)
    has_changed_over: bool = False
    change_reason: str = ""

    def copy(self) -> ClassicGroup:
        """Return a group that a decision can change.

        Members are immutable and shared, and so is the history, which grows only when a decision is installed.
        """
        return ClassicGroup(
            group_id=self.group_id,
            state=self.state,
            state_since_ms=self.state_since_ms,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            generation=self.generation,
            leader=self.leader,
            members=self.members.copy(),
            static_members=self.static_members.copy(),
            pending=self.pending.copy(),
            join_deadline_ms=self.join_deadline_ms,
            join_remaining_ms=self.join_remaining_ms,
            has_newcomers=self.has_newcomers,
            sync_deadline_ms=self.sync_deadline_ms,
            rebalances=self.rebalances,
            has_changed_over=self.has_changed_over,
            change_reason=self.change_reason,
        )

    def move_to(self, state: ClassicState, wall_ms: int) -> None:
        """Change state, along the table above only."""
        assert state in TRANSITIONS[self.state], f"{self.group_id}: {self.state} → {state}"
        self.state = state
        self.state_since_ms = wall_ms

    def recorded(self, wall_ms: int) -> None:
        """A record of the group was replayed: the end of a rebalance, or what a restart begins with."""
        state = ClassicState.STABLE if self.members else ClassicState.EMPTY
        if self.state is ClassicState.COMPLETING_REBALANCE:
            self.move_to(state, wall_ms)
        else:
            self.state, self.state_since_ms = state, wall_ms

    def add(self, member: Member) -> None:
        """Take a member in; the first one leads."""
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def put(self, member: Member) -> Member:
        """Replace a member by its newer state."""
        self.members[member.member_id] = member
        return member

    def remove(self, members: Iterable[Member]) -> None:
        """Take members out; if the leader is one of them, another one leads, preferably one that has joined already."""
        for member in members:
            self._take_out(member)
        if self.leader is not None and self.leader not in self.members:
            self.leader = self._elected()

    def _take_out(self, member: Member) -> None:
        self.members.pop(member.member_id, None)
        if (
            member.group_instance_id is not None
            and self.static_members.get(member.group_instance_id) == member.member_id
        ):
            del self.static_members[member.group_instance_id]

    def _elected(self) -> str | None:
        return next(
            (other.member_id for other in self.members.values() if other.join_token is not None),
            next(iter(self.members), None),
        )

    def common_protocols(self) -> frozenset[str]:
        """Names of the protocols that every member knows."""
        sets = [member.protocols.names for member in self.members.values()]
        return frozenset.intersection(*sets) if sets else frozenset()

    def select_protocol(self) -> str:
        """The protocol that most members like best, among those that all know; in a tie the first voter's."""
        candidates = self.common_protocols()
        votes: dict[str, int] = {}
        for member in self.members.values():
            vote = next(name for name, _ in member.protocols.entries if name in candidates)
            votes[vote] = votes.get(vote, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def rebalance_timeout_ms(self) -> int:
        """The longest that any member may take to rejoin."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)
