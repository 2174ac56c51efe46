"""ResponseHeader. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, int32


class ResponseHeader(Message, versions="0-1", flexible="1+"):
    """ResponseHeader, header, versions 0-1, flexible 1+."""

    correlation_id: int = int32("0+")
