"""What a leader does for the replicas that fetch from it, and when it commits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hailbus_broker.cluster.raft.comparison import divergence, snapshot_for
from hailbus_broker.cluster.raft.effects import Reply
from hailbus_broker.cluster.raft.leader import Leader
from hailbus_broker.cluster.raft.messages import (
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    LogPosition,
)
from hailbus_broker.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from hailbus_broker.cluster.metadata.snapshot import SnapshotId
    from hailbus_broker.cluster.raft.quorum import Quorum
    from hailbus_broker.records import LeaderEpoch, Offset

OBSERVER_KEPT_MS: Final = 300_000
"""An observer that has not fetched for so long is forgotten, as in Apache Kafka."""


@dataclass(frozen=True, slots=True)
class _ParkedFetch:
    token: object
    request: FetchRequest
    deadline_ms: int


class Serving:
    """The leader's side of replication; on any other replica it refuses.

    Args:
        quorum: The state of the replica.
    """

    def __init__(self, quorum: Quorum) -> None:
        self._quorum: Final = quorum
        self._parked: list[_ParkedFetch] = []

    def on_fetch(self, request: FetchRequest, token: object, now_ms: int) -> FetchResponse | None:
        """Answer a fetch; None if it is parked until there is something to say."""
        errors = self._leader_error(request.cluster_id, request.leader_epoch)
        if errors is None and (request.end.end_offset < 0 or not 0 <= request.end.epoch <= self._quorum.epoch):
            errors = ErrorCode.NONE, ErrorCode.INVALID_REQUEST
        if errors is not None:
            return FetchResponse(leadership=self._quorum.leadership, request_error=errors[0], error=errors[1])
        role = self._quorum.role
        assert isinstance(role, Leader), role
        snapshot = snapshot_for(self._quorum.log, request.end)
        diverging = None if snapshot is not None else divergence(self._quorum.log, request.end)
        if snapshot is not None or diverging is not None:
            return self._fetch_response(snapshot=snapshot, diverging=diverging)
        if request.replica.node_id >= 0:
            role.progress_of(request.replica).fetched(request.end.end_offset, self._quorum.log.end.end_offset, now_ms)
            self.commit(role)
        if request.max_wait_ms <= 0 or self._has_news(request):
            return self._fetch_response(records_from=request.end.end_offset)
        # A replica has one fetch at a time: what it asked for before, on another connection, nobody waits for any more.
        for before in [parked for parked in self._parked if parked.request.replica == request.replica]:
            self._parked.remove(before)
            response = self._fetch_response(records_from=before.request.end.end_offset)
            self._quorum.effects.append(Reply(before.token, response))
        self._parked.append(
            _ParkedFetch(token, request, now_ms + min(request.max_wait_ms, self._quorum.settings.fetch_max_wait_ms))
        )
        return None

    def on_fetch_snapshot(self, request: FetchSnapshotRequest, now_ms: int) -> FetchSnapshotResponse:
        """Answer a fetch of a snapshot's part, but for the data."""
        errors = self._leader_error(request.cluster_id, request.leader_epoch)
        if errors is None and request.snapshot != self._quorum.log.latest_snapshot:
            errors = ErrorCode.NONE, ErrorCode.SNAPSHOT_NOT_FOUND
        request_error, error = errors or (ErrorCode.NONE, ErrorCode.NONE)
        if errors is None and isinstance(self._quorum.role, Leader):
            # It cannot fetch meanwhile, and is there all the same.
            self._quorum.role.progress_of(request.replica).last_fetch_ms = now_ms
        return FetchSnapshotResponse(
            leadership=self._quorum.leadership,
            request_error=request_error,
            error=error,
            snapshot=request.snapshot,
            position=request.position,
        )

    def deadlines_ms(self) -> list[int]:
        """When parked fetches are answered at the latest."""
        return [parked.deadline_ms for parked in self._parked]

    def answer_parked(self, now_ms: int) -> None:
        """Answer the fetches for which there is something to say by now."""
        waiting: list[_ParkedFetch] = []
        for parked in self._parked:
            if (
                isinstance(self._quorum.role, Leader)
                and now_ms < parked.deadline_ms
                and not self._has_news(parked.request)
            ):
                waiting.append(parked)
                continue
            if isinstance(self._quorum.role, Leader):
                response = self._fetch_response(records_from=parked.request.end.end_offset)
            else:
                response = FetchResponse(leadership=self._quorum.leadership, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self._quorum.effects.append(Reply(parked.token, response))
        self._parked = waiting

    def commit(self, role: Leader) -> None:
        """Commit what a majority has on its disks."""
        self._quorum.commit_up_to(role.commit_offset(self._quorum.log.synced_end_offset))

    def check_quorum(self, role: Leader, now_ms: int) -> None:
        """Resign if no majority has fetched for long: another leader may be elected by now."""
        role.forget_observers(now_ms - OBSERVER_KEPT_MS)
        if role.depends_on_others and now_ms >= self.quorum_deadline(role):
            self._quorum.become_resigned(role, now_ms)

    def quorum_deadline(self, role: Leader) -> int:
        """When the leader resigns if nobody fetches any more; there are other voters."""
        return role.heard_of_majority_ms() + self._quorum.settings.fetch_timeout_ms * 3 // 2

    def _leader_error(self, cluster_id: str | None, epoch: LeaderEpoch) -> tuple[ErrorCode, ErrorCode] | None:
        """Why a request that only a leader can serve is refused: an error for all of it, and one for the partition."""
        if self._quorum.has_other_id(cluster_id):
            return ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.NONE
        if not isinstance(self._quorum.role, Leader):
            return ErrorCode.NONE, (
                ErrorCode.FENCED_LEADER_EPOCH if epoch < self._quorum.epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER
            )
        if epoch < self._quorum.epoch:
            return ErrorCode.NONE, ErrorCode.FENCED_LEADER_EPOCH
        if epoch > self._quorum.epoch:
            return ErrorCode.NONE, ErrorCode.UNKNOWN_LEADER_EPOCH
        return None

    def _has_news(self, request: FetchRequest) -> bool:
        return (
            self._quorum.log.end.end_offset > request.end.end_offset
            or self._told_high_watermark() > request.high_watermark
        )

    def _told_high_watermark(self) -> Offset:
        """Return the high watermark for followers: -1 until a record of this epoch is committed.

        Before that the leader may know less than its predecessor had committed and told. Apache Kafka answers -1, too,
        and its followers stop when the high watermark retreats ("Non-monotonic update of high watermark").
        """
        role, known = self._quorum.role, self._quorum.high_watermark
        return known if isinstance(role, Leader) and known > role.from_offset else -1

    def _fetch_response(
        self,
        *,
        snapshot: SnapshotId | None = None,
        diverging: LogPosition | None = None,
        records_from: Offset | None = None,
    ) -> FetchResponse:
        return FetchResponse(
            leadership=self._quorum.leadership,
            high_watermark=self._told_high_watermark(),
            log_start_offset=self._quorum.log.start_offset,
            diverging=diverging,
            snapshot=snapshot,
            records_from=records_from,
        )
