"""FetchSnapshotResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, data, int16, int32, int64, string, struct, uint16


class SnapshotId(Struct):
    """Part of FetchSnapshotResponse."""

    end_offset: int = int64("0+")
    epoch: int = int32("0+")


class LeaderIdAndEpoch(Struct):
    """Part of FetchSnapshotResponse."""

    leader_id: int = int32("0+")
    leader_epoch: int = int32("0+")


class PartitionSnapshot(Struct):
    """Part of FetchSnapshotResponse."""

    index: int = int32("0+")
    error_code: int = int16("0+")
    snapshot_id: SnapshotId = struct(SnapshotId, "0+")
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch, "0+", tag=0)
    size: int = int64("0+")
    position: int = int64("0+")
    unaligned_records: bytes | memoryview = data("0+")


class TopicSnapshot(Struct):
    """Part of FetchSnapshotResponse."""

    name: str = string("0+")
    partitions: list[PartitionSnapshot] = array(PartitionSnapshot, "0+")


class NodeEndpoint(Struct):
    """Part of FetchSnapshotResponse."""

    node_id: int = int32("1+")
    host: str = string("1+")
    port: int = uint16("1+")


class FetchSnapshotResponse(Message, versions="0-1", flexible="0+", api_key=59):
    """FetchSnapshotResponse, API key 59, versions 0-1, flexible 0+."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    topics: list[TopicSnapshot] = array(TopicSnapshot, "0+")
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "1+", tag=0)
