"""The metadata log on the disk, as the quorum's state machine needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hailbus_broker.cluster.raft import control_records
from hailbus_broker.cluster.raft.messages import LogPosition
from hailbus_broker.log import Origin
from hailbus_broker.records import CorruptBatchError, iterate_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hailbus_broker.cluster.metadata.snapshot import SnapshotId
    from hailbus_broker.cluster.raft.voters import VoterSet
    from hailbus_broker.log import PartitionLog
    from hailbus_broker.records import LeaderEpoch, Offset


class ReplicatedLog:
    """A `RaftLog` over a partition's log.

    Args:
        log: Of `__cluster_metadata`.
        latest_snapshot: The newest one on the disk.
        wall_ms: Milliseconds since 1970 UTC, for the records' timestamps.

    Attributes:
        latest_snapshot: The driver sets it when another one is on the disk.
    """

    def __init__(
        self,
        log: PartitionLog,
        latest_snapshot: SnapshotId | None,
        *,
        wall_ms: Callable[[], int],
    ) -> None:
        self.log: Final = log
        self.latest_snapshot = latest_snapshot
        self._wall_ms: Final = wall_ms

    @property
    def start_offset(self) -> Offset:
        """See `RaftLog`."""
        return self.log.log_start_offset

    @property
    def end(self) -> LogPosition:
        """See `RaftLog`."""
        end_offset, snapshot = self.log.log_end_offset, self.latest_snapshot
        if snapshot is not None and end_offset <= snapshot.end_offset:
            return LogPosition(snapshot.leader_epoch, end_offset)
        return LogPosition(max(self.log.leader_epochs.latest, 0), end_offset)

    @property
    def synced_end_offset(self) -> Offset:
        """See `RaftLog`."""
        return self.log.synced_end_offset

    def end_of_epoch(self, epoch: LeaderEpoch) -> LogPosition | None:
        """See `RaftLog`."""
        epochs = self.log.leader_epochs
        if epochs.entries and epoch >= epochs.entries[0][0]:
            found, end_offset = epochs.end_offset_for(min(epoch, epochs.latest), self.log.log_end_offset)
            return LogPosition(found, end_offset)
        snapshot = self.latest_snapshot
        if snapshot is not None and snapshot.end_offset == self.start_offset and snapshot.leader_epoch <= epoch:
            return LogPosition(snapshot.leader_epoch, snapshot.end_offset)
        return None

    def append_start_of_epoch(
        self, epoch: LeaderEpoch, *, leader_id: int, voters: VoterSet, granting: Sequence[int]
    ) -> None:
        """See `RaftLog`."""
        batch = control_records.leader_change(
            leader_id=leader_id,
            voters=voters,
            granting=granting,
            now_ms=self._wall_ms(),
        )
        self._append(batch, epoch)

    def append_voters(self, epoch: LeaderEpoch, voters: VoterSet, *, level: int | None = None) -> Offset:
        """See `RaftLog`."""
        return self._append(control_records.voters_change(voters, now_ms=self._wall_ms(), kraft_version=level), epoch)

    def _append(self, batch: bytearray, epoch: LeaderEpoch) -> Offset:
        result = self.log.append(batch, now_ms=self._wall_ms(), leader_epoch=epoch, origin=Origin.COORDINATOR)
        return result.last_offset

    def append_fetched(self, records: bytes | memoryview) -> Sequence[tuple[Offset, VoterSet | int]]:
        """See `RaftLog`. A last batch that is cut short is left out."""
        batches = list(iterate_batches(records, whole=False))
        if not batches:
            return ()
        end_offset = self.log.log_end_offset
        for batch in batches:
            batch.check_crc()
            if batch.header.base_offset != end_offset:
                raise CorruptBatchError(
                    f"a batch of the metadata log begins at {batch.header.base_offset}, this log ends at {end_offset}",
                    position=batch.position,
                )
            end_offset = batch.header.next_offset
        changes = control_records.read_changes(batches)
        size = sum(batch.size_bytes for batch in batches)
        self.log.append_as_follower(memoryview(records)[:size], now_ms=self._wall_ms())
        return changes

    def truncate_to(self, end_offset: Offset) -> None:
        """See `RaftLog`."""
        self.log.truncate_to(end_offset)
