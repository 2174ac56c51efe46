"""What a replica does that does not lead: it looks for the leader, and fetches from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hailbus_broker.cluster.raft.effects import InstallSnapshot
from hailbus_broker.cluster.raft.messages import (
    AddVoterRequest,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    LogPosition,
    RemoveVoterRequest,
    UpdateVoterRequest,
)
from hailbus_broker.cluster.raft.quorum import RaftError
from hailbus_broker.cluster.raft.roles import Download, Follower, Unattached
from hailbus_broker.cluster.raft.voters import DYNAMIC_VOTERS
from hailbus_broker.protocol.errors import ErrorCode, ProtocolError
from hailbus_broker.records import RecordsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hailbus_broker.cluster.raft.messages import Response, VoterChangeRequest
    from hailbus_broker.cluster.raft.quorum import Quorum
    from hailbus_broker.cluster.raft.requests import Outstanding
    from hailbus_broker.cluster.raft.voters import Endpoint
    from hailbus_broker.records import LeaderEpoch


class Following:
    """The other side of replication.

    Args:
        quorum: The state of the replica.
        bootstrap: Where a node that knows no voter asks for the leader.
    """

    def __init__(self, quorum: Quorum, bootstrap: Sequence[Endpoint]) -> None:
        self._quorum: Final = quorum
        self._bootstrap: Final = tuple(bootstrap)
        self._next_bootstrap = 0
        self._hurried_epoch: LeaderEpoch = -1

    def search_leader(self, role: Unattached, now_ms: int) -> None:
        """Ask one node after the other who leads, by a fetch."""
        if now_ms < role.next_search_ms or not self.may_search:
            return
        known = [(voter.key.node_id, voter.endpoints[0]) for voter in self._quorum.voters if voter.endpoints]
        known += [(-2 - index, endpoint) for index, endpoint in enumerate(self._bootstrap)]
        known = [
            (node_id, endpoint)
            for node_id, endpoint in known
            if node_id != self._quorum.replica.node_id and endpoint not in self._quorum.endpoints
        ]
        if not known:
            role.next_search_ms = now_ms + self._quorum.settings.fetch_timeout_ms
            return
        self._next_bootstrap += 1
        node_id, endpoint = known[self._next_bootstrap % len(known)]
        role.next_search_ms = now_ms + self._quorum.settings.retry_backoff_ms
        self._quorum.send(node_id, endpoint, self._fetch_request(0))

    def fetch(self, role: Follower) -> None:
        """Ask the leader for records, or for the rest of a snapshot."""
        if not self._may_fetch(role):
            return
        if role.download is None:
            self._quorum.send(
                role.leader_id, role.endpoint, self._fetch_request(self._quorum.settings.fetch_max_wait_ms)
            )
            return
        request = FetchSnapshotRequest(
            cluster_id=self._quorum.cluster_id,
            replica=self._quorum.replica,
            leader_epoch=self._quorum.epoch,
            snapshot=role.download.snapshot,
            position=len(role.download.data),
        )
        self._quorum.send(role.leader_id, role.endpoint, request)

    def fetched(self, outstanding: Outstanding, response: FetchResponse, now_ms: int) -> None:
        """Take in the answer of the leader, or of a node that was asked who leads.

        Raises:
            RaftError: The leader's log contradicts what is committed.
        """
        role = self._quorum.role
        if isinstance(role, Unattached):
            if response.leadership.leader_id is None:
                self._has_no_leader(role, outstanding.to, now_ms)
            return
        if not isinstance(role, Follower) or outstanding.to != role.leader_id:
            return
        if response.error is not ErrorCode.NONE:
            self._quorum.back_off(outstanding, now_ms)
            if response.leadership.leader_id is None and not role.is_leader_suspected:
                # It was started anew, or has resigned.
                self._quorum.suspect(role, now_ms)
            return
        role.answered(now_ms + self._quorum.settings.fetch_timeout_ms)
        if response.diverging is not None:
            # What is left may differ, too: only a response without this shows that the log is a prefix of the leader's.
            self._truncate(response.diverging)
            role.leader_high_watermark = -1
        elif response.snapshot is not None:
            role.download = Download(response.snapshot)
        else:
            try:
                changes = self._quorum.log.append_fetched(response.records) if response.records else ()
            except (RecordsError, ProtocolError):
                self._quorum.back_off(outstanding, now_ms)
                return
            self._quorum.history.learn(changes)
            role.leader_high_watermark = response.high_watermark
            self.follow_high_watermark(role)

    def snapshot_fetched(self, outstanding: Outstanding, response: FetchSnapshotResponse, now_ms: int) -> None:
        """Take in a part of a snapshot."""
        role = self._quorum.role
        if not isinstance(role, Follower) or role.download is None or outstanding.to != role.leader_id:
            return
        download = role.download
        if response.error is not ErrorCode.NONE:
            role.download = None
            self._quorum.back_off(outstanding, now_ms)
            return
        if response.snapshot != download.snapshot or response.position != len(download.data) or not response.data:
            role.download = Download(download.snapshot)
            self._quorum.back_off(outstanding, now_ms)
            return
        role.answered(now_ms + self._quorum.settings.fetch_timeout_ms)
        download.data += response.data
        if len(download.data) >= response.size:
            download.is_complete = True
            self._quorum.effects.append(InstallSnapshot(download.snapshot, bytes(download.data)))

    def follow_high_watermark(self, role: Follower) -> None:
        """Commit what the leader has committed, as far as it is on this disk."""
        quorum = self._quorum
        quorum.commit_up_to(min(role.leader_high_watermark, quorum.log.synced_end_offset))

    def change_voters(self, role: Follower, now_ms: int) -> None:
        """Ask the leader for the change of the voters that this replica needs, once in a while."""
        if not role.has_fetched or now_ms < role.next_change_ms or not self._quorum.endpoints:
            return
        request = self._needed_change(role)
        if request is not None and self._quorum.send(role.leader_id, role.endpoint, request):
            role.next_change_ms = now_ms + self._quorum.settings.fetch_timeout_ms

    def _needed_change(self, role: Follower) -> VoterChangeRequest | None:
        quorum = self._quorum
        local, known = quorum.local_voter, quorum.voters.get(quorum.replica.node_id)
        is_dynamic = quorum.history.kraft_version >= DYNAMIC_VOTERS
        if quorum.is_voter:
            if known == local if is_dynamic else role.has_described_itself:
                return None
            return UpdateVoterRequest(
                cluster_id=quorum.cluster_id,
                leader_epoch=quorum.epoch,
                voter=quorum.replica,
                endpoints=quorum.endpoints,
                kraft_versions=local.kraft_versions,
            )
        if not is_dynamic or not quorum.settings.auto_join:
            return None
        if known is not None:
            # This node has lost the directory by which it voted.
            return RemoveVoterRequest(cluster_id=quorum.cluster_id, voter=known.key)
        return AddVoterRequest(
            cluster_id=quorum.cluster_id,
            voter=quorum.replica,
            endpoints=quorum.endpoints,
            timeout_ms=quorum.settings.fetch_timeout_ms,
            ack_when_committed=False,
        )

    def described_itself(self, response: Response) -> None:
        """The leader has taken over what this voter said of itself, or is too old for that."""
        if isinstance(self._quorum.role, Follower) and response.error in {
            ErrorCode.NONE,
            ErrorCode.UNSUPPORTED_VERSION,
        }:
            self._quorum.role.has_described_itself = True

    def _may_fetch(self, role: Follower) -> bool:
        if role.download is not None:
            return not role.download.is_complete and not self._quorum.requests.has(FetchSnapshotRequest)
        # What it asks for tells the leader what it has on its disk.
        return self._quorum.is_on_disk and not self._quorum.requests.has(FetchRequest)

    @property
    def may_search(self) -> bool:
        """Whether nobody is being asked, and the log can be told of."""
        return self._quorum.is_on_disk and not self._quorum.requests.has(FetchRequest)

    def _fetch_request(self, max_wait_ms: int) -> FetchRequest:
        return FetchRequest(
            cluster_id=self._quorum.cluster_id,
            replica=self._quorum.replica,
            leader_epoch=self._quorum.epoch,
            end=self._quorum.log.end,
            high_watermark=self._quorum.high_watermark,
            max_wait_ms=max_wait_ms,
        )

    def _has_no_leader(self, role: Unattached, node_id: int, now_ms: int) -> None:
        """A voter knows no leader, either. When a majority does not, there is nothing to wait for."""
        role.leaderless.add(node_id)
        if (
            role.deadline_ms is not None
            and self._hurried_epoch < self._quorum.epoch
            and len(role.leaderless & set(self._quorum.voters.ids)) + 1 >= self._quorum.voters.majority
        ):
            self._hurried_epoch = self._quorum.epoch
            role.deadline_ms = min(role.deadline_ms, self._quorum.turn(now_ms, list(self._quorum.voters.ids)))

    def _truncate(self, diverging: LogPosition) -> None:
        own = self._quorum.log.end_of_epoch(diverging.epoch)
        end_offset = self._quorum.log.start_offset if own is None else min(own.end_offset, diverging.end_offset)
        if end_offset < self._quorum.high_watermark:
            raise RaftError(
                f"the leader of epoch {self._quorum.epoch} has other records from offset {end_offset} on, and "
                f"everything below {self._quorum.high_watermark} is committed here"
            )
        self._quorum.log.truncate_to(end_offset)
        self._quorum.history.truncate_to(end_offset)
