"""UpdateRaftVoterResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, int16, int32, string, struct


class CurrentLeader(Struct):
    """Part of UpdateRaftVoterResponse."""

    leader_id: int = int32("0+", default=-1)
    leader_epoch: int = int32("0+", default=-1)
    host: str = string("0+")
    port: int = int32("0+")


class UpdateRaftVoterResponse(Message, versions="0", flexible="0+", api_key=82):
    """UpdateRaftVoterResponse, API key 82, versions 0, flexible 0+."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    current_leader: CurrentLeader = struct(CurrentLeader, "0+", tag=0)
