"""DescribeClusterRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, boolean, int8


class DescribeClusterRequest(Message, versions="0-2", flexible="0+", api_key=60):
    """DescribeClusterRequest, API key 60, versions 0-2, flexible 0+."""

    include_cluster_authorized_operations: bool = boolean("0+")
    endpoint_type: int = int8("1+", default=1)
    include_fenced_brokers: bool = boolean("2+")
