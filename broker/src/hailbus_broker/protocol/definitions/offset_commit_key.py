"""OffsetCommitKey. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, int32, string


class OffsetCommitKey(Message, versions="0", flexible="none", api_key=1):
    """OffsetCommitKey, coordinator-key, versions 0, flexible none."""

    group: str = string("0")
    topic: str = string("0")
    partition: int = int32("0")
