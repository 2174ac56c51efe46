"""DescribeConfigsRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, boolean, int8, string


class DescribeConfigsResource(Struct):
    """Part of DescribeConfigsRequest."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    configuration_keys: list[str] | None = array(string("0+"), "0+", nullable="0+")


class DescribeConfigsRequest(Message, versions="1-4", flexible="4+", api_key=32):
    """DescribeConfigsRequest, API key 32, versions 1-4, flexible 4+."""

    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource, "0+")
    include_synonyms: bool = boolean("1+", default=False)
    include_documentation: bool = boolean("3+", default=False)
