"""The state that the parts of a replica share: its epoch, its role, and the ways from one role to another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hailbus_broker.cluster.raft.effects import Committed, Effect, Follows, Leads, Persist, Send
from hailbus_broker.cluster.raft.election_state import ElectionState
from hailbus_broker.cluster.raft.leader import Leader
from hailbus_broker.cluster.raft.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    Leadership,
    Request,
)
from hailbus_broker.cluster.raft.requests import Outstanding, Requests
from hailbus_broker.cluster.raft.roles import Candidate, Follower, Prospective, Resigned, Role, Unattached, Votes
from hailbus_broker.cluster.raft.voters import (
    DYNAMIC_VOTERS,
    Endpoint,
    ReplicaKey,
    Voter,
    VoterHistory,
    VoterSet,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from hailbus_broker.cluster.raft.log import RaftLog
    from hailbus_broker.cluster.raft.settings import RaftSettings
    from hailbus_broker.records import LeaderEpoch, Offset


_DOUBLINGS: Final[dict[type[Request], int]] = {BeginQuorumEpochRequest: 5, EndQuorumEpochRequest: 5}
"""How often the pause between repetitions of a request doubles, where that is not twice."""


class RaftError(Exception):
    """The quorum's promises do not hold any more: the node must stop."""


class Quorum:
    """Who leads the quorum, as far as one replica knows, and what the replica does about it.

    Args:
        replica: This one.
        cluster_id: Requests of another cluster are refused.
        log: Its log.
        state: What it knew of elections when it stopped.
        history: The voters that its log and its configuration name.
        settings: Timeouts.
        chance: For timeouts that differ.
        endpoints: Where this node listens, for the others.
        high_watermark: What is known to be committed: the end of the snapshot that the log begins with.
        now_ms: Time.

    Attributes:
        epoch: The newest that the replica knows of.
        leader_id: Of the node that leads it; None if nobody is known to.
        voted: Who got the replica's vote in the epoch.
        role: What the replica is in the epoch.
        high_watermark: Everything below this offset is committed.
        effects: What has to be done, in order.
        requests: Those that wait for their answers.
        lost_elections: Since a leader was last known.
    """

    def __init__(
        self,
        *,
        replica: ReplicaKey,
        cluster_id: str,
        log: RaftLog,
        state: ElectionState,
        history: VoterHistory,
        settings: RaftSettings,
        chance: random.Random,
        endpoints: tuple[Endpoint, ...],
        high_watermark: Offset,
        now_ms: int,
    ) -> None:
        self.replica: Final = replica
        self.cluster_id: Final = cluster_id
        self.log: Final = log
        self.history: Final = history
        self.settings: Final = settings
        self.endpoints: Final = endpoints
        self.effects: list[Effect] = []
        self.requests: Final = Requests()
        self.lost_elections = 0
        self.high_watermark = high_watermark
        self.chance: Final = chance
        self._leader_endpoints: tuple[Endpoint, ...] = ()
        self._persisted = state
        self.epoch: LeaderEpoch = state.epoch
        self.leader_id: int | None = state.leader_id
        self.voted: ReplicaKey | None = state.voted
        if log.end.epoch > self.epoch:
            self.epoch, self.leader_id, self.voted = log.end.epoch, None, None
        if self.leader_id == replica.node_id:
            # It may have lost records that others have, so it does not lead the same epoch again, nor elect another.
            self.leader_id, self.voted = None, replica
        self.role: Role = Unattached(self.election_deadline(now_ms) if self.is_electable else None)
        if self.voters.is_only(replica):
            # Nobody else could lead: there is no reason to wait.
            self.become_candidate(now_ms)

    # ------------------------------------------------------------------ questions

    @property
    def voters(self) -> VoterSet:
        """By whom elections and commits are decided."""
        return self.history.current

    @property
    def is_voter(self) -> bool:
        """Whether this replica votes."""
        return self.voters.has(self.replica)

    @property
    def is_electable(self) -> bool:
        """Whether this replica asks for elections.

        A leader that removes itself does so until the record is committed: it may be the only one that has the record,
        and a voter without it cannot win against the longer log (Raft thesis, section 4.2.2).
        """
        return self.is_voter or self.history.was_voter(self.replica, self.high_watermark)

    @property
    def local_voter(self) -> Voter:
        """This replica as a voter."""
        return Voter(self.replica, self.endpoints)

    @property
    def leadership(self) -> Leadership:
        """Who leads, as far as this replica knows."""
        endpoints = self.endpoints if isinstance(self.role, Leader) else self._leader_endpoints
        return Leadership(leader_id=self.leader_id, leader_epoch=self.epoch, leader_endpoints=endpoints)

    @property
    def is_on_disk(self) -> bool:
        """Whether the whole log is."""
        return self.log.synced_end_offset >= self.log.end.end_offset

    def has_other_id(self, cluster_id: str | None) -> bool:
        """Whether a request comes from another cluster."""
        return cluster_id is not None and cluster_id != self.cluster_id

    def election_deadline(self, now_ms: int) -> int:
        """When an election that begins now has taken too long; by chance, so that two rarely end together."""
        timeout_ms = self.settings.election_timeout_ms
        return now_ms + timeout_ms + self.chance.randint(0, timeout_ms)

    def turn(self, now_ms: int, order: Sequence[int]) -> int:
        """When this voter asks for an election, so that one voter does it after the other.

        Args:
            now_ms: Time.
            order: Node ids; a voter that is not among them comes last.
        """
        rank = order.index(self.replica.node_id) if self.replica.node_id in order else len(order)
        return now_ms + rank * self.settings.suspicion_stagger_ms

    # ------------------------------------------------------------------ effects

    def persist(self) -> None:
        """Have the election state written, if it is another than before."""
        state = ElectionState(epoch=self.epoch, leader_id=self.leader_id, voted=self.voted)
        if state == self._persisted:
            return
        self._persisted = state
        if self.effects and isinstance(self.effects[-1], Persist):
            self.effects.pop()
        self.effects.append(Persist(state))

    def commit_up_to(self, offset: Offset) -> None:
        """Everything below an offset is committed."""
        if offset > self.high_watermark:
            self.high_watermark = offset
            self.effects.append(Committed(offset))

    def send(self, to: int, endpoint: Endpoint, request: Request) -> bool:
        """Send a request, unless one of its kind waits for its answer or for the end of a pause."""
        if not self.requests.is_free(to, type(request)):
            return False
        self.effects.append(Send(self.requests.begin(to, request), to, endpoint, request))
        return True

    def back_off(self, outstanding: Outstanding, now_ms: int) -> None:
        """Pause after a request that was refused."""
        self.requests.pause(outstanding.to, type(outstanding.request), now_ms + self.settings.retry_backoff_ms)

    def back_off_longer(self, outstanding: Outstanding, now_ms: int) -> None:
        """Pause after a request that got no response, longer each time.

        Elections wait for responses, so their requests are repeated sooner than what a leader announces.
        """
        doublings = min(self.requests.unanswered(outstanding), _DOUBLINGS.get(type(outstanding.request), 2))
        pause_ms = self.settings.retry_backoff_ms << doublings
        self.requests.pause(outstanding.to, type(outstanding.request), now_ms + pause_ms)

    # ------------------------------------------------------------------ changes of role

    def change(self, role: Role) -> None:
        """Take another role."""
        was_leading = isinstance(self.role, Leader)
        self.role = role
        self.requests.clear()
        self.persist()
        if isinstance(role, Follower):
            self.effects.append(Follows(self.epoch, role.leader_id))
        elif isinstance(role, (Unattached, Resigned)) or was_leading:
            self.effects.append(Follows(self.epoch, None))

    def enter(self, epoch: LeaderEpoch) -> None:
        """Enter an epoch, about which nothing else is known."""
        assert epoch >= self.epoch, (epoch, self.epoch)
        if epoch > self.epoch:
            self.epoch, self.leader_id, self.voted = epoch, None, None
            self._leader_endpoints = ()

    def become_unattached(self, epoch: LeaderEpoch, now_ms: int) -> None:
        """Look for the leader of an epoch."""
        deadline_ms = self.election_deadline(now_ms) if self.is_electable else None
        self.enter(epoch)
        self.change(Unattached(deadline_ms, next_search_ms=now_ms + self.settings.retry_backoff_ms))

    def follow(self, leader_id: int, epoch: LeaderEpoch, endpoints: tuple[Endpoint, ...], now_ms: int) -> None:
        """Follow a leader.

        Raises:
            RaftError: The epoch has another leader.
        """
        role = self.role
        if epoch == self.epoch:
            if leader_id == self.replica.node_id:
                return
            if self.leader_id is not None and self.leader_id != leader_id:
                raise RaftError(f"epoch {epoch} has the leaders {self.leader_id} and {leader_id}")
            if isinstance(role, Leader):
                raise RaftError(f"epoch {epoch} has the leaders {self.replica.node_id} and {leader_id}")
            if isinstance(role, Follower):
                return
        self.enter(epoch)
        self.leader_id = leader_id
        self._leader_endpoints = endpoints
        self.lost_elections = 0
        self.change(Follower(leader_id, endpoints[0], now_ms + self.settings.fetch_timeout_ms))

    def suspect(self, role: Follower, now_ms: int, order: Sequence[int] | None = None) -> None:
        """The leader seems to be gone: ask for an election soon, and grant one to others.

        Args:
            role: Of this replica.
            now_ms: Time.
            order: In which the voters ask; None for the order of their ids.
        """
        if order is None:
            order = [node_id for node_id in self.voters.ids if node_id != role.leader_id]
        role.is_leader_suspected = True
        role.deadline_ms = min(role.deadline_ms, self.turn(now_ms, order))

    def become_prospective(self, now_ms: int) -> None:
        """Ask whether an election would be won."""
        endpoint = self.role.endpoint if isinstance(self.role, (Follower, Prospective)) else None
        role = Prospective(Votes({self.replica.node_id}), self.election_deadline(now_ms), endpoint)
        self.change(role)
        if role.votes.is_won(self.voters):
            self.become_candidate(now_ms)

    def give_up_prospect(self, role: Prospective, now_ms: int) -> None:
        """Go back to the leader that is known, or look for one."""
        if self.leader_id is not None and role.endpoint is not None:
            follower = Follower(self.leader_id, role.endpoint, now_ms + self.settings.fetch_timeout_ms)
            self.change(follower)
            return
        self.become_unattached(self.epoch, now_ms)

    def become_candidate(self, now_ms: int) -> None:
        """Begin an election."""
        self.enter(self.epoch + 1)
        self.voted = self.replica
        role = Candidate(Votes({self.replica.node_id}), self.election_deadline(now_ms))
        self.change(role)
        if role.votes.is_won(self.voters):
            self.become_leader(role, now_ms)

    def become_leader(self, role: Candidate, now_ms: int) -> None:
        """Lead the epoch."""
        from_offset = self.log.end.end_offset
        self.leader_id = self.replica.node_id
        self.lost_elections = 0
        leader = Leader(self.replica, self.epoch, from_offset=from_offset, voters=self.voters, now_ms=now_ms)
        self.change(leader)
        self.log.append_start_of_epoch(
            self.epoch,
            leader_id=self.replica.node_id,
            voters=self.voters,
            granting=sorted(role.votes.granted),
        )
        if self.history.kraft_version >= DYNAMIC_VOTERS and self.history.voters_offset < 0:
            # `format` has named them: from here on the log does, for those who have not been formatted so.
            self.append_voters(self.voters, level=self.history.kraft_version)
        self.effects.append(Leads(self.epoch, from_offset))

    def append_voters(self, voters: VoterSet, *, level: int | None = None) -> Offset:
        """Append voters, and a level of `kraft.version`, to the log, and return the offset of the voters."""
        offset = self.log.append_voters(self.epoch, voters, level=level)
        if level is not None:
            self.history.add_level(offset - 1, level)
        self.history.add_voters(offset, voters)
        return offset

    def become_resigned(self, role: Leader, now_ms: int) -> None:
        """Lead no more."""
        successors = role.successors()
        self.leader_id = None
        not_told = {successor.node_id for successor in successors}
        self.change(Resigned(self.election_deadline(now_ms), successors, not_told))
