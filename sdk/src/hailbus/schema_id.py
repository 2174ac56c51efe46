"""Schema ids on records: Confluent's two wire formats. A header with a GUID, or five bytes in front of the value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

__all__ = ["HEADER", "SchemaId", "after_id", "header_of", "payload_of", "prefix_of", "schema_id_of"]

HEADER = "__value_schema_id"
"""Its value is binary: never decode it as text."""
_BY_ID = b"\x00"
_BY_GUID = b"\x01"
_PREFIX_BYTES = 5


class SchemaId(NamedTuple):
    """How a record names the schema of its value: by number, unique in one registry, or by GUID, unique anywhere."""

    id: int | None = None
    guid: str | None = None

    def __str__(self) -> str:
        return f"id {self.id}" if self.guid is None else f"GUID {self.guid}"


def prefix_of(id: int) -> bytes:
    """The prefix of a value: magic byte 0 and the id, big-endian."""
    return _BY_ID + id.to_bytes(4, "big")


def header_of(guid: str) -> tuple[str, bytes]:
    """The record header: magic byte 1 and the GUID's sixteen bytes."""
    return HEADER, _BY_GUID + UUID(guid).bytes


def payload_of(value: bytes) -> bytes:
    """The value without its prefix. No JSON text begins with byte 0, so there is nothing to ask."""
    return value[_PREFIX_BYTES:] if value[:1] == _BY_ID else value


def after_id(headers: Sequence[tuple[str, bytes]], value: bytes) -> tuple[bytes, bytes]:
    """What follows the schema id of a record: in the header, and in the value. One of them has message indexes."""
    for name, found in headers:
        if name == HEADER and found and found[:1] in {_BY_ID, _BY_GUID}:
            return bytes(found[17:] if found[:1] == _BY_GUID else found[5:]), value
    return b"", value[_PREFIX_BYTES:]


def schema_id_of(headers: Sequence[tuple[str, bytes]], value: bytes | None) -> SchemaId | None:
    """The schema id of a record, None when it has none; the header counts before the prefix."""
    for name, found in headers:
        if name == HEADER and found:
            # Protobuf's message indexes follow.
            if found[:1] == _BY_GUID and len(found) >= 17:
                return SchemaId(guid=str(UUID(bytes=bytes(found[1:17]))))
            if found[:1] == _BY_ID and len(found) >= 5:
                return SchemaId(id=int.from_bytes(found[1:5], "big"))
    if value is not None and value[:1] == _BY_ID and len(value) >= _PREFIX_BYTES:
        return SchemaId(id=int.from_bytes(value[1:5], "big"))
    return None
