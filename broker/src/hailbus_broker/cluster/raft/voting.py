"""Elections: votes that are asked for, given and counted, and leaders that come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hailbus_broker.cluster.raft.leader import Leader
from hailbus_broker.cluster.raft.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    Response,
    VoteRequest,
    VoteResponse,
)
from hailbus_broker.cluster.raft.roles import Candidate, Follower, Prospective, Resigned, Unattached, Votes
from hailbus_broker.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from hailbus_broker.cluster.raft.quorum import Quorum
    from hailbus_broker.cluster.raft.voters import Endpoint, ReplicaKey


class Voting:
    """What a replica does about elections.

    Args:
        quorum: The state of the replica.
    """

    def __init__(self, quorum: Quorum) -> None:
        self._quorum: Final = quorum

    def on_vote(self, request: VoteRequest, now_ms: int) -> VoteResponse:
        """Give a vote, or not."""
        if self._quorum.has_other_id(request.cluster_id):
            return VoteResponse(leadership=self._quorum.leadership, request_error=ErrorCode.INCONSISTENT_CLUSTER_ID)
        last_possible = request.candidate_epoch if request.is_pre_vote else request.candidate_epoch - 1
        if request.log_end.epoch > last_possible or request.log_end.end_offset < 0:
            return VoteResponse(leadership=self._quorum.leadership, error=ErrorCode.INVALID_REQUEST)
        if request.candidate_epoch < self._quorum.epoch:
            return VoteResponse(leadership=self._quorum.leadership, error=ErrorCode.FENCED_LEADER_EPOCH)
        if request.candidate_epoch > self._quorum.epoch:
            self._quorum.become_unattached(request.candidate_epoch, now_ms)
        if self._is_for_another(request.voter):
            return VoteResponse(leadership=self._quorum.leadership, error=ErrorCode.INVALID_VOTER_KEY)
        is_granted = self._would_grant(request)
        if is_granted and not request.is_pre_vote:
            self._quorum.voted = request.candidate
            if isinstance(self._quorum.role, Prospective):
                self._quorum.become_unattached(self._quorum.epoch, now_ms)
            elif isinstance(self._quorum.role, Unattached) and self._quorum.role.deadline_ms is not None:
                self._quorum.role.deadline_ms = self._quorum.election_deadline(now_ms)
            self._quorum.persist()
        return VoteResponse(leadership=self._quorum.leadership, is_granted=is_granted)

    def _is_for_another(self, voter: ReplicaKey) -> bool:
        """Whether a request was meant for another replica; the first versions of the messages do not say for whom."""
        return voter.node_id >= 0 and not self._quorum.replica.matches(voter)

    def _would_grant(self, request: VoteRequest) -> bool:
        if request.log_end < self._quorum.log.end:
            return False
        match self._quorum.role:
            case Leader():
                return False
            case Follower() as role:
                return request.is_pre_vote and (not role.has_fetched or role.is_leader_suspected)
            case Candidate() | Resigned():
                return request.is_pre_vote
            case Unattached() | Prospective():
                if request.is_pre_vote:
                    return True
                if self._quorum.voted is not None:
                    return self._quorum.voted.matches(request.candidate)
                return self._quorum.leader_id is None

    def on_begin(self, request: BeginQuorumEpochRequest, now_ms: int) -> Response:
        """Follow the leader that makes itself known."""
        if self._quorum.has_other_id(request.cluster_id):
            return Response(leadership=self._quorum.leadership, request_error=ErrorCode.INCONSISTENT_CLUSTER_ID)
        if request.leader_epoch < self._quorum.epoch:
            return Response(leadership=self._quorum.leadership, error=ErrorCode.FENCED_LEADER_EPOCH)
        if not request.leader_endpoints or request.leader_id < 0:
            return Response(leadership=self._quorum.leadership, error=ErrorCode.INVALID_REQUEST)
        self._quorum.follow(request.leader_id, request.leader_epoch, request.leader_endpoints, now_ms)
        if self._is_for_another(request.voter):
            return Response(leadership=self._quorum.leadership, error=ErrorCode.INVALID_VOTER_KEY)
        return Response(leadership=self._quorum.leadership)

    def on_end(self, request: EndQuorumEpochRequest, now_ms: int) -> Response:
        """The leader goes: ask for an election when it is this voter's turn."""
        if self._quorum.has_other_id(request.cluster_id):
            return Response(leadership=self._quorum.leadership, request_error=ErrorCode.INCONSISTENT_CLUSTER_ID)
        if request.leader_epoch < self._quorum.epoch:
            return Response(leadership=self._quorum.leadership, error=ErrorCode.FENCED_LEADER_EPOCH)
        if request.leader_endpoints:
            self._quorum.follow(request.leader_id, request.leader_epoch, request.leader_endpoints, now_ms)
        role = self._quorum.role
        if isinstance(role, Follower) and role.leader_id == request.leader_id and self._quorum.is_electable:
            self._quorum.suspect(role, now_ms, [successor.node_id for successor in request.successors])
            if now_ms >= role.deadline_ms:
                self._quorum.become_prospective(now_ms)
        return Response(leadership=self._quorum.leadership)

    def agrees(self, response: Response, now_ms: int) -> bool:
        """Take over what a response says of the leadership; whether the response is for the role that holds now."""
        quorum, said = self._quorum, response.leadership
        if said.leader_epoch < quorum.epoch:
            return False
        is_news = said.leader_epoch > quorum.epoch or quorum.leader_id is None or isinstance(quorum.role, Unattached)
        if is_news and said.leader_id not in {None, quorum.replica.node_id}:
            assert said.leader_id is not None
            endpoints = said.leader_endpoints or self._known_endpoints(said.leader_id)
            if endpoints:
                before = quorum.role
                quorum.follow(said.leader_id, said.leader_epoch, endpoints, now_ms)
                return quorum.role is before
        if said.leader_epoch > quorum.epoch:
            quorum.become_unattached(said.leader_epoch, now_ms)
            return False
        return True

    def _known_endpoints(self, node_id: int) -> tuple[Endpoint, ...]:
        voter = self._quorum.voters.get(node_id)
        return () if voter is None else voter.endpoints

    def pre_vote_answered(self, voter_id: int, response: VoteResponse, now_ms: int) -> None:
        """A voter has said whether it would vote for this replica."""
        role = self._quorum.role
        if not isinstance(role, Prospective):
            return
        role.votes.count(voter_id, response)
        if role.votes.is_won(self._quorum.voters):
            self._quorum.become_candidate(now_ms)
        elif role.votes.is_lost(self._quorum.voters):
            self._quorum.give_up_prospect(role, now_ms)

    def vote_answered(self, voter_id: int, response: VoteResponse, now_ms: int) -> None:
        """A voter has voted."""
        role = self._quorum.role
        if not isinstance(role, Candidate):
            return
        role.votes.count(voter_id, response)
        if role.votes.is_won(self._quorum.voters):
            self._quorum.become_leader(role, now_ms)
        elif role.votes.is_lost(self._quorum.voters) and not role.is_lost:
            role.is_lost = True
            self._quorum.lost_elections += 1
            longest = min(
                self._quorum.settings.retry_backoff_ms << min(self._quorum.lost_elections, 10),
                self._quorum.settings.election_backoff_max_ms,
            )
            role.deadline_ms = now_ms + self._quorum.chance.randint(1, longest)

    def ask_for_votes(self, votes: Votes, *, is_pre_vote: bool) -> None:
        """Ask the voters that have not answered."""
        for voter in self._quorum.voters:
            node_id = voter.key.node_id
            if node_id == self._quorum.replica.node_id or node_id in votes.granted or node_id in votes.rejected:
                continue
            request = VoteRequest(
                cluster_id=self._quorum.cluster_id,
                candidate=self._quorum.replica,
                candidate_epoch=self._quorum.epoch,
                voter=voter.key,
                log_end=self._quorum.log.end,
                is_pre_vote=is_pre_vote,
            )
            self._quorum.send(node_id, voter.endpoints[0], request)

    def begin_epoch(self, role: Leader, now_ms: int) -> None:
        """Make the leader known to voters that do not fetch."""
        for voter in self._quorum.voters:
            node_id = voter.key.node_id
            progress = role.voters[node_id]
            is_silent = progress.last_fetch_ms < now_ms - self._quorum.settings.fetch_timeout_ms // 2
            if node_id == self._quorum.replica.node_id or (progress.has_acknowledged and not is_silent):
                continue
            request = BeginQuorumEpochRequest(
                cluster_id=self._quorum.cluster_id,
                leader_id=self._quorum.replica.node_id,
                leader_epoch=self._quorum.epoch,
                voter=voter.key,
                leader_endpoints=self._quorum.endpoints,
            )
            if self._quorum.send(node_id, voter.endpoints[0], request):
                # The leader repeats this from time to time until the voter fetches.
                self._quorum.requests.pause(
                    node_id, BeginQuorumEpochRequest, now_ms + self._quorum.settings.fetch_timeout_ms // 2
                )

    def end_epoch(self, role: Resigned) -> None:
        """Tell the voters that the leader goes."""
        for voter in self._quorum.voters:
            if voter.key.node_id not in role.not_told:
                continue
            request = EndQuorumEpochRequest(
                cluster_id=self._quorum.cluster_id,
                leader_id=self._quorum.replica.node_id,
                leader_epoch=self._quorum.epoch,
                successors=role.successors,
                leader_endpoints=self._quorum.endpoints,
            )
            self._quorum.send(voter.key.node_id, voter.endpoints[0], request)
