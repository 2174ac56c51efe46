"""DelegationTokenRecord. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, array, int64, string


class DelegationTokenRecord(Message, versions="0", flexible="0+", api_key=10):
    """DelegationTokenRecord, metadata, versions 0, flexible 0+."""

    owner: str = string("0+")
    requester: str = string("0+")
    renewers: list[str] = array(string("0+"), "0+")
    issue_timestamp: int = int64("0+")
    max_timestamp: int = int64("0+")
    expiration_timestamp: int = int64("0+")
    token_id: str = string("0+")
