"""EnvelopeResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, data, int16


class EnvelopeResponse(Message, versions="0", flexible="0+", api_key=58):
    """EnvelopeResponse, API key 58, versions 0, flexible 0+."""

    response_data: bytes | memoryview | None = data("0+", default=None, nullable="0+")
    error_code: int = int16("0+")
