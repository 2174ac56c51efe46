"""ListTransactionsResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, int16, int32, int64, string


class TransactionState(Struct):
    """Part of ListTransactionsResponse."""

    transactional_id: str = string("0+")
    producer_id: int = int64("0+")
    transaction_state: str = string("0+")


class ListTransactionsResponse(Message, versions="0-2", flexible="0+", api_key=66):
    """ListTransactionsResponse, API key 66, versions 0-2, flexible 0+."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    unknown_state_filters: list[str] = array(string("0+"), "0+")
    transaction_states: list[TransactionState] = array(TransactionState, "0+")
