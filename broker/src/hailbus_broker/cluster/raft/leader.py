"""What a leader of the quorum knows of the other replicas: what is committed, and whether it may go on leading."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hailbus_broker.cluster.raft.voters import ReplicaKey, Voter, VoterSet
    from hailbus_broker.records import LeaderEpoch, Offset

UNKNOWN = -1


@dataclass(slots=True)
class Progress:
    """How far a replica is.

    Attributes:
        key: The replica, with the directory that it named last.
        end_offset: What it has on its disk, exclusive; -1 before its first fetch.
        last_fetch_ms: -1 before its first fetch.
        last_caught_up_ms: When it last had everything that the leader had, -1 for never.
        fetch_end_offset: End of the leader's log at its last fetch.
        has_acknowledged: Whether it knows of the epoch.
    """

    key: ReplicaKey
    end_offset: Offset = UNKNOWN
    last_fetch_ms: int = UNKNOWN
    last_caught_up_ms: int = UNKNOWN
    fetch_end_offset: Offset = UNKNOWN
    has_acknowledged: bool = False

    def fetched(self, end_offset: Offset, leader_end_offset: Offset, now_ms: int) -> None:
        """The replica has asked for records from an offset, so it has all before it."""
        if end_offset >= leader_end_offset:
            self.last_caught_up_ms = now_ms
        elif self.last_fetch_ms != UNKNOWN and end_offset >= self.fetch_end_offset:
            # It has now what was there at its fetch before.
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.end_offset = max(self.end_offset, end_offset)
        self.fetch_end_offset = leader_end_offset
        self.last_fetch_ms = now_ms
        self.has_acknowledged = True


class Leader:
    """The leadership of one epoch.

    Args:
        local: The leader itself.
        epoch: That it leads.
        from_offset: Of the first record of the epoch: nothing is committed before this record is (Raft, section 5.4.2).
        voters: At the election.
        now_ms: Time.

    Attributes:
        described: Voters as they have described themselves in this epoch, as long as the configuration names them.
    """

    def __init__(
        self, local: ReplicaKey, epoch: LeaderEpoch, *, from_offset: Offset, voters: VoterSet, now_ms: int
    ) -> None:
        self.local = local
        self.epoch = epoch
        self.from_offset = from_offset
        self.since_ms = now_ms
        self.voters: dict[int, Progress] = {}
        self.described: dict[int, Voter] = {}
        self.observers: dict[ReplicaKey, Progress] = {}
        self.set_voters(voters)

    def set_voters(self, voters: VoterSet) -> None:
        """Other voters decide from now on."""
        before = self.voters
        self.voters = {}
        for voter in voters:
            progress = before.get(voter.key.node_id)
            if progress is None or not progress.key.matches(voter.key):
                progress = self.observers.pop(voter.key, None) or Progress(voter.key)
            self.voters[voter.key.node_id] = progress
        for node_id, progress in before.items():
            if self.voters.get(node_id) is not progress and progress.last_fetch_ms != UNKNOWN:
                self.observers[progress.key] = progress

    @property
    def depends_on_others(self) -> bool:
        """Whether there are voters besides the leader, which may be none itself."""
        return any(node_id != self.local.node_id for node_id in self.voters)

    def progress_of(self, replica: ReplicaKey) -> Progress:
        """How far a replica is, that of a new observer included."""
        voter = self.voters.get(replica.node_id)
        if voter is not None and voter.key.matches(replica):
            if replica.directory_id is not None:
                voter.key = replica
            return voter
        observer = self.observers.get(replica)
        if observer is None:
            observer = self.observers[replica] = Progress(replica)
        return observer

    def forget_observers(self, before_ms: int) -> None:
        """Forget observers that have not fetched since."""
        for key in [key for key, progress in self.observers.items() if progress.last_fetch_ms < before_ms]:
            del self.observers[key]

    def commit_offset(self, synced_end_offset: Offset) -> Offset:
        """What a majority of the voters has on its disks, exclusive; -1 while nothing of this epoch is.

        Args:
            synced_end_offset: Of the leader itself; it counts if it is a voter.
        """
        ends = sorted(
            (
                synced_end_offset if node_id == self.local.node_id else progress.end_offset
                for node_id, progress in self.voters.items()
            ),
            reverse=True,
        )
        offset = ends[len(ends) // 2]
        return offset if offset > self.from_offset else UNKNOWN

    def heard_of_majority_ms(self) -> int:
        """The latest time since when a majority of the voters, the leader included, has fetched.

        There is at least one voter besides the leader.
        """
        times = sorted(
            (
                max(progress.last_fetch_ms, self.since_ms)
                for node_id, progress in self.voters.items()
                if node_id != self.local.node_id
            ),
            reverse=True,
        )
        return times[(len(self.voters) // 2) - (self.local.node_id in self.voters)]

    def successors(self) -> tuple[ReplicaKey, ...]:
        """The other voters, those with the longest logs first."""
        others = [progress for node_id, progress in self.voters.items() if node_id != self.local.node_id]
        return tuple(
            progress.key
            for progress in sorted(others, key=lambda progress: (-progress.end_offset, progress.key.node_id))
        )
