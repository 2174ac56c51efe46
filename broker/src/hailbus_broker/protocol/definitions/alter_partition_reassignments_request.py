"""AlterPartitionReassignmentsRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, boolean, int32, string


class ReassignablePartition(Struct):
    """Part of AlterPartitionReassignmentsRequest."""

    partition_index: int = int32("0+")
    replicas: list[int] | None = array(int32("0+"), "0+", default=None, nullable="0+")


class ReassignableTopic(Struct):
    """Part of AlterPartitionReassignmentsRequest."""

    name: str = string("0+")
    partitions: list[ReassignablePartition] = array(ReassignablePartition, "0+")


class AlterPartitionReassignmentsRequest(Message, versions="0-1", flexible="0+", api_key=45):
    """AlterPartitionReassignmentsRequest, API key 45, versions 0-1, flexible 0+."""

    timeout_ms: int = int32("0+", default=60000)
    allow_replication_factor_change: bool = boolean("1+", default=True)
    topics: list[ReassignableTopic] = array(ReassignableTopic, "0+")
