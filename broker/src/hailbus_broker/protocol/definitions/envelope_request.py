"""EnvelopeRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, data


class EnvelopeRequest(Message, versions="0", flexible="0+", api_key=58):
    """EnvelopeRequest, API key 58, versions 0, flexible 0+."""

    request_data: bytes | memoryview = data("0+")
    request_principal: bytes | memoryview | None = data("0+", nullable="0+")
    client_host_address: bytes | memoryview = data("0+")
