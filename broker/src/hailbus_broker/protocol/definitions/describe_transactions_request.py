"""DescribeTransactionsRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, array, string


class DescribeTransactionsRequest(Message, versions="0", flexible="0+", api_key=65):
    """DescribeTransactionsRequest, API key 65, versions 0, flexible 0+."""

    transactional_ids: list[str] = array(string("0+"), "0+")
