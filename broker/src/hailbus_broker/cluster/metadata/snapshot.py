"""A snapshot of the metadata: what all records up to an offset add up to, as records (KIP-630).

A file `<end offset>-<leader epoch>.checkpoint` of record batches: a control batch that says that a snapshot begins, and
who votes; the records that make the image; a control batch that says that the file is whole. With it the log before the
offset can go, and a start reads the snapshot and what came after it.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from hailbus_broker.cluster.metadata.records import decode_record, encode_record
from hailbus_broker.records import (
    ControlType,
    CorruptBatchError,
    RecordToWrite,
    build_batch,
    iterate_batches,
    iterate_records,
    read_control_type,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hailbus_broker.protocol.schema import Message

BATCH_RECORDS: Final = 1_000

_NAME: Final = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_CONTROL_KEY: Final = Struct(">hh")
_HEADER: Final = Struct(">hqb")  # version, timestamp of the last record, no tags
_FOOTER: Final = Struct(">hb")  # version, no tags


class SnapshotId(NamedTuple):
    """What a snapshot covers: everything below the end offset, whose last record has the leader epoch."""

    end_offset: int
    leader_epoch: int

    @property
    def file_name(self) -> str:
        """As Apache Kafka calls it."""
        return f"{self.end_offset:020}-{self.leader_epoch:010}.checkpoint"

    @classmethod
    def parse(cls, file_name: str) -> SnapshotId | None:
        """The snapshot that a file is; None for any other file."""
        found = _NAME.fullmatch(file_name)
        return None if found is None else cls(int(found[1]), int(found[2]))


def encode_snapshot(
    records: Iterable[Message], *, timestamp: int, now_ms: int, quorum: Iterable[tuple[ControlType, bytes]] = ()
) -> bytes:
    """The file's bytes.

    Args:
        records: From `MetadataImage.to_records`.
        timestamp: Of the last record that the snapshot covers.
        now_ms: Milliseconds since 1970 UTC, the timestamp of the snapshot's own records.
        quorum: Control records about the quorum, from `control_records.quorum_state`.
    """
    values = [encode_record(record) for record in records]
    out = bytearray()
    offset = 0

    def control(*said: tuple[ControlType, bytes]) -> None:
        nonlocal offset
        batch = [RecordToWrite(key=_CONTROL_KEY.pack(0, kind), value=value, timestamp=now_ms) for kind, value in said]
        out.extend(build_batch(batch, base_offset=offset, leader_epoch=0, is_control=True))
        offset += len(batch)

    control((ControlType.SNAPSHOT_HEADER, _HEADER.pack(0, timestamp, 0)), *quorum)
    for start in range(0, len(values), BATCH_RECORDS):
        part = values[start : start + BATCH_RECORDS]
        data = [RecordToWrite(key=None, value=value, timestamp=now_ms) for value in part]
        out.extend(build_batch(data, base_offset=offset, leader_epoch=0))
        offset += len(part)
    control((ControlType.SNAPSHOT_FOOTER, _FOOTER.pack(0, 0)))
    return bytes(out)


def decode_snapshot(data: bytes) -> list[Message]:
    """The records of a snapshot.

    Raises:
        CorruptBatchError: It is damaged, or not whole.
        ProtocolError: A record is none that this broker knows.
    """
    found: list[Message] = []
    controls: list[ControlType | None] = []
    for batch in iterate_batches(data):
        batch.check_crc()
        if batch.header.is_control:
            controls.append(read_control_type(batch))
        else:
            found += [decode_record(record.value or b"") for record in iterate_records(batch)]
    if (
        not controls
        or controls[0] is not ControlType.SNAPSHOT_HEADER
        or controls[-1] is not ControlType.SNAPSHOT_FOOTER
    ):
        raise CorruptBatchError("a metadata snapshot has no beginning or no end")
    return found
