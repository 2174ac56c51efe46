"""The roles of a replica of the metadata log. One that leads is a `Leader`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from hailbus_broker.cluster.raft.leader import Leader
from hailbus_broker.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from hailbus_broker.cluster.metadata.snapshot import SnapshotId
    from hailbus_broker.cluster.raft.messages import VoteResponse
    from hailbus_broker.cluster.raft.voters import Endpoint, ReplicaKey, VoterSet
    from hailbus_broker.records import Offset


@dataclass(slots=True)
class Unattached:
    """Knows an epoch and no leader to fetch from; it looks for one.

    Attributes:
        deadline_ms: When a voter asks for an election; None for an observer.
        next_search_ms: When it asks the next node who leads.
        leaderless: Nodes that know no leader, either.
    """

    deadline_ms: int | None
    next_search_ms: int = 0
    leaderless: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Download:
    """A snapshot on its way."""

    snapshot: SnapshotId
    data: bytearray = field(default_factory=bytearray)
    is_complete: bool = False


@dataclass(slots=True)
class Follower:
    """Fetches from the leader.

    Attributes:
        deadline_ms: When the replica gives the leader up: it could not fetch for too long.
        has_fetched: Whether it ever could: then it does not help others to an election (KIP-996).
        is_leader_suspected: Whether the leader seems to be gone, or said that it goes: then it does.
        leader_high_watermark: As the leader said last; it counts as far as the log is known to be the leader's.
        download: A snapshot that has to come first.
        next_change_ms: When the replica may ask the leader again for a change of the voters that concerns itself.
        has_described_itself: Whether the leader knows this voter's endpoints and versions, where no record has them.
    """

    leader_id: int
    endpoint: Endpoint
    deadline_ms: int
    has_fetched: bool = False
    is_leader_suspected: bool = False
    leader_high_watermark: Offset = -1
    download: Download | None = None
    next_change_ms: int = 0
    has_described_itself: bool = False

    def answered(self, deadline_ms: int) -> None:
        """Trust the leader until the deadline, because it has answered."""
        self.deadline_ms = deadline_ms
        self.has_fetched = True
        self.is_leader_suspected = False


@dataclass(slots=True)
class Votes:
    """The answers of an election."""

    granted: set[int] = field(default_factory=set)
    rejected: set[int] = field(default_factory=set)

    def count(self, voter_id: int, response: VoteResponse) -> None:
        """Count an answer; an error is a no."""
        is_granted = response.error is ErrorCode.NONE and response.is_granted
        (self.granted if is_granted else self.rejected).add(voter_id)

    def is_won(self, voters: VoterSet) -> bool:
        """Whether a majority said yes."""
        return len(self.granted & set(voters.ids)) >= voters.majority

    def is_lost(self, voters: VoterSet) -> bool:
        """Whether no majority can say yes any more."""
        return len(set(voters.ids) - self.rejected) < voters.majority


@dataclass(slots=True)
class Prospective:
    """Asks the voters whether they would vote for it, before it disturbs anybody with a new epoch (KIP-996).

    Attributes:
        deadline_ms: When it gives up.
        endpoint: Of the leader that is known in the epoch, if one is.
    """

    votes: Votes
    deadline_ms: int
    endpoint: Endpoint | None = None


@dataclass(slots=True)
class Candidate:
    """Asks the voters for their votes in a new epoch.

    Attributes:
        deadline_ms: When it gives up, or, after a lost election, when it tries again.
    """

    votes: Votes
    deadline_ms: int
    is_lost: bool = False


@dataclass(slots=True)
class Resigned:
    """Has led the epoch, and does no more; it tells the others until one of them begins a new epoch.

    Attributes:
        deadline_ms: When it takes part in a new election itself.
        successors: The other voters, those with the longest logs first.
        not_told: Voters that have not acknowledged.
    """

    deadline_ms: int
    successors: tuple[ReplicaKey, ...]
    not_told: set[int]


Role: TypeAlias = Unattached | Follower | Prospective | Candidate | Leader | Resigned
