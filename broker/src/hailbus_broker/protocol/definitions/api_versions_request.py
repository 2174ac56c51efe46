"""ApiVersionsRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, string


class ApiVersionsRequest(Message, versions="0-4", flexible="3+", api_key=18):
    """ApiVersionsRequest, API key 18, versions 0-4, flexible 3+."""

    client_software_name: str = string("3+")
    client_software_version: str = string("3+")
