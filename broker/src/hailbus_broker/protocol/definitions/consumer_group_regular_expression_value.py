"""ConsumerGroupRegularExpressionValue. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, array, int64, string


class ConsumerGroupRegularExpressionValue(Message, versions="0", flexible="0+", api_key=16):
    """ConsumerGroupRegularExpressionValue, coordinator-value, versions 0, flexible 0+."""

    topics: list[str] = array(string("0+"), "0+")
    version: int = int64("0+")
    timestamp: int = int64("0+")
