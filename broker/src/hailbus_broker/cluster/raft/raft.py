"""The state machine of a replica of the metadata log: elections, replication by fetches, commits (KIP-595).

Input are requests, responses, the passing of time and the news that the log has reached the disk; output is a list of
effects, which the driver carries out in order. So a vote is on the disk before anybody hears of it, and a fetch tells
the leader only of what is on the disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hailbus_broker.cluster.raft.effects import Effect, Reply
from hailbus_broker.cluster.raft.following import Following
from hailbus_broker.cluster.raft.leader import Leader
from hailbus_broker.cluster.raft.messages import (
    AddVoterRequest,
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RemoveVoterRequest,
    Request,
    Response,
    SupportedVersionsRequest,
    SupportedVersionsResponse,
    UpdateVoterRequest,
    VoteRequest,
    VoteResponse,
)
from hailbus_broker.cluster.raft.roles import Candidate, Follower, Prospective, Resigned, Unattached
from hailbus_broker.cluster.raft.serving import Serving
from hailbus_broker.cluster.raft.voter_changes import VoterChanges
from hailbus_broker.cluster.raft.voting import Voting
from hailbus_broker.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hailbus_broker.cluster.metadata.snapshot import SnapshotId
    from hailbus_broker.cluster.raft.quorum import Quorum
    from hailbus_broker.cluster.raft.voters import Endpoint, VoterSet
    from hailbus_broker.records import Offset


class Raft:
    """One replica.

    Args:
        quorum: Its state.
        bootstrap: Where a node that knows no voter asks for the leader.
    """

    def __init__(self, quorum: Quorum, *, bootstrap: Sequence[Endpoint] = ()) -> None:
        self.quorum: Final = quorum
        self._voting: Final = Voting(quorum)
        self._serving: Final = Serving(quorum)
        self._following: Final = Following(quorum, bootstrap)
        self._changes: Final = VoterChanges(quorum)

    def take_effects(self) -> list[Effect]:
        """What has to be done since the last call, in this order."""
        effects, self.quorum.effects = self.quorum.effects, []
        return effects

    def deadline_ms(self) -> int | None:
        """When `tick` has something to do at the latest; None if only input can change anything."""
        role = self.quorum.role
        times: list[int] = self._serving.deadlines_ms()
        change_ms = self._changes.deadline_ms()
        if change_ms is not None:
            times.append(change_ms)
        match role:
            case Unattached():
                if role.deadline_ms is not None:
                    times.append(role.deadline_ms)
                if self._following.may_search:
                    times.append(role.next_search_ms)
            case Follower() | Prospective() | Candidate() | Resigned():
                times.append(role.deadline_ms)
            case Leader():
                if role.depends_on_others:
                    times.append(self._serving.quorum_deadline(role))
                times += [
                    progress.last_fetch_ms + self.quorum.settings.fetch_timeout_ms // 2 + 1
                    for node_id, progress in role.voters.items()
                    if node_id != self.quorum.replica.node_id
                    and self.quorum.requests.is_free(node_id, BeginQuorumEpochRequest)
                ]
        times += self.quorum.requests.deadlines_ms()
        return min(times, default=None)

    def tick(self, now_ms: int) -> None:
        """Time has passed."""
        self.quorum.requests.tick(now_ms)
        role = self.quorum.role
        match role:
            case Unattached():
                if role.deadline_ms is not None and now_ms >= role.deadline_ms:
                    self.quorum.become_prospective(now_ms)
            case Follower():
                if now_ms >= role.deadline_ms:
                    if self.quorum.is_electable:
                        self.quorum.become_prospective(now_ms)
                    else:
                        self.quorum.become_unattached(self.quorum.epoch, now_ms)
            case Prospective():
                if now_ms >= role.deadline_ms:
                    self.quorum.give_up_prospect(role, now_ms)
            case Candidate():
                if now_ms >= role.deadline_ms:
                    self.quorum.become_prospective(now_ms)
            case Resigned():
                if now_ms >= role.deadline_ms:
                    # One that was removed as a voter asks for no election, and must not be ahead of the others.
                    self.quorum.become_unattached(self.quorum.epoch + self.quorum.is_electable, now_ms)
            case Leader():
                self._serving.check_quorum(role, now_ms)
        self._settle(now_ms)

    def synced(self, now_ms: int) -> None:
        """More of the log is on the disk."""
        if isinstance(self.quorum.role, Follower):
            self._following.follow_high_watermark(self.quorum.role)
        self._settle(now_ms)

    def appended(self, now_ms: int) -> None:
        """The leader has appended records of its own."""
        assert isinstance(self.quorum.role, Leader), self.quorum.role
        self._settle(now_ms)

    def resign(self, now_ms: int) -> None:
        """Lead no more; this node is about to stop."""
        if isinstance(self.quorum.role, Leader):
            self.quorum.become_resigned(self.quorum.role, now_ms)
            self._settle(now_ms)

    def upgrade_kraft_version(self, level: int, now_ms: int, *, is_only_checked: bool = False) -> None:
        """Finalise a level of `kraft.version`; see `VoterChanges.upgrade`."""
        self._changes.upgrade(level, is_only_checked=is_only_checked)
        self._settle(now_ms)

    def leader_refuses_connections(self, node_id: int, now_ms: int) -> None:
        """The leader's connection closed, and its host refuses another: it is gone, whatever the timeouts say.

        The replica asks for an election, and grants one. If this is wrong, others still fetch from it and say no.
        """
        role = self.quorum.role
        if not isinstance(role, Follower) or role.leader_id != node_id or role.is_leader_suspected:
            return
        self.quorum.suspect(role, now_ms)
        self.tick(now_ms)

    def snapshot_installed(
        self, snapshot: SnapshotId, changes: Sequence[tuple[Offset, VoterSet | int]], now_ms: int
    ) -> None:
        """The log begins with the snapshot now, and the snapshot has these voters and levels of `kraft.version`."""
        self.quorum.history.clear()
        self.quorum.history.learn(changes)
        self.quorum.commit_up_to(snapshot.end_offset)
        match self.quorum.role:
            case Follower() as role:
                role.download = None
            case Unattached(deadline_ms=None) as role if self.quorum.is_electable:
                role.deadline_ms = self.quorum.election_deadline(now_ms)
        self._settle(now_ms)

    def snapshot_refused(self, now_ms: int) -> None:
        """The snapshot that has arrived is damaged: fetch it again."""
        if isinstance(self.quorum.role, Follower):
            self.quorum.role.download = None
        self._settle(now_ms)

    def request(self, request: Request, token: object, now_ms: int) -> None:
        """A request has arrived; a `Reply` with the token answers it."""
        response: Response | None
        match request:
            case VoteRequest():
                response = self._voting.on_vote(request, now_ms)
            case BeginQuorumEpochRequest():
                response = self._voting.on_begin(request, now_ms)
            case EndQuorumEpochRequest():
                response = self._voting.on_end(request, now_ms)
            case FetchRequest():
                response = self._serving.on_fetch(request, token, now_ms)
            case FetchSnapshotRequest():
                response = self._serving.on_fetch_snapshot(request, now_ms)
            case AddVoterRequest():
                response = self._changes.on_add(request, token, now_ms)
            case RemoveVoterRequest():
                response = self._changes.on_remove(request, token, now_ms)
            case UpdateVoterRequest():
                response = self._changes.on_update(request)
            case SupportedVersionsRequest():
                levels = self.quorum.local_voter.kraft_versions
                response = SupportedVersionsResponse(leadership=self.quorum.leadership, kraft_versions=levels)
        if response is not None:
            self.quorum.effects.append(Reply(token, response))
        self._settle(now_ms)

    def failed(self, number: int, now_ms: int) -> None:
        """A request got no response: the connection failed, or it took too long."""
        outstanding = self.quorum.requests.end(number)
        if outstanding is None:
            return
        self.quorum.back_off_longer(outstanding, now_ms)
        self._settle(now_ms)

    def response(self, number: int, response: Response, now_ms: int) -> None:
        """A request was answered.

        Raises:
            RaftError: The leader's log contradicts what is committed.
        """
        outstanding = self.quorum.requests.end(number)
        if outstanding is None:
            return
        self.quorum.requests.answered(outstanding)
        if isinstance(response, SupportedVersionsResponse):
            self._changes.versions_answered(outstanding, response, now_ms)
        elif response.request_error is not ErrorCode.NONE or not self._voting.agrees(response, now_ms):
            self.quorum.back_off(outstanding, now_ms)
        else:
            match outstanding.request, response:
                case VoteRequest(is_pre_vote=True), VoteResponse():
                    self._voting.pre_vote_answered(outstanding.to, response, now_ms)
                case VoteRequest(), VoteResponse():
                    self._voting.vote_answered(outstanding.to, response, now_ms)
                case BeginQuorumEpochRequest(), _:
                    if response.error is not ErrorCode.NONE:
                        self.quorum.back_off(outstanding, now_ms)
                    elif isinstance(self.quorum.role, Leader) and outstanding.to in self.quorum.role.voters:
                        self.quorum.role.voters[outstanding.to].has_acknowledged = True
                case EndQuorumEpochRequest(), _:
                    if isinstance(self.quorum.role, Resigned):
                        self.quorum.role.not_told.discard(outstanding.to)
                case UpdateVoterRequest(), _:
                    self._following.described_itself(response)
                case FetchRequest(), FetchResponse():
                    self._following.fetched(outstanding, response, now_ms)
                case FetchSnapshotRequest(), FetchSnapshotResponse():
                    self._following.snapshot_fetched(outstanding, response, now_ms)
        self._settle(now_ms)

    def _settle(self, now_ms: int) -> None:
        """Do what follows from the input: commit, answer who waits, and send what the role has to ask or to tell."""
        if isinstance(self.quorum.role, Leader):
            self._serving.commit(self.quorum.role)
        self._changes.advance(now_ms)
        if isinstance(self.quorum.role, Leader) and self._changes.has_removed_leader:
            self.quorum.become_resigned(self.quorum.role, now_ms)
        self._serving.answer_parked(now_ms)
        match self.quorum.role:
            case Unattached() as role:
                self._following.search_leader(role, now_ms)
            case Follower() as role:
                self._following.fetch(role)
                self._following.change_voters(role, now_ms)
            case Prospective() as role:
                self._voting.ask_for_votes(role.votes, is_pre_vote=True)
            case Candidate() as role:
                if not role.is_lost:
                    self._voting.ask_for_votes(role.votes, is_pre_vote=False)
            case Leader() as role:
                self._voting.begin_epoch(role, now_ms)
            case Resigned() as role:
                self._voting.end_epoch(role)
