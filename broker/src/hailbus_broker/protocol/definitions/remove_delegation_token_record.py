"""RemoveDelegationTokenRecord. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, string


class RemoveDelegationTokenRecord(Message, versions="0", flexible="0+", api_key=26):
    """RemoveDelegationTokenRecord, metadata, versions 0, flexible 0+."""

    token_id: str = string("0+")
