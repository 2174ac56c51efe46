"""IncrementalAlterConfigsRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, boolean, int8, string


class AlterableConfig(Struct):
    """Part of IncrementalAlterConfigsRequest."""

    name: str = string("0+")
    config_operation: int = int8("0+")
    value: str | None = string("0+", nullable="0+")


class AlterConfigsResource(Struct):
    """Part of IncrementalAlterConfigsRequest."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    configs: list[AlterableConfig] = array(AlterableConfig, "0+")


class IncrementalAlterConfigsRequest(Message, versions="0-1", flexible="1+", api_key=44):
    """IncrementalAlterConfigsRequest, API key 44, versions 0-1, flexible 1+."""

    resources: list[AlterConfigsResource] = array(AlterConfigsResource, "0+")
    validate_only: bool = boolean("0+")
