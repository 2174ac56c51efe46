"""The records within a batch: for those few places that have to look inside.

A record: varint length, int8 attributes, varlong timestamp delta, varint offset delta, varint key length and key,
varint value length and value, varint header count and headers. Varints are zigzag-encoded, a length of -1 is null.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Final

from hailbus_broker.records.batch import BATCH_OVERHEAD, DELETE_HORIZON_BIT, LOG_APPEND_TIME_BIT, BatchView
from hailbus_broker.records.compression import decompress
from hailbus_broker.records.errors import CorruptBatchError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hailbus_broker.records.ids import Offset

_VARLONG_MAX_SHIFT: Final = 63
_INT64_END: Final = 1 << 63
_CONTROL_KEY: Final = Struct(">hh")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One stored record.

    Attributes:
        offset: Its position in the partition.
        timestamp: Milliseconds since 1970 UTC, -1 for none.
        key: The key's bytes or None.
        value: The value's bytes; None is a tombstone.
        headers: Names and values, in order.
    """

    offset: Offset
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class ControlType(IntEnum):
    """What a control record says."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


def iterate_records(batch: BatchView) -> Iterator[Record]:
    """Decompress a batch, if it is compressed, and walk its records.

    Raises:
        CorruptBatchError: The record section is not what the header says.
    """
    header = batch.header
    data = decompress(header.codec, batch.data[BATCH_OVERHEAD:])
    # Where compaction has put the delete horizon into this field, it has rewritten the deltas to count from there
    # (KIP-534).
    base_timestamp = header.base_timestamp
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME_BIT else None
    position = 0
    for _ in range(header.record_count):
        length, position = read_varint(data, position)
        end = position + length
        if length < 0 or end > len(data):
            raise CorruptBatchError("a record is longer than its batch", position=position)
        try:
            record, position = _read_record(data, position + 1, header.base_offset, base_timestamp, append_time)
        except UnicodeDecodeError as error:
            raise CorruptBatchError("a record header's name is not UTF-8", position=position) from error
        if position != end:
            raise CorruptBatchError("a record does not end where its length says", position=position)
        yield record
    if position != len(data):
        raise CorruptBatchError(
            f"a batch of {header.record_count} records has {len(data) - position} bytes after the last one",
            position=position,
        )


def _read_record(
    data: bytes, position: int, base_offset: int, base_timestamp: int, append_time: int | None
) -> tuple[Record, int]:
    timestamp_delta, position = read_varint(data, position)
    offset_delta, position = read_varint(data, position)
    key, position = _read_bytes(data, position)
    value, position = _read_bytes(data, position)
    header_count, position = read_varint(data, position)
    if header_count < 0 or header_count > len(data):
        raise CorruptBatchError(f"a record claims {header_count} headers", position=position)
    headers = []
    for _ in range(header_count):
        name, position = _read_bytes(data, position)
        if name is None:
            raise CorruptBatchError("a record header has no name", position=position)
        header_value, position = _read_bytes(data, position)
        headers.append((name.decode(), header_value))
    timestamp = wrap_int64(base_timestamp + timestamp_delta) if append_time is None else append_time
    record = Record(
        offset=base_offset + offset_delta, timestamp=timestamp, key=key, value=value, headers=tuple(headers)
    )
    return record, position


def _read_bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = read_varint(data, position)
    if length < 0:
        if length != -1:
            raise CorruptBatchError(f"a field of a record claims a length of {length}", position=position)
        return None, position
    end = position + length
    if end > len(data):
        raise CorruptBatchError("a field of a record is longer than its batch", position=position)
    return data[position:end], end


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Read a zigzag varint of at most 64 bits.

    Returns:
        The number and the position after it.

    Raises:
        CorruptBatchError: The data ends within it, or it is longer than 64 bits.
    """
    result = shift = 0
    try:
        while True:
            byte = data[position]
            position += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (result >> 1) ^ -(result & 1), position
            shift += 7
            if shift > _VARLONG_MAX_SHIFT:
                raise CorruptBatchError("a varint is longer than 64 bits", position=position)
    except IndexError:
        raise CorruptBatchError("the record section ends within a record", position=position) from None


def wrap_int64(number: int) -> int:
    """Wrap a sum or difference of two int64 as other implementations do.

    Producers may send any int64 as a timestamp, and two of them can be further apart than an int64 reaches. Java
    wraps both the delta and its sum with the base, so that every reader gets the timestamp back.
    """
    if -_INT64_END <= number < _INT64_END:
        return number
    return (number + _INT64_END) % (2 * _INT64_END) - _INT64_END


def read_control_type(batch: BatchView) -> ControlType | None:
    """What a control batch says: the type of its first record, None for one that is not known or for an empty batch.

    Raises:
        CorruptBatchError: The control record has no key that could hold a type.
    """
    for record in iterate_records(batch):
        if record.key is None or len(record.key) < _CONTROL_KEY.size:
            raise CorruptBatchError("a control record has no type", position=batch.position)
        number = _CONTROL_KEY.unpack_from(record.key)[1]
        return ControlType(number) if number in ControlType._value2member_map_ else None
    return None


__all__ = [
    "DELETE_HORIZON_BIT",
    "ControlType",
    "Record",
    "iterate_records",
    "read_control_type",
    "read_varint",
    "wrap_int64",
]
