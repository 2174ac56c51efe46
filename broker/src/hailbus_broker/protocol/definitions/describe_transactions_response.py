"""DescribeTransactionsResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, int16, int32, int64, string


class TopicData(Struct):
    """Part of DescribeTransactionsResponse."""

    topic: str = string("0+")
    partitions: list[int] = array(int32("0+"), "0+")


class TransactionState(Struct):
    """Part of DescribeTransactionsResponse."""

    error_code: int = int16("0+")
    transactional_id: str = string("0+")
    transaction_state: str = string("0+")
    transaction_timeout_ms: int = int32("0+")
    transaction_start_time_ms: int = int64("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    topics: list[TopicData] = array(TopicData, "0+")


class DescribeTransactionsResponse(Message, versions="0", flexible="0+", api_key=65):
    """DescribeTransactionsResponse, API key 65, versions 0, flexible 0+."""

    throttle_time_ms: int = int32("0+")
    transaction_states: list[TransactionState] = array(TransactionState, "0+")
