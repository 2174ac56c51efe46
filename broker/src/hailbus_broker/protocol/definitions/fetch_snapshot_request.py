"""FetchSnapshotRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, Uuid, array, int32, int64, string, struct, uuid


class SnapshotId(Struct):
    """Part of FetchSnapshotRequest."""

    end_offset: int = int64("0+")
    epoch: int = int32("0+")


class PartitionSnapshot(Struct):
    """Part of FetchSnapshotRequest."""

    partition: int = int32("0+")
    current_leader_epoch: int = int32("0+")
    snapshot_id: SnapshotId = struct(SnapshotId, "0+")
    position: int = int64("0+")
    replica_directory_id: Uuid = uuid("1+", tag=0)


class TopicSnapshot(Struct):
    """Part of FetchSnapshotRequest."""

    name: str = string("0+")
    partitions: list[PartitionSnapshot] = array(PartitionSnapshot, "0+")


class FetchSnapshotRequest(Message, versions="0-1", flexible="0+", api_key=59):
    """FetchSnapshotRequest, API key 59, versions 0-1, flexible 0+."""

    cluster_id: str | None = string("0+", default=None, nullable="0+", tag=0)
    replica_id: int = int32("0+", default=-1)
    max_bytes: int = int32("0+", default=2147483647)
    topics: list[TopicSnapshot] = array(TopicSnapshot, "0+")
