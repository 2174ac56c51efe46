"""The log of one partition: segments on disk in Kafka's format, synchronous code over the `Disk` port."""

from hailbus_broker.log.compaction import CompactionTask
from hailbus_broker.log.config import CleanupPolicy, LogConfig
from hailbus_broker.log.disk import Disk, File
from hailbus_broker.log.errors import (
    BatchSetTooLargeError,
    BatchTooLargeError,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    LogError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    StorageError,
    SwapRunningError,
    TransactionCoordinatorFencedError,
    UnexpectedAppendOffsetError,
)
from hailbus_broker.log.log_directory import (
    LogDirectory,
    MetaProperties,
    PendingCheckpoint,
    TopicPartition,
)
from hailbus_broker.log.lookup import DiskReadNeededError, Lookup
from hailbus_broker.log.partition_log import PartitionLog
from hailbus_broker.log.results import (
    AbortedTransaction,
    ActiveProducer,
    AppendResult,
    FileSlice,
    Isolation,
    Origin,
    ReadResult,
    TimestampAndOffset,
)
from hailbus_broker.log.retention import PendingRemoval
from hailbus_broker.log.sync import PendingSync
from hailbus_broker.log.tail_cache import TailCache
from hailbus_broker.log.uuids import decode_uuid, draw_uuid, encode_uuid

__all__ = [
    "AbortedTransaction",
    "ActiveProducer",
    "AppendResult",
    "BatchSetTooLargeError",
    "BatchTooLargeError",
    "CleanupPolicy",
    "CompactionTask",
    "Disk",
    "DiskReadNeededError",
    "File",
    "FileSlice",
    "InvalidProducerEpochError",
    "InvalidTransactionStateError",
    "Isolation",
    "LogConfig",
    "LogDirectory",
    "LogError",
    "Lookup",
    "MetaProperties",
    "OffsetOutOfRangeError",
    "Origin",
    "OutOfOrderSequenceError",
    "PartitionLog",
    "PendingCheckpoint",
    "PendingRemoval",
    "PendingSync",
    "ReadResult",
    "StorageError",
    "SwapRunningError",
    "TailCache",
    "TimestampAndOffset",
    "TopicPartition",
    "TransactionCoordinatorFencedError",
    "UnexpectedAppendOffsetError",
    "decode_uuid",
    "draw_uuid",
    "encode_uuid",
]
