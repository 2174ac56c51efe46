"""ConsumerGroupMetadataKey. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, string


class ConsumerGroupMetadataKey(Message, versions="0", flexible="none", api_key=3):
    """ConsumerGroupMetadataKey, coordinator-key, versions 0, flexible none."""

    group_id: str = string("0")
