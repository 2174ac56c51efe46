"""Making record batches: for the broker's own topics, markers, compaction, recompression, and tests."""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Final, TypeAlias

from hailbus_broker.records.batch import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_POSITION,
    CRC_START,
    DELETE_HORIZON_BIT,
    HEADER,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    BatchHeader,
)
from hailbus_broker.records.compression import Compression, compress
from hailbus_broker.records.crc import crc32c
from hailbus_broker.records.record import ControlType, Record, wrap_int64

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hailbus_broker.records.ids import LeaderEpoch, Offset, ProducerEpoch, ProducerId

Header: TypeAlias = tuple[str, bytes | None]

_CONTROL_KEY: Final = Struct(">hh")
_END_TRANSACTION_VALUE: Final = Struct(">hi")
_CRC: Final = Struct(">I")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordToWrite:
    """A record that has no offset yet. A value of None is a tombstone."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[Header, ...] = ()


def build_batch(
    records: Sequence[RecordToWrite],
    *,
    base_offset: Offset = 0,
    compression: Compression = Compression.NONE,
    compression_level: int | None = None,
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH,
    producer_id: ProducerId = NO_PRODUCER_ID,
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
) -> bytearray:
    """One v2 batch with consecutive offsets from `base_offset` (a log assigns its own on append).

    Returns:
        A writable buffer, which `PartitionLog.append` may take over without copying.
    """
    assert records, "a batch has at least one record"
    base_timestamp = records[0].timestamp
    payload = bytearray()
    max_timestamp = NO_TIMESTAMP
    for offset_delta, record in enumerate(records):
        max_timestamp = max(max_timestamp, record.timestamp)
        write_record(payload, offset_delta, record.timestamp - base_timestamp, record.key, record.value, record.headers)
    attributes = int(compression)
    if is_transactional:
        attributes |= TRANSACTIONAL_BIT
    if is_control:
        attributes |= CONTROL_BIT
    header = BatchHeader(
        base_offset=base_offset,
        length=0,
        leader_epoch=leader_epoch,
        magic=2,
        crc=0,
        attributes=attributes,
        last_offset_delta=len(records) - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )
    return assemble(header, compress(compression, payload, level=compression_level))


def build_control_batch(
    control_type: ControlType,
    *,
    producer_id: ProducerId,
    producer_epoch: ProducerEpoch,
    coordinator_epoch: int,
    timestamp: int,
    base_offset: Offset = 0,
) -> bytearray:
    """A transaction marker: the end of a producer's transaction in one partition (KIP-98)."""
    record = RecordToWrite(
        key=_CONTROL_KEY.pack(0, control_type),
        value=_END_TRANSACTION_VALUE.pack(0, coordinator_epoch),
        timestamp=timestamp,
    )
    return build_batch(
        [record],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def rebuild_batch(
    header: BatchHeader,
    records: Iterable[Record],
    *,
    compression: Compression | None = None,
    compression_level: int | None = None,
    delete_horizon_ms: int | None = None,
) -> bytearray:
    """The same batch with other records: fewer (compaction) or the same ones in another codec.

    Base offset, last offset delta, sequence and producer stay, so that offsets and the producer's state survive. A
    batch without records remains as its bare header.

    Args:
        header: Of the batch as it was.
        records: What remains, in order; offsets and timestamps as they were read.
        compression: Codec of the new batch; None keeps it.
        compression_level: For the codec; None takes its default.
        delete_horizon_ms: When the tombstones may go; takes the base timestamp's place (KIP-534).
    """
    codec = Compression(header.codec) if compression is None else compression
    horizon = header.delete_horizon_ms if delete_horizon_ms is None else delete_horizon_ms
    base_timestamp = header.base_timestamp if horizon is None else horizon
    payload = bytearray()
    record_count = 0
    max_timestamp = NO_TIMESTAMP
    for record in records:
        max_timestamp = max(max_timestamp, record.timestamp)
        write_record(
            payload,
            record.offset - header.base_offset,
            0 if header.attributes & LOG_APPEND_TIME_BIT else record.timestamp - base_timestamp,
            record.key,
            record.value,
            record.headers,
        )
        record_count += 1
    attributes = header.attributes & ~CODEC_MASK
    if record_count:
        attributes |= codec
    if horizon is not None:
        attributes |= DELETE_HORIZON_BIT
    changed = header._replace(
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=header.max_timestamp if attributes & LOG_APPEND_TIME_BIT or not record_count else max_timestamp,
        record_count=record_count,
    )
    return assemble(changed, compress(codec, payload, level=compression_level) if record_count else b"")


def assemble(header: BatchHeader, payload: bytes | bytearray) -> bytearray:
    """Header and record section as one batch, with its length and CRC computed."""
    size = BATCH_OVERHEAD + len(payload)
    batch = bytearray(size)
    HEADER.pack_into(batch, 0, *header._replace(length=size - LOG_OVERHEAD, crc=0))
    batch[BATCH_OVERHEAD:] = payload
    update_crc(batch)
    return batch


def update_crc(batch: bytearray | memoryview) -> None:
    """Write the CRC of one whole batch into its header."""
    _CRC.pack_into(batch, CRC_POSITION, crc32c(memoryview(batch)[CRC_START:]))


def write_record(
    out: bytearray,
    offset_delta: int,
    timestamp_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[Header],
) -> None:
    """Append one record in its wire form."""
    body = bytearray(1)  # attributes, none is in use
    write_varint(body, wrap_int64(timestamp_delta))
    write_varint(body, offset_delta)
    _write_bytes(body, key)
    _write_bytes(body, value)
    write_varint(body, len(headers))
    for name, header_value in headers:
        _write_bytes(body, name.encode())
        _write_bytes(body, header_value)
    write_varint(out, len(body))
    out += body


def _write_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out.append(0x01)  # the varint of -1
    else:
        write_varint(out, len(data))
        out += data


def write_varint(out: bytearray, number: int) -> None:
    """Append a zigzag varint."""
    encoded = (number << 1) ^ (number >> 63)
    while encoded > 0x7F:
        out.append((encoded & 0x7F) | 0x80)
        encoded >>= 7
    out.append(encoded)
