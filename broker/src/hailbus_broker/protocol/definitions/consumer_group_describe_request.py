"""ConsumerGroupDescribeRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, array, boolean, string


class ConsumerGroupDescribeRequest(Message, versions="0-1", flexible="0+", api_key=69):
    """ConsumerGroupDescribeRequest, API key 69, versions 0-1, flexible 0+."""

    group_ids: list[str] = array(string("0+"), "0+")
    include_authorized_operations: bool = boolean("0+")
