"""How the log of another replica relates to the leader's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hailbus_broker.cluster.raft.messages import LogPosition

if TYPE_CHECKING:
    from hailbus_broker.cluster.metadata.snapshot import SnapshotId
    from hailbus_broker.cluster.raft.log import RaftLog


def snapshot_for(log: RaftLog, end: LogPosition) -> SnapshotId | None:
    """Return the snapshot that a replica needs whose log ends there: the records that it lacks are gone.

    Returns:
        None if the records are there.
    """
    snapshot = log.latest_snapshot
    start_offset = log.start_offset
    if snapshot is None or (end == (0, 0) and start_offset == 0):
        return None
    is_gone = end.end_offset < start_offset or end.epoch < snapshot.leader_epoch
    is_other = end.end_offset == start_offset > 0 and end.epoch != snapshot.leader_epoch
    return snapshot if is_gone or is_other else None


def divergence(log: RaftLog, end: LogPosition) -> LogPosition | None:
    """Return where a log that ends there has to be truncated; None if it is the beginning of this one."""
    found = log.end_of_epoch(end.epoch) or LogPosition(0, 0)
    if end.end_offset == 0 or (found.epoch == end.epoch and end.end_offset <= found.end_offset):
        return None
    return found
