"""WriteTxnMarkersRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, boolean, int8, int16, int32, int64, string


class WritableTxnMarkerTopic(Struct):
    """Part of WriteTxnMarkersRequest."""

    name: str = string("0+")
    partition_indexes: list[int] = array(int32("0+"), "0+")


class WritableTxnMarker(Struct):
    """Part of WriteTxnMarkersRequest."""

    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    transaction_result: bool = boolean("0+")
    topics: list[WritableTxnMarkerTopic] = array(WritableTxnMarkerTopic, "0+")
    coordinator_epoch: int = int32("0+")
    transaction_version: int = int8("2+", default=0)


class WriteTxnMarkersRequest(Message, versions="1-2", flexible="1+", api_key=27):
    """WriteTxnMarkersRequest, API key 27, versions 1-2, flexible 1+."""

    markers: list[WritableTxnMarker] = array(WritableTxnMarker, "0+")
