"""GroupMetadataKey. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, string


class GroupMetadataKey(Message, versions="0", flexible="none", api_key=2):
    """GroupMetadataKey, coordinator-key, versions 0, flexible none."""

    group: str = string("0")
