"""RemoveRaftVoterRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Uuid, int32, string, uuid


class RemoveRaftVoterRequest(Message, versions="0", flexible="0+", api_key=81):
    """RemoveRaftVoterRequest, API key 81, versions 0, flexible 0+."""

    cluster_id: str | None = string("0+", nullable="0+")
    voter_id: int = int32("0+")
    voter_directory_id: Uuid = uuid("0+")
