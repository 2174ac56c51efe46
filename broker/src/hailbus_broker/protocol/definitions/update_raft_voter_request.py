"""UpdateRaftVoterRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, Uuid, array, int16, int32, string, struct, uint16, uuid


class Listener(Struct):
    """Part of UpdateRaftVoterRequest."""

    name: str = string("0+")
    host: str = string("0+")
    port: int = uint16("0+")


class KRaftVersionFeature(Struct):
    """Part of UpdateRaftVoterRequest."""

    min_supported_version: int = int16("0+")
    max_supported_version: int = int16("0+")


class UpdateRaftVoterRequest(Message, versions="0", flexible="0+", api_key=82):
    """UpdateRaftVoterRequest, API key 82, versions 0, flexible 0+."""

    cluster_id: str | None = string("0+", nullable="0+")
    current_leader_epoch: int = int32("0+")
    voter_id: int = int32("0+")
    voter_directory_id: Uuid = uuid("0+")
    listeners: list[Listener] = array(Listener, "0+")
    kraft_version_feature: KRaftVersionFeature = struct(KRaftVersionFeature, "0+")
