"""RemoveRaftVoterResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, int16, int32, string


class RemoveRaftVoterResponse(Message, versions="0", flexible="0+", api_key=81):
    """RemoveRaftVoterResponse, API key 81, versions 0, flexible 0+."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
