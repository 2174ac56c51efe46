"""Changes of the voters on the leader: added, removed or updated one at a time, by records of its log (KIP-853)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from hailbus_broker.cluster.raft.effects import Reply
from hailbus_broker.cluster.raft.leader import UNKNOWN, Leader
from hailbus_broker.cluster.raft.messages import (
    AddVoterRequest,
    RemoveVoterRequest,
    SupportedVersionsRequest,
    SupportedVersionsResponse,
    UpdateVoterRequest,
    VoterChangeResponse,
)
from hailbus_broker.cluster.raft.voters import DYNAMIC_VOTERS, KRAFT_VERSION, Voter, VoterSet
from hailbus_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from hailbus_broker.cluster.raft.quorum import Quorum
    from hailbus_broker.cluster.raft.requests import Outstanding
    from hailbus_broker.cluster.raft.voters import Endpoint
    from hailbus_broker.records import LeaderEpoch, Offset

MAX_WAIT_MS: Final = 600_000
"""The longest time that a change may wait for its new voter, or for its commit, whatever the request says."""


@dataclass(slots=True, kw_only=True)
class _Change:
    """A change that waits.

    Attributes:
        token: Of the request that asked for the change.
        epoch: Of the leader that began the change.
        deadline_ms: When the request is answered at the latest.
        joining: The new voter, before its record is appended.
        knows_versions: Whether the new voter has said which levels of `kraft.version` it supports.
        waits_for_commit: Whether the request is answered after the commit, not after the append.
        offset: Of the record; None before it is appended.
    """

    token: object
    epoch: LeaderEpoch
    deadline_ms: int
    joining: Voter | None = None
    knows_versions: bool = False
    waits_for_commit: bool = True
    offset: Offset | None = None


class VoterChanges:
    """Changes of the voters, and of the level of `kraft.version`, on the leader; any other replica refuses them.

    A change needs an epoch whose first record is committed: only then the voters of the log are those of every later
    leader. The next change waits until the one before is committed. So two sets of voters that decide at the same time
    differ by one voter, and their majorities overlap.

    Unlike Apache Kafka, which rejects a new voter that is behind at the moment of the request, the leader waits for it
    until the request times out.

    Args:
        quorum: The state of the replica.
    """

    def __init__(self, quorum: Quorum) -> None:
        self._quorum: Final = quorum
        self._change: _Change | None = None

    # ------------------------------------------------------------------ requests

    def on_add(self, request: AddVoterRequest, token: object, now_ms: int) -> VoterChangeResponse | None:
        """Begin to add a voter; None if the request is answered later."""
        try:
            self._check_leader(request.cluster_id)
            if request.voter.node_id < 0 or request.voter.directory_id is None:
                raise ApiError(ErrorCode.INVALID_REQUEST, "The request names no voter with its directory id.")
            self._check_no_other_change()
            endpoints = self._reachable(request.endpoints)
            voters = self._quorum.voters
            if request.voter.node_id in voters.ids:
                raise ApiError(
                    ErrorCode.DUPLICATE_VOTER,
                    f"The id of controller {request.voter} is that of a voter already; the voters are {voters}.",
                )
        except ApiError as error:
            return self._response(error.code, error.message)
        self._change = _Change(
            token=token,
            epoch=self._quorum.epoch,
            deadline_ms=now_ms + min(max(request.timeout_ms, 0), MAX_WAIT_MS),
            joining=Voter(request.voter, endpoints),
            waits_for_commit=request.ack_when_committed,
        )
        return None

    def on_remove(self, request: RemoveVoterRequest, token: object, now_ms: int) -> VoterChangeResponse | None:
        """Remove a voter, which may be the leader itself; None if the request is answered later."""
        try:
            self._check_leader(request.cluster_id)
            if request.voter.node_id < 0 or request.voter.directory_id is None:
                raise ApiError(ErrorCode.INVALID_REQUEST, "The request names no voter with its directory id.")
            self._check_no_other_change()
            voters = self._quorum.voters
            if not voters.has(request.voter):
                raise ApiError(
                    ErrorCode.VOTER_NOT_FOUND, f"Controller {request.voter} is no voter; the voters are {voters}."
                )
            if len(voters) == 1:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST, f"Controller {request.voter} is the last voter: add another one first."
                )
        except ApiError as error:
            return self._response(error.code, error.message)
        offset = self._append(VoterSet(voter for voter in voters if voter.key.node_id != request.voter.node_id))
        deadline_ms = now_ms + self._quorum.settings.voter_change_timeout_ms
        self._change = _Change(token=token, epoch=self._quorum.epoch, deadline_ms=deadline_ms, offset=offset)
        return None

    def on_update(self, request: UpdateVoterRequest) -> VoterChangeResponse:
        """Take over what a voter says of itself: where it listens, and which levels of `kraft.version` it supports.

        The answer does not wait for the commit. As long as the configuration names the voters, nothing is written: the
        leader needs to know it of all voters before the level rises.
        """
        try:
            self._check_leader(request.cluster_id)
            if request.leader_epoch != self._quorum.epoch:
                is_old = request.leader_epoch < self._quorum.epoch
                raise ApiError(ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH)
            if request.voter.node_id < 0 or request.voter.directory_id is None:
                raise ApiError(ErrorCode.INVALID_REQUEST, "The request names no voter with its directory id.")
            voter = Voter(request.voter, self._reachable(request.endpoints), request.kraft_versions)
            is_dynamic = self._quorum.history.kraft_version >= DYNAMIC_VOTERS
            if is_dynamic:
                self._check_no_other_change()
            self._check_versions(voter)
            voters = self._quorum.voters
            if not voters.has(request.voter):
                raise ApiError(
                    ErrorCode.VOTER_NOT_FOUND, f"Controller {request.voter} is no voter; the voters are {voters}."
                )
        except ApiError as error:
            return self._response(error.code, error.message)
        if not is_dynamic:
            self._leader.described[voter.key.node_id] = voter
        elif voters.get(voter.key.node_id) != voter:
            self._append(voters.replaced(voter))
        return self._response(ErrorCode.NONE)

    def upgrade(self, level: int, *, is_only_checked: bool) -> None:
        """Finalise a level of `kraft.version`.

        Args:
            level: The new one.
            is_only_checked: Whether nothing is written.

        Raises:
            ApiError: INVALID_UPDATE_VERSION: it is a downgrade, or not every voter supports it; NOT_CONTROLLER.
        """
        if not isinstance(self._quorum.role, Leader):
            raise ApiError(ErrorCode.NOT_CONTROLLER, "This node does not lead the quorum.")
        current = self._quorum.history.kraft_version
        if level == current:
            return
        if level < current:
            raise ApiError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"Invalid upgrade of {KRAFT_VERSION} from version {current} to {level} because the new version is a "
                "downgrade",
            )
        described = {**self._leader.described, self._quorum.replica.node_id: self._quorum.local_voter}
        voters = []
        for node_id in self._quorum.voters.ids:
            voter = described.get(node_id)
            if voter is None or not voter.supports(level):
                raise ApiError(
                    ErrorCode.INVALID_UPDATE_VERSION,
                    f"Invalid upgrade of {KRAFT_VERSION} to {level} because not all of the voters support it: "
                    f"voter {node_id} does not, or has not said so to the leader yet.",
                )
            if not voter.endpoints:
                raise ApiError(
                    ErrorCode.INVALID_UPDATE_VERSION,
                    f"Invalid upgrade of {KRAFT_VERSION} to {level}: voter {node_id} has no controller listener, which "
                    "the record would have to name. Set process.roles and controller.listener.names.",
                )
            voters.append(voter)
        if self._quorum.high_watermark <= self._leader.from_offset:
            raise ApiError(ErrorCode.INVALID_UPDATE_VERSION, "The leader has not committed a record of its epoch yet.")
        if not is_only_checked:
            self._append(VoterSet(voters), level=level)

    # ------------------------------------------------------------------ what a request has to satisfy

    @property
    def _leader(self) -> Leader:
        role = self._quorum.role
        assert isinstance(role, Leader), role
        return role

    def _check_leader(self, cluster_id: str | None) -> None:
        if self._quorum.has_other_id(cluster_id):
            raise ApiError(
                ErrorCode.INCONSISTENT_CLUSTER_ID, f"The cluster id is {self._quorum.cluster_id}, not {cluster_id}."
            )
        if not isinstance(self._quorum.role, Leader):
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "This node does not lead the quorum.")

    def _check_no_other_change(self) -> None:
        quorum = self._quorum
        if self._change is not None:
            raise ApiError(
                ErrorCode.REQUEST_TIMED_OUT,
                "Request timed out waiting for leader to handle previous add or remove voter request.",
            )
        if quorum.high_watermark <= self._leader.from_offset:
            raise ApiError(
                ErrorCode.REQUEST_TIMED_OUT,
                "Request timed out waiting for leader to establish HWM and fence previous voter changes.",
            )
        if quorum.history.kraft_version < DYNAMIC_VOTERS:
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Cluster doesn't support changes of voters because the {KRAFT_VERSION} feature is "
                f"{quorum.history.kraft_version}.",
            )
        if quorum.history.voters_offset >= quorum.high_watermark:
            raise ApiError(
                ErrorCode.REQUEST_TIMED_OUT,
                "Request timed out waiting for voters to commit the latest voter change at "
                f"{quorum.history.voters_offset} with HWM {quorum.high_watermark}.",
            )

    def _check_versions(self, voter: Voter) -> None:
        level = self._quorum.history.kraft_version
        if not voter.supports(level):
            low, high = voter.kraft_versions
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"Controller {voter.key} supports {KRAFT_VERSION} {low} to {high}; the finalized version is {level}.",
            )

    def _reachable(self, endpoints: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
        """Return the endpoints, that of the listener over which the voters speak first.

        Raises:
            ApiError: INVALID_REQUEST: there is none.
        """
        if not self._quorum.endpoints:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, "This node has no controller listener, so no other voter could reach it."
            )
        name = self._quorum.endpoints[0].listener
        first = [endpoint for endpoint in endpoints if endpoint.listener == name]
        if not first:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"The request has no endpoint for the listener {name}.")
        return (*first, *(endpoint for endpoint in endpoints if endpoint.listener != name))

    # ------------------------------------------------------------------ the way of a change

    def versions_answered(self, outstanding: Outstanding, response: SupportedVersionsResponse, now_ms: int) -> None:
        """The new voter has said which levels of `kraft.version` it supports."""
        change = self._change
        if change is None or change.joining is None or change.joining.key.node_id != outstanding.to:
            return
        if response.error is not ErrorCode.NONE:
            self._quorum.back_off(outstanding, now_ms)
            return
        change.joining = replace(change.joining, kraft_versions=response.kraft_versions)
        change.knows_versions = True

    def deadline_ms(self) -> int | None:
        """When the change that waits is given up; None if there is none."""
        return None if self._change is None else self._change.deadline_ms

    def advance(self, now_ms: int) -> None:
        """Do what the change that waits can do now."""
        change, role = self._change, self._quorum.role
        if change is None:
            self._update_leader()
            return
        if not isinstance(role, Leader) or role.epoch != change.epoch:
            self._end(change, ErrorCode.NOT_LEADER_OR_FOLLOWER, "This node does not lead the quorum any more.")
            return
        if change.joining is not None and change.offset is None:
            self._join(change, change.joining, role, now_ms)
        if change is not self._change:
            return
        if change.offset is not None and change.offset < self._quorum.high_watermark:
            self._end(change, ErrorCode.NONE)
        elif now_ms >= change.deadline_ms:
            reason = (
                f"controller {change.joining.key} did not answer, or was lagging behind"
                if change.joining is not None and change.offset is None
                else "no majority of the new voters has the change yet; it may still be committed"
            )
            self._end(change, ErrorCode.REQUEST_TIMED_OUT, f"Request timed out: {reason}.")

    def _update_leader(self) -> None:
        """Write down where the leader listens, if the log says something else: others describe themselves to it."""
        quorum = self._quorum
        known = quorum.voters.get(quorum.replica.node_id)
        if (
            isinstance(quorum.role, Leader)
            and quorum.is_voter
            and known != quorum.local_voter
            and quorum.history.kraft_version >= DYNAMIC_VOTERS
            and quorum.high_watermark > max(quorum.role.from_offset, quorum.history.voters_offset)
        ):
            self._append(quorum.voters.replaced(quorum.local_voter))

    def _join(self, change: _Change, voter: Voter, role: Leader, now_ms: int) -> None:
        """Append the new voter once it has answered and has caught up."""
        if not change.knows_versions:
            self._quorum.send(voter.key.node_id, voter.endpoints[0], SupportedVersionsRequest())
            return
        try:
            self._check_versions(voter)
        except ApiError as error:
            self._end(change, error.code, error.message)
            return
        progress = role.observers.get(voter.key)
        caught_up_ms = UNKNOWN if progress is None else progress.last_caught_up_ms
        if caught_up_ms == UNKNOWN or caught_up_ms < now_ms - self._quorum.settings.fetch_timeout_ms:
            if not change.waits_for_commit:
                # The controller itself asks, maybe over the connection by which it fetches: it cannot catch up before
                # it has this answer, and asks again.
                self._end(change, ErrorCode.REQUEST_TIMED_OUT, f"Controller {voter.key} is lagging behind.")
            return
        change.offset = self._append(VoterSet([*self._quorum.voters, voter]))
        if not change.waits_for_commit:
            self._end(change, ErrorCode.NONE)

    @property
    def has_removed_leader(self) -> bool:
        """Whether this leader is no voter any more, and that is committed: it has to go."""
        quorum = self._quorum
        return not quorum.is_voter and quorum.history.voters_offset < quorum.high_watermark

    def _append(self, voters: VoterSet, *, level: int | None = None) -> Offset:
        """Append a record with voters, who decide from now on, committed or not (Raft, section 6)."""
        offset = self._quorum.append_voters(voters, level=level)
        self._leader.set_voters(voters)
        return offset

    def _end(self, change: _Change, error: ErrorCode, message: str | None = None) -> None:
        self._change = None
        self._quorum.effects.append(Reply(change.token, self._response(error, message)))

    def _response(self, error: ErrorCode, message: str | None = None) -> VoterChangeResponse:
        return VoterChangeResponse(leadership=self._quorum.leadership, error=error, message=message)
