"""ConsumerGroupMemberMetadataKey. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, string


class ConsumerGroupMemberMetadataKey(Message, versions="0", flexible="none", api_key=5):
    """ConsumerGroupMemberMetadataKey, coordinator-key, versions 0, flexible none."""

    group_id: str = string("0")
    member_id: str = string("0")
