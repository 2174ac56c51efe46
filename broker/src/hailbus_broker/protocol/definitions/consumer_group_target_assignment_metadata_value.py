"""ConsumerGroupTargetAssignmentMetadataValue. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, int32, int64


class ConsumerGroupTargetAssignmentMetadataValue(Message, versions="0", flexible="0+", api_key=6):
    """ConsumerGroupTargetAssignmentMetadataValue, coordinator-value, versions 0, flexible 0+."""

    assignment_epoch: int = int32("0+")
    assignment_timestamp: int = int64("0+", default=0, tag=0)
