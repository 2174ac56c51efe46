"""Record batches: the bytes that disk and wire share.

A record batch is opaque to the broker wherever that is possible: its 61-byte header is read, two integers of it are
patched, and the rest travels from socket to disk to socket as it came.
"""

from hailbus_broker.records.batch import (
    BATCH_OVERHEAD,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    BatchView,
    TimestampType,
    iterate_batches,
    split_batches,
)
from hailbus_broker.records.building import (
    Header,
    RecordToWrite,
    build_batch,
    build_control_batch,
    rebuild_batch,
)
from hailbus_broker.records.compression import MAX_DECOMPRESSED_BYTES, Compression, compress, decompress
from hailbus_broker.records.crc import crc32c
from hailbus_broker.records.errors import (
    CorruptBatchError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordError,
    RecordsError,
    UnsupportedCompressionError,
    UnsupportedMagicError,
)
from hailbus_broker.records.ids import LeaderEpoch, Offset, ProducerEpoch, ProducerId
from hailbus_broker.records.record import ControlType, Record, iterate_records, read_control_type

__all__ = [
    "BATCH_OVERHEAD",
    "MAX_DECOMPRESSED_BYTES",
    "NO_PRODUCER_EPOCH",
    "NO_PRODUCER_ID",
    "NO_SEQUENCE",
    "NO_TIMESTAMP",
    "BatchHeader",
    "BatchView",
    "Compression",
    "ControlType",
    "CorruptBatchError",
    "Header",
    "InvalidRecordError",
    "InvalidTimestampError",
    "LeaderEpoch",
    "Offset",
    "ProducerEpoch",
    "ProducerId",
    "Record",
    "RecordError",
    "RecordToWrite",
    "RecordsError",
    "TimestampType",
    "UnsupportedCompressionError",
    "UnsupportedMagicError",
    "build_batch",
    "build_control_batch",
    "compress",
    "crc32c",
    "decompress",
    "iterate_batches",
    "iterate_records",
    "read_control_type",
    "rebuild_batch",
    "split_batches",
]
