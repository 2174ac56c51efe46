"""What can be wrong with a record batch.

Every error names the Kafka error that a client gets for it (`error_name`, a member of `protocol.errors.ErrorCode`),
so that one line at the edge translates all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


class RecordsError(Exception):
    """A record batch was refused."""

    error_name: ClassVar[str] = "UNKNOWN_SERVER_ERROR"


class CorruptBatchError(RecordsError):
    """The bytes are not what was written: a CRC, a length or a magic number does not hold.

    Args:
        message: One sentence.
        path: The file it was read from; empty for bytes that came from a client.
        position: Where the batch starts in that file or buffer, in bytes.
        expected_crc: The CRC in the batch header, or None when another check failed.
        found_crc: The CRC of the bytes that were read.
    """

    error_name: ClassVar[str] = "CORRUPT_MESSAGE"

    def __init__(
        self,
        message: str,
        *,
        path: str = "",
        position: int = 0,
        expected_crc: int | None = None,
        found_crc: int | None = None,
    ) -> None:
        where = f"{path or 'the given bytes'} at position {position}"
        crcs = "" if expected_crc is None else f" (expected CRC {expected_crc:#010x}, found {found_crc or 0:#010x})"
        super().__init__(f"{message}: {where}{crcs}")
        self.path = path
        self.position = position
        self.expected_crc = expected_crc
        self.found_crc = found_crc


class UnsupportedMagicError(RecordsError):
    """A message format of before Kafka 0.11.

    (magic 0 or 1), which Apache Kafka 4 does not take either, or an unknown one.
    """

    error_name: ClassVar[str] = "UNSUPPORTED_FOR_MESSAGE_FORMAT"

    def __init__(self, magic: int) -> None:
        super().__init__(f"record batch has magic {magic}, only 2 is supported: use a client of Kafka 0.11 or newer")
        self.magic = magic


class UnsupportedCompressionError(RecordsError):
    """The batch names a codec that does not exist."""

    error_name: ClassVar[str] = "UNSUPPORTED_COMPRESSION_TYPE"

    def __init__(self, codec: int) -> None:
        super().__init__(f"record batch has compression codec {codec}, known are 0 (none) to 4 (zstd)")
        self.codec = codec


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordError:
    """One record of a refused batch: its index in the batch and why."""

    batch_index: int
    message: str


class InvalidRecordError(RecordsError):
    """The batch is intact but says something that the topic does not allow.

    Args:
        message: One sentence.
        record_errors: Which records, for Produce v8 and newer.
    """

    error_name: ClassVar[str] = "INVALID_RECORD"

    def __init__(self, message: str, *, record_errors: tuple[RecordError, ...] = ()) -> None:
        super().__init__(message)
        self.record_errors = record_errors


class InvalidTimestampError(InvalidRecordError):
    """A record's timestamp is outside of the topic's bounds."""

    error_name: ClassVar[str] = "INVALID_TIMESTAMP"
