"""What a log refuses, and how a machine fails.

As for `records.errors`, `error_name` is the Kafka error that a client gets.
"""

from __future__ import annotations

from errno import EMFILE, ENFILE
from typing import ClassVar, Final

_OUT_OF_DESCRIPTORS: Final = frozenset({EMFILE, ENFILE})


class LogError(Exception):
    """The log refused a request."""

    error_name: ClassVar[str] = "UNKNOWN_SERVER_ERROR"


class StorageError(LogError):
    """The machine failed: no space, an I/O error, a failed sync. The log refuses appends until it is opened again.

    Args:
        message: One sentence.
        path: The file or directory.
        errno: The operating system's number, 0 when it was not the system that failed.
    """

    error_name: ClassVar[str] = "KAFKA_STORAGE_ERROR"

    def __init__(self, message: str, *, path: str = "", errno: int = 0) -> None:
        super().__init__(f"{message}: {path}" if path else message)
        self.path = path
        self.errno = errno

    @property
    def is_out_of_descriptors(self) -> bool:
        """Whether too many files were open: nothing was tried on the disk, and the same may succeed later."""
        return self.errno in _OUT_OF_DESCRIPTORS


class InvalidCheckpointError(StorageError):
    """A checkpoint file does not have the form of one: it is damaged, or a newer version wrote it."""


class OffsetOutOfRangeError(LogError):
    """A read before the log start or after the log end (or after the high watermark, for consumers)."""

    error_name: ClassVar[str] = "OFFSET_OUT_OF_RANGE"

    def __init__(self, offset: int, *, log_start_offset: int, end_offset: int) -> None:
        super().__init__(f"offset {offset} is outside of [{log_start_offset}, {end_offset}]")
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.end_offset = end_offset


class BatchTooLargeError(LogError):
    """A batch is larger than `max.message.bytes`."""

    error_name: ClassVar[str] = "MESSAGE_TOO_LARGE"


class BatchSetTooLargeError(LogError):
    """The batches of one append are larger than a segment may be."""

    error_name: ClassVar[str] = "RECORD_LIST_TOO_LARGE"


class OutOfOrderSequenceError(LogError):
    """The base sequence does not follow this producer's last one (KIP-98)."""

    error_name: ClassVar[str] = "OUT_OF_ORDER_SEQUENCE_NUMBER"


class InvalidProducerEpochError(LogError):
    """The producer epoch is older than the newest one seen of this producer id: it is fenced."""

    error_name: ClassVar[str] = "INVALID_PRODUCER_EPOCH"


class InvalidTransactionStateError(LogError):
    """The batch does not fit the producer's transaction: data outside of one, or not verified with the coordinator."""

    error_name: ClassVar[str] = "INVALID_TXN_STATE"


class TransactionCoordinatorFencedError(LogError):
    """A marker of an older transaction coordinator."""

    error_name: ClassVar[str] = "TRANSACTION_COORDINATOR_FENCED"


class SwapRunningError(LogError):
    """Compaction is renaming the log's files; the same works when it has ended."""


class UnexpectedAppendOffsetError(LogError):
    """A follower was given batches that do not continue its log."""

    error_name: ClassVar[str] = "OFFSET_OUT_OF_RANGE"
