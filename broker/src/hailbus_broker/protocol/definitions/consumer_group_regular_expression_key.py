"""ConsumerGroupRegularExpressionKey. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, string


class ConsumerGroupRegularExpressionKey(Message, versions="0", flexible="none", api_key=16):
    """ConsumerGroupRegularExpressionKey, coordinator-key, versions 0, flexible none."""

    group_id: str = string("0")
    regular_expression: str = string("0")
