"""ListTransactionsRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, array, int64, string


class ListTransactionsRequest(Message, versions="0-2", flexible="0+", api_key=66):
    """ListTransactionsRequest, API key 66, versions 0-2, flexible 0+."""

    state_filters: list[str] = array(string("0+"), "0+")
    producer_id_filters: list[int] = array(int64("0+"), "0+")
    duration_filter: int = int64("1+", default=-1)
    transactional_id_pattern: str | None = string("2+", default=None, nullable="2+")
