"""FetchRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, Uuid, array, int8, int32, int64, string, struct, uuid


class ReplicaState(Struct):
    """Part of FetchRequest."""

    replica_id: int = int32("15+", default=-1)
    replica_epoch: int = int64("15+", default=-1)


class FetchPartition(Struct):
    """Part of FetchRequest."""

    partition: int = int32("0+")
    current_leader_epoch: int = int32("9+", default=-1)
    fetch_offset: int = int64("0+")
    last_fetched_epoch: int = int32("12+", default=-1)
    log_start_offset: int = int64("5+", default=-1)
    partition_max_bytes: int = int32("0+")
    replica_directory_id: Uuid = uuid("17+", tag=0)
    high_watermark: int = int64("18+", default=9223372036854775807, tag=1)


class FetchTopic(Struct):
    """Part of FetchRequest."""

    topic: str = string("0-12")
    topic_id: Uuid = uuid("13+")
    partitions: list[FetchPartition] = array(FetchPartition, "0+")


class ForgottenTopic(Struct):
    """Part of FetchRequest."""

    topic: str = string("7-12")
    topic_id: Uuid = uuid("13+")
    partitions: list[int] = array(int32("0+"), "7+")


class FetchRequest(Message, versions="4-18", flexible="12+", api_key=1):
    """FetchRequest, API key 1, versions 4-18, flexible 12+."""

    cluster_id: str | None = string("12+", default=None, nullable="12+", tag=0)
    replica_id: int = int32("0-14", default=-1)
    replica_state: ReplicaState = struct(ReplicaState, "15+", tag=1)
    max_wait_ms: int = int32("0+")
    min_bytes: int = int32("0+")
    max_bytes: int = int32("3+", default=2147483647)
    isolation_level: int = int8("4+", default=0)
    session_id: int = int32("7+", default=0)
    session_epoch: int = int32("7+", default=-1)
    topics: list[FetchTopic] = array(FetchTopic, "0+")
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, "7+")
    rack_id: str = string("11+")
