"""ConsumerGroupMetadataValue. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, int32, int64


class ConsumerGroupMetadataValue(Message, versions="0", flexible="0+", api_key=3):
    """ConsumerGroupMetadataValue, coordinator-value, versions 0, flexible 0+."""

    epoch: int = int32("0+")
    metadata_hash: int = int64("0+", default=0, tag=0)
