"""CreatePartitionsRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, boolean, int32, string


class CreatePartitionsAssignment(Struct):
    """Part of CreatePartitionsRequest."""

    broker_ids: list[int] = array(int32("0+"), "0+")


class CreatePartitionsTopic(Struct):
    """Part of CreatePartitionsRequest."""

    name: str = string("0+")
    count: int = int32("0+")
    assignments: list[CreatePartitionsAssignment] | None = array(CreatePartitionsAssignment, "0+", nullable="0+")


class CreatePartitionsRequest(Message, versions="0-3", flexible="2+", api_key=37):
    """CreatePartitionsRequest, API key 37, versions 0-3, flexible 2+."""

    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic, "0+")
    timeout_ms: int = int32("0+")
    validate_only: bool = boolean("0+")
