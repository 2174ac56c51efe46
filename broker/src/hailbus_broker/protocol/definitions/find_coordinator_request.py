"""FindCoordinatorRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, array, int8, string


class FindCoordinatorRequest(Message, versions="0-6", flexible="3+", api_key=10):
    """FindCoordinatorRequest, API key 10, versions 0-6, flexible 3+."""

    key: str = string("0-3")
    key_type: int = int8("1+", default=0)
    coordinator_keys: list[str] = array(string("0+"), "4+")
