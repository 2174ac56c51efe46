"""ConsumerGroupTargetAssignmentMemberKey. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, string


class ConsumerGroupTargetAssignmentMemberKey(Message, versions="0", flexible="none", api_key=7):
    """ConsumerGroupTargetAssignmentMemberKey, coordinator-key, versions 0, flexible none."""

    group_id: str = string("0")
    member_id: str = string("0")
