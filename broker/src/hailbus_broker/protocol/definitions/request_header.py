"""RequestHeader. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, int16, int32, string


class RequestHeader(Message, versions="1-2", flexible="2+"):
    """RequestHeader, header, versions 1-2, flexible 2+."""

    request_api_key: int = int16("0+")
    request_api_version: int = int16("0+")
    correlation_id: int = int32("0+")
    client_id: str | None = string("1+", nullable="1+", flexible=False)
