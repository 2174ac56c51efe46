"""DeleteGroupsRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, array, string


class DeleteGroupsRequest(Message, versions="0-2", flexible="2+", api_key=42):
    """DeleteGroupsRequest, API key 42, versions 0-2, flexible 2+."""

    groups_names: list[str] = array(string("0+"), "0+")
