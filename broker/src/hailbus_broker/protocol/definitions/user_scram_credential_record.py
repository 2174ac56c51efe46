"""UserScramCredentialRecord. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, data, int8, int32, string


class UserScramCredentialRecord(Message, versions="0", flexible="0+", api_key=11):
    """UserScramCredentialRecord, metadata, versions 0, flexible 0+."""

    name: str = string("0+")
    mechanism: int = int8("0+")
    salt: bytes | memoryview = data("0+")
    stored_key: bytes | memoryview = data("0+")
    server_key: bytes | memoryview = data("0+")
    iterations: int = int32("0+")
