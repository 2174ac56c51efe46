"""What a topic asks of a client's batch, as Kafka's LogValidator does.

The header of every batch is checked, and that a batch of its size can hold the number of records that it claims.
Records are only read where a header cannot tell: keys on compacted topics, lower timestamp bounds, and a topic's own
`compression.type`. There the records must be what the header says.

Deviation from Apache Kafka: elsewhere the records stay unread, so a header that lies about them is believed.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from hailbus_broker.log.config import MAX_LONG, LogConfig
from hailbus_broker.records import (
    BATCH_OVERHEAD,
    MAX_DECOMPRESSED_BYTES,
    BatchView,
    Compression,
    CorruptBatchError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordError,
    TimestampType,
    UnsupportedCompressionError,
    iterate_records,
    rebuild_batch,
)
from hailbus_broker.records.batch import CODEC_MASK, CONTROL_BIT, HEADER, LOG_APPEND_TIME_BIT, TRANSACTIONAL_BIT
from hailbus_broker.records.building import update_crc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from hailbus_broker.records import Record

MIN_RECORD_BYTES: Final = 7
"""A record without key, value and headers: each of its seven fields takes a byte or more."""

MAX_RECORDS: Final = 200_000
"""So many records of a batch are read at most. Reading one takes a microsecond or two, in which nobody else is served,
and a batch of some KB may decompress to millions."""
MAX_RECORD_ERRORS: Final = 100

_ATTRIBUTES_INDEX: Final = 5
_MAX_TIMESTAMP_INDEX: Final = 8


def check_batch(batch: BatchView, config: LogConfig, now_ms: int) -> None:
    """Whether a client may append a batch with this header to a topic with these settings.

    Raises:
        InvalidRecordError: It may not.
        InvalidTimestampError: Its newest timestamp is too far in the future, or not the producer's own.
        UnsupportedCompressionError: Its codec does not exist.
    """
    (
        base_offset,
        _,
        _,
        _,
        _,
        attributes,
        offset_delta,
        _,
        max_timestamp,
        producer_id,
        producer_epoch,
        sequence,
        count,
    ) = batch.header
    if count < 1 or offset_delta != count - 1 or base_offset != 0:
        if base_offset != 0:
            raise InvalidRecordError(f"a producer's batch begins at offset {base_offset}, which is the log's to give")
        raise InvalidRecordError(f"a batch with {count} records has a last offset delta of {offset_delta}")
    is_compressed = attributes & CODEC_MASK
    if count * MIN_RECORD_BYTES > (MAX_DECOMPRESSED_BYTES if is_compressed else batch.size_bytes - BATCH_OVERHEAD):
        raise InvalidRecordError(f"a batch of {batch.size_bytes} bytes cannot hold the {count} records that it claims")
    if attributes & (CONTROL_BIT | LOG_APPEND_TIME_BIT):
        if attributes & CONTROL_BIT:
            raise InvalidRecordError("clients may not write control records")
        raise InvalidTimestampError("a producer may not say that its timestamps are the log's")
    if attributes & CODEC_MASK > Compression.ZSTD:
        raise UnsupportedCompressionError(attributes & CODEC_MASK)
    if producer_id >= 0:
        if sequence < 0 or producer_epoch < 0:
            raise InvalidRecordError(
                f"producer {producer_id} gives the sequence {sequence} and the epoch {producer_epoch}, "
                "both must be 0 or more"
            )
    elif attributes & TRANSACTIONAL_BIT:
        raise InvalidRecordError("a transactional batch has no producer id")
    if (
        max_timestamp - now_ms > config.message_timestamp_after_max_ms
        and config.message_timestamp_type is TimestampType.CREATE_TIME
    ):
        message = (
            f"a record is {max_timestamp - now_ms} ms in the future, "
            f"message.timestamp.after.max.ms allows {config.message_timestamp_after_max_ms}"
        )
        newest = now_ms + config.message_timestamp_after_max_ms
        raise InvalidTimestampError(
            message,
            record_errors=_record_errors(
                (number for number, record in _first_records(batch) if record.timestamp > newest), message
            ),
        )


def prepare(
    buffer: bytearray | memoryview, fields: tuple[Any, ...], config: LogConfig, now_ms: int
) -> bytearray | memoryview | None:
    """Look into a batch and change it, where the topic's settings make that necessary.

    Returns:
        The batch to be written instead of the one that came (it may be the same buffer, changed); None when it stays.

    Raises:
        InvalidRecordError: A record has no key on a compacted topic, or the records are not what the header says.
        InvalidTimestampError: A record is older than `message_timestamp_before_max_ms` allows.
    """
    attributes = fields[_ATTRIBUTES_INDEX]
    is_append_time = config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
    is_other_codec = config.compression_type is not None and attributes & CODEC_MASK != config.compression_type
    checks_age = config.message_timestamp_before_max_ms < MAX_LONG and not is_append_time
    if not (is_append_time or is_other_codec or checks_age or config.is_compacted):
        return None
    if is_other_codec or checks_age or config.is_compacted:
        batch = BatchView(buffer)
        records = _read_records(batch)
        oldest = now_ms - config.message_timestamp_before_max_ms if checks_age else -1
        _check_records(records, needs_key=config.is_compacted, oldest_timestamp=oldest)
        if is_other_codec:
            buffer = rebuild_batch(
                batch.header, records, compression=config.compression_type, compression_level=config.compression_level
            )
    if is_append_time:
        changed = list(HEADER.unpack_from(buffer))
        changed[_ATTRIBUTES_INDEX] |= LOG_APPEND_TIME_BIT
        changed[_MAX_TIMESTAMP_INDEX] = now_ms
        HEADER.pack_into(buffer, 0, *changed)
        update_crc(buffer)
    return buffer


def _record_errors(numbers: Iterable[int], message: str) -> tuple[RecordError, ...]:
    """The same error for records of a batch; the first ones stand for all."""
    return tuple(RecordError(batch_index=number, message=message) for number in islice(numbers, MAX_RECORD_ERRORS))


def _first_records(batch: BatchView) -> Iterator[tuple[int, Record]]:
    """The records of a refused batch, to say which of them are the reason; only so many are looked at."""
    try:
        yield from enumerate(islice(iterate_records(batch), MAX_RECORDS))
    except CorruptBatchError:
        return  # there is a reason to refuse it already


def _read_records(batch: BatchView) -> list[Record]:
    """All records of a batch that a client sent.

    Raises:
        InvalidRecordError: They are not what the header says. The CRC fits, so it would not help to send them again.
            Or there are so many that nobody could be served while they are read.
    """
    if batch.header.record_count > MAX_RECORDS:
        raise InvalidRecordError(
            f"a batch has {batch.header.record_count} records; of this topic the broker reads them, "
            f"and takes at most {MAX_RECORDS} in one batch"
        )
    try:
        records = list(iterate_records(batch))
    except CorruptBatchError as error:
        raise InvalidRecordError(f"the records of a batch cannot be read: {error}") from error
    for number, record in enumerate(records):
        if record.offset != number:
            raise InvalidRecordError(f"record {number} of a batch has the offset delta {record.offset}")
    return records


def _check_records(records: Sequence[Record], *, needs_key: bool, oldest_timestamp: int) -> None:
    if needs_key:
        keyless = [number for number, record in enumerate(records) if record.key is None]
        if keyless:
            message = "a compacted topic takes no record without key"
            raise InvalidRecordError(message, record_errors=_record_errors(keyless, message))
    too_old = [number for number, record in enumerate(records) if 0 <= record.timestamp < oldest_timestamp]
    if too_old:
        message = f"a record is older than message.timestamp.before.max.ms allows: before {oldest_timestamp}"
        raise InvalidTimestampError(message, record_errors=_record_errors(too_old, message))
