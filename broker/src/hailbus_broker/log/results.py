"""What the log answers. Named tuples, because they are made for every append and every read."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from hailbus_broker.log.disk import File
    from hailbus_broker.records import LeaderEpoch, Offset, ProducerEpoch, ProducerId


_NEVER: Final = 2**63 - 1


class Origin(Enum):
    """Who appends; decides what is checked."""

    CLIENT = "client"
    """A producer: everything is checked, control batches are refused."""

    COORDINATOR = "coordinator"
    """This node's own records and markers: sizes and sequences only."""


class Isolation(Enum):
    """How far a read may see."""

    READ_UNCOMMITTED = 0
    """Up to the high watermark."""

    READ_COMMITTED = 1
    """Up to the last stable offset; the reader drops what `aborted_transactions` names."""

    LOG_END = 2
    """All there is: followers, recovery, and the coordinators that replay what they appended."""


class AppendResult(NamedTuple):
    """Where the batches of one append went.

    Attributes:
        base_offset: Of the first record, inclusive.
        last_offset: Of the last record, inclusive.
        log_append_time_ms: The time written into the batches under LogAppendTime, otherwise -1.
        log_start_offset: First offset of the log, for the response.
        is_duplicate: The producer repeats a batch: nothing was written, the offsets are those of then. Its
            acknowledgement must wait, like a new one's, until the high watermark has passed `last_offset`.
    """

    base_offset: Offset
    last_offset: Offset
    log_append_time_ms: int
    log_start_offset: Offset
    is_duplicate: bool


class Cut:
    """Where a file was cut off while slices of it may still be read; shared by a segment and its slices."""

    __slots__ = ("position",)

    def __init__(self) -> None:
        self.position: int = _NEVER


_NOT_CUT: Final = Cut()


class FileSlice(NamedTuple):
    """Batches that lie in a file: for `sendfile(file.fileno(), position, length)`, or `file.read(position, length)`.

    Hold the object until the bytes are sent: the descriptor lives as long as `file`.
    """

    file: File
    position: int
    length: int
    cut: Cut = _NOT_CUT

    @property
    def is_cut(self) -> bool:
        """Whether the log was truncated below the end of the slice: other batches may have come there since."""
        return self.cut.position < self.position + self.length


class AbortedTransaction(NamedTuple):
    """A transaction that ended in an abort.

    Attributes:
        first_offset: Of its first record in this partition.
        last_offset: Of its abort marker.
        last_stable_offset: The partition's when the marker was written.
    """

    producer_id: ProducerId
    first_offset: Offset
    last_offset: Offset
    last_stable_offset: Offset


class ReadResult(NamedTuple):
    """What a read found. Exactly one of `buffers` and `file_slice` holds bytes; neither when there is nothing to read.

    The bytes start with the batch that contains the offset (whose base offset may be lower) and may end within a batch.

    Attributes:
        buffers: Whole batches from the tail cache, to be written as they are.
        file_slice: Batches on disk.
        length: Bytes in either.
        high_watermark: As it was at the read, exclusive.
        last_stable_offset: As it was at the read, exclusive.
        log_start_offset: As it was at the read.
        aborted_transactions: Under READ_COMMITTED, what a reader of these bytes has to drop, by first offset;
            otherwise None.
    """

    buffers: tuple[memoryview | bytes | bytearray, ...]
    file_slice: FileSlice | None
    length: int
    high_watermark: Offset
    last_stable_offset: Offset
    log_start_offset: Offset
    aborted_transactions: tuple[AbortedTransaction, ...] | None

    def to_bytes(self) -> bytes:
        """All bytes, read from the file if they have to be. For replay and tests, not for the hot path."""
        if self.file_slice is None:
            return b"".join(self.buffers)
        return self.file_slice.file.read(self.file_slice.position, self.file_slice.length)


class TimestampAndOffset(NamedTuple):
    """Answer of a search by time: the record's timestamp in ms, its offset, and the leader epoch it was written in."""

    timestamp: int
    offset: Offset
    leader_epoch: LeaderEpoch


class ActiveProducer(NamedTuple):
    """One producer's state, for DescribeProducers. -1 where there is nothing."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_transaction_start_offset: Offset
