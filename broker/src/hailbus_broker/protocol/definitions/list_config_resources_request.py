"""ListConfigResourcesRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, array, int8


class ListConfigResourcesRequest(Message, versions="0-1", flexible="0+", api_key=74):
    """ListConfigResourcesRequest, API key 74, versions 0-1, flexible 0+."""

    resource_types: list[int] = array(int8("0+"), "1+")
