"""ListPartitionReassignmentsRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, int32, string


class ListPartitionReassignmentsTopics(Struct):
    """Part of ListPartitionReassignmentsRequest."""

    name: str = string("0+")
    partition_indexes: list[int] = array(int32("0+"), "0+")


class ListPartitionReassignmentsRequest(Message, versions="0", flexible="0+", api_key=46):
    """ListPartitionReassignmentsRequest, API key 46, versions 0, flexible 0+."""

    timeout_ms: int = int32("0+", default=60000)
    topics: list[ListPartitionReassignmentsTopics] | None = array(
        ListPartitionReassignmentsTopics, "0+", default=None, nullable="0+"
    )
