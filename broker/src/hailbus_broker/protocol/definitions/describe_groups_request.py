"""DescribeGroupsRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, array, boolean, string


class DescribeGroupsRequest(Message, versions="0-6", flexible="5+", api_key=15):
    """DescribeGroupsRequest, API key 15, versions 0-6, flexible 5+."""

    groups: list[str] = array(string("0+"), "0+")
    include_authorized_operations: bool = boolean("3+")
