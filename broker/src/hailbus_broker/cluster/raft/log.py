"""The metadata log, as the quorum's state machine sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hailbus_broker.cluster.metadata.snapshot import SnapshotId
    from hailbus_broker.cluster.raft.messages import LogPosition
    from hailbus_broker.cluster.raft.voters import VoterSet
    from hailbus_broker.records import LeaderEpoch, Offset


class RaftLog(Protocol):
    """A replica of the metadata log.

    Its answers come from memory. Appends and truncations take effect at once, and reach the disk later: then the
    driver calls `Raft.synced`.
    """

    @property
    def start_offset(self) -> Offset:
        """Of the first record that it still has."""
        ...

    @property
    def end(self) -> LogPosition:
        """Where it ends."""
        ...

    @property
    def synced_end_offset(self) -> Offset:
        """Everything below this offset is on the disk."""
        ...

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        """The newest snapshot on the disk."""
        ...

    def end_of_epoch(self, epoch: LeaderEpoch) -> LogPosition | None:
        """The last epoch up to this one that has records, and the offset where they end; None before the first."""
        ...

    def append_start_of_epoch(
        self, epoch: LeaderEpoch, *, leader_id: int, voters: VoterSet, granting: Sequence[int]
    ) -> None:
        """Append the record by which a leader begins its epoch (LeaderChange)."""
        ...

    def append_voters(self, epoch: LeaderEpoch, voters: VoterSet, *, level: int | None = None) -> Offset:
        """Append a record with voters, and return its offset.

        Args:
            epoch: Of the leader.
            voters: From now on.
            level: Of `kraft.version` from now on, in a record right before; None if it stays.
        """
        ...

    def append_fetched(self, records: bytes | memoryview) -> Sequence[tuple[Offset, VoterSet | int]]:
        """Append batches of the leader.

        Returns:
            The voters, and levels of `kraft.version`, that are among them.

        Raises:
            RecordsError: They are malformed, or do not follow the end of the log.
            ProtocolError: A record about the quorum is malformed.
        """
        ...

    def truncate_to(self, end_offset: Offset) -> None:
        """Remove the records from this offset on."""
        ...
