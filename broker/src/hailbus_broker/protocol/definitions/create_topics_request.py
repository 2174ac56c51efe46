"""CreateTopicsRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, boolean, int16, int32, string


class CreatableReplicaAssignment(Struct):
    """Part of CreateTopicsRequest."""

    partition_index: int = int32("0+")
    broker_ids: list[int] = array(int32("0+"), "0+")


class CreatableTopicConfig(Struct):
    """Part of CreateTopicsRequest."""

    name: str = string("0+")
    value: str | None = string("0+", nullable="0+")


class CreatableTopic(Struct):
    """Part of CreateTopicsRequest."""

    name: str = string("0+")
    num_partitions: int = int32("0+")
    replication_factor: int = int16("0+")
    assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment, "0+")
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig, "0+")


class CreateTopicsRequest(Message, versions="2-7", flexible="5+", api_key=19):
    """CreateTopicsRequest, API key 19, versions 2-7, flexible 5+."""

    topics: list[CreatableTopic] = array(CreatableTopic, "0+")
    timeout_ms: int = int32("0+", default=60000)
    validate_only: bool = boolean("1+", default=False)
