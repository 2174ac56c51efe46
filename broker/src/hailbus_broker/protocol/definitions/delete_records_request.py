"""DeleteRecordsRequest. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, int32, int64, string


class DeleteRecordsPartition(Struct):
    """Part of DeleteRecordsRequest."""

    partition_index: int = int32("0+")
    offset: int = int64("0+")


class DeleteRecordsTopic(Struct):
    """Part of DeleteRecordsRequest."""

    name: str = string("0+")
    partitions: list[DeleteRecordsPartition] = array(DeleteRecordsPartition, "0+")


class DeleteRecordsRequest(Message, versions="0-2", flexible="2+", api_key=21):
    """DeleteRecordsRequest, API key 21, versions 0-2, flexible 2+."""

    topics: list[DeleteRecordsTopic] = array(DeleteRecordsTopic, "0+")
    timeout_ms: int = int32("0+")
