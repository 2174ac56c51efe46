"""AlterConfigsRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, boolean, int8, string


class AlterableConfig(Struct):
    """Part of AlterConfigsRequest."""

    name: str = string("0+")
    value: str | None = string("0+", nullable="0+")


class AlterConfigsResource(Struct):
    """Part of AlterConfigsRequest."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    configs: list[AlterableConfig] = array(AlterableConfig, "0+")


class AlterConfigsRequest(Message, versions="0-2", flexible="2+", api_key=33):
    """AlterConfigsRequest, API key 33, versions 0-2, flexible 2+."""

    resources: list[AlterConfigsResource] = array(AlterConfigsResource, "0+")
    validate_only: bool = boolean("0+")
