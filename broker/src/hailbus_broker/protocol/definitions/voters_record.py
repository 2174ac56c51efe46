"""VotersRecord. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, Uuid, array, int16, int32, string, struct, uint16, uuid


class Endpoint(Struct):
    """Part of VotersRecord."""

    name: str = string("0+")
    host: str = string("0+")
    port: int = uint16("0+")


class KRaftVersionFeature(Struct):
    """Part of VotersRecord."""

    min_supported_version: int = int16("0+")
    max_supported_version: int = int16("0+")


class Voter(Struct):
    """Part of VotersRecord."""

    voter_id: int = int32("0+")
    voter_directory_id: Uuid = uuid("0+")
    endpoints: list[Endpoint] = array(Endpoint, "0+")
    kraft_version_feature: KRaftVersionFeature = struct(KRaftVersionFeature, "0+")


class VotersRecord(Message, versions="0", flexible="0+"):
    """VotersRecord, data, versions 0, flexible 0+."""

    version: int = int16("0+")
    voters: list[Voter] = array(Voter, "0+")
