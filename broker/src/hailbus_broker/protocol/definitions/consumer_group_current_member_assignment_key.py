"""ConsumerGroupCurrentMemberAssignmentKey. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, string


class ConsumerGroupCurrentMemberAssignmentKey(Message, versions="0", flexible="none", api_key=8):
    """ConsumerGroupCurrentMemberAssignmentKey, coordinator-key, versions 0, flexible none."""

    group_id: str = string("0")
    member_id: str = string("0")
