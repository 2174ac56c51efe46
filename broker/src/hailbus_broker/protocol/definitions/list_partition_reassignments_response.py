"""ListPartitionReassignmentsResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, int16, int32, string


class OngoingPartitionReassignment(Struct):
    """Part of ListPartitionReassignmentsResponse."""

    partition_index: int = int32("0+")
    replicas: list[int] = array(int32("0+"), "0+")
    adding_replicas: list[int] = array(int32("0+"), "0+")
    removing_replicas: list[int] = array(int32("0+"), "0+")


class OngoingTopicReassignment(Struct):
    """Part of ListPartitionReassignmentsResponse."""

    name: str = string("0+")
    partitions: list[OngoingPartitionReassignment] = array(OngoingPartitionReassignment, "0+")


class ListPartitionReassignmentsResponse(Message, versions="0", flexible="0+", api_key=46):
    """ListPartitionReassignmentsResponse, API key 46, versions 0, flexible 0+."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    topics: list[OngoingTopicReassignment] = array(OngoingTopicReassignment, "0+")
