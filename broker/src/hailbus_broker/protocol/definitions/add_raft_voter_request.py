"""AddRaftVoterRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, Uuid, array, boolean, int32, string, uint16, uuid


class Listener(Struct):
    """Part of AddRaftVoterRequest."""

    name: str = string("0+")
    host: str = string("0+")
    port: int = uint16("0+")


class AddRaftVoterRequest(Message, versions="0-1", flexible="0+", api_key=80):
    """AddRaftVoterRequest, API key 80, versions 0-1, flexible 0+."""

    cluster_id: str | None = string("0+", nullable="0+")
    timeout_ms: int = int32("0+")
    voter_id: int = int32("0+")
    voter_directory_id: Uuid = uuid("0+")
    listeners: list[Listener] = array(Listener, "0+")
    ack_when_committed: bool = boolean("1+", default=True)
