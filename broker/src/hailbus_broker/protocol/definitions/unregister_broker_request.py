"""UnregisterBrokerRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, int32


class UnregisterBrokerRequest(Message, versions="0", flexible="0+", api_key=64):
    """UnregisterBrokerRequest, API key 64, versions 0, flexible 0+."""

    broker_id: int = int32("0+")
