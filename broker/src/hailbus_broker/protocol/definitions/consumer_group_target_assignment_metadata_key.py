"""ConsumerGroupTargetAssignmentMetadataKey. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, string


class ConsumerGroupTargetAssignmentMetadataKey(Message, versions="0", flexible="none", api_key=6):
    """ConsumerGroupTargetAssignmentMetadataKey, coordinator-key, versions 0, flexible none."""

    group_id: str = string("0")
