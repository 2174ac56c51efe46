"""The header of a record batch v2, and how batches follow one another in a buffer.

Layout (KIP-98; every integer big-endian):

| position | field | in the CRC |
|---|---|---|
| 0 | base offset, int64 | no |
| 8 | length of all that follows, int32 | no |
| 12 | leader epoch, int32 | no |
| 16 | magic, int8 | no |
| 17 | CRC-32C of all from the attributes on, uint32 | no |
| 21 | attributes, int16: codec (0-2), timestamp type (3), transactional (4), control (5), delete horizon (6) | yes |
| 23 | last offset delta, int32 | yes |
| 27 | base timestamp (or delete horizon), int64 | yes |
| 35 | max timestamp, int64 | yes |
| 43 | producer id, int64 | yes |
| 51 | producer epoch, int16 | yes |
| 53 | base sequence, int32 | yes |
| 57 | record count, int32 | yes |
| 61 | records | yes |

What a leader has to change on append lies outside of the CRC.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from hailbus_broker.records.crc import crc32c
from hailbus_broker.records.errors import CorruptBatchError, InvalidRecordError, UnsupportedMagicError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hailbus_broker.records.ids import LeaderEpoch, Offset, ProducerEpoch, ProducerId

BATCH_OVERHEAD: Final = 61
"""Bytes of a batch without any record."""

LOG_OVERHEAD: Final = 12
"""Bytes before the part that the length field counts."""

MAGIC_POSITION: Final = 16
CRC_POSITION: Final = 17
CRC_START: Final = 21

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1
NO_LEADER_EPOCH: Final = -1

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40

HEADER: Final = Struct(">qiibIhiqqqhii")
"""All fields of a batch header, in the order of `BatchHeader`."""

OFFSETS: Final = Struct(">q15xi")
"""The base offset of a batch, and its last offset less that."""

assert HEADER.size == BATCH_OVERHEAD, HEADER.size

_OFFSET_AND_LENGTH: Final = Struct(">qi")


class TimestampType(IntEnum):
    """Who said what time it is: bit 3 of a batch's attributes, `message.timestamp.type` of a topic."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(NamedTuple):
    """The fields of a batch header, as encoded in its bytes."""

    base_offset: Offset
    length: int
    leader_epoch: LeaderEpoch
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole batch, header included."""
        return self.length + LOG_OVERHEAD

    @property
    def last_offset(self) -> Offset:
        """Offset of the last record that the batch was written with, inclusive; compaction keeps it."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> Offset:
        """Offset after the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; sequences wrap from 2**31 - 1 to 0. -1 for a batch without sequence."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def codec(self) -> int:
        """Number of the compression codec, as in `Compression`."""
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> TimestampType:
        """Whether the timestamps are the producer's or this log's."""
        return TimestampType.LOG_APPEND_TIME if self.attributes & LOG_APPEND_TIME_BIT else TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """Whether the batch holds a transaction marker (or a Raft record) instead of somebody's data."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When compaction may drop the batch's tombstones (KIP-534), or None if it has not been decided."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def has_producer_id(self) -> bool:
        """Whether an idempotent or transactional producer wrote the batch."""
        return self.producer_id > NO_PRODUCER_ID


class BatchView:
    """One batch within a buffer: its header, unpacked once, and its bytes, not copied.

    Args:
        buffer: Where the batch lies.
        position: Where it starts in there.

    Raises:
        CorruptBatchError: The buffer ends before the batch does, or its length is impossible.
        UnsupportedMagicError: It is not a v2 batch.
    """

    __slots__ = ("data", "header", "position")

    def __init__(self, buffer: bytes | bytearray | memoryview, position: int = 0) -> None:
        self.header: Final = read_header(buffer, position)
        self.position: Final = position
        end = position + self.header.length + LOG_OVERHEAD
        if end > len(buffer):
            raise CorruptBatchError("the bytes end within a record batch", position=position)
        self.data: Final = memoryview(buffer)[position:end]

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole batch, header included."""
        return len(self.data)

    def check_crc(self, *, path: str = "") -> None:
        """Compare the CRC in the header with that of the bytes.

        Raises:
            CorruptBatchError: They differ.
        """
        found = crc32c(self.data[CRC_START:])
        if found != self.header.crc:
            raise CorruptBatchError(
                "a record batch does not match its CRC",
                path=path,
                position=self.position,
                expected_crc=self.header.crc,
                found_crc=found,
            )


def read_header(buffer: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader:
    """Unpack the header of the batch at a position and check that it is one.

    Raises:
        CorruptBatchError: There are too few bytes for a header, or its length is impossible.
        UnsupportedMagicError: It is not a v2 batch.
    """
    available = len(buffer) - position
    if available <= MAGIC_POSITION:
        raise CorruptBatchError(f"{available} bytes are too few for a record batch", position=position)
    magic = int.from_bytes(buffer[position + MAGIC_POSITION : position + MAGIC_POSITION + 1], "big", signed=True)
    if magic != 2:
        if 0 <= magic <= 1:
            raise UnsupportedMagicError(magic)
        raise CorruptBatchError(f"a record batch has the unknown magic {magic}", position=position)
    if available < BATCH_OVERHEAD:
        raise CorruptBatchError(f"{available} bytes are too few for a record batch", position=position)
    header = BatchHeader._make(HEADER.unpack_from(buffer, position))
    if header.length < BATCH_OVERHEAD - LOG_OVERHEAD:
        raise CorruptBatchError(f"a record batch claims a length of {header.length} bytes", position=position)
    return header


def iterate_batches(buffer: bytes | bytearray | memoryview, *, whole: bool = True) -> Iterator[BatchView]:
    """Walk the batches that lie one after another in a buffer.

    Args:
        buffer: For example the records of a Produce request or of a Fetch response.
        whole: Whether the buffer must end with a batch. A fetch may cut its last batch: then pass False, and it is
            left out.

    Raises:
        CorruptBatchError: The bytes are not batches.
        UnsupportedMagicError: A batch has the format of before Kafka 0.11.
    """
    position = 0
    size = len(buffer)
    while position < size:
        if not whole:
            if size - position < BATCH_OVERHEAD:
                return
            length: int = _OFFSET_AND_LENGTH.unpack_from(buffer, position)[1]
            if position + LOG_OVERHEAD + length > size:
                return
        view = BatchView(buffer, position)
        yield view
        position += view.size_bytes


def split_batches(buffer: bytes | bytearray | memoryview) -> list[BatchView]:
    """All batches of a buffer; at least one.

    Raises:
        InvalidRecordError: The buffer is empty.
    """
    batches = list(iterate_batches(buffer))
    if not batches:
        raise InvalidRecordError("no record batch was given")
    return batches
