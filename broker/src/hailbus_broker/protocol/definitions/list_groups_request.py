"""ListGroupsRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, array, string


class ListGroupsRequest(Message, versions="0-5", flexible="3+", api_key=16):
    """ListGroupsRequest, API key 16, versions 0-5, flexible 3+."""

    states_filter: list[str] = array(string("0+"), "4+")
    types_filter: list[str] = array(string("0+"), "5+")
