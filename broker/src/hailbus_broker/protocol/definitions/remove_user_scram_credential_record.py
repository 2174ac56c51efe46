"""RemoveUserScramCredentialRecord. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, int8, string


class RemoveUserScramCredentialRecord(Message, versions="0", flexible="0+", api_key=22):
    """RemoveUserScramCredentialRecord, metadata, versions 0, flexible 0+."""

    name: str = string("0+")
    mechanism: int = int8("0+")
