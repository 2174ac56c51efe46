"""OffsetCommitValue. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Uuid, int32, int64, string, uuid


class OffsetCommitValue(Message, versions="0-4", flexible="4+", api_key=1):
    """OffsetCommitValue, coordinator-value, versions 0-4, flexible 4+."""

    offset: int = int64("0+")
    leader_epoch: int = int32("3+", default=-1)
    metadata: str = string("0+")
    commit_timestamp: int = int64("0+")
    expire_timestamp: int = int64("1", default=-1)
    topic_id: Uuid = uuid("4+", tag=0)
