"""WriteTxnMarkersResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, int16, int32, int64, string


class WritableTxnMarkerPartitionResult(Struct):
    """Part of WriteTxnMarkersResponse."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")


class WritableTxnMarkerTopicResult(Struct):
    """Part of WriteTxnMarkersResponse."""

    name: str = string("0+")
    partitions: list[WritableTxnMarkerPartitionResult] = array(WritableTxnMarkerPartitionResult, "0+")


class WritableTxnMarkerResult(Struct):
    """Part of WriteTxnMarkersResponse."""

    producer_id: int = int64("0+")
    topics: list[WritableTxnMarkerTopicResult] = array(WritableTxnMarkerTopicResult, "0+")


class WriteTxnMarkersResponse(Message, versions="1-2", flexible="1+", api_key=27):
    """WriteTxnMarkersResponse, API key 27, versions 1-2, flexible 1+."""

    markers: list[WritableTxnMarkerResult] = array(WritableTxnMarkerResult, "0+")
