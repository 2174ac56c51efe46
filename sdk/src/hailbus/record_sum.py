"""A checksum of many records that does not depend on their order: two readers of one log compare one number each."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MODULUS", "record_hash"]

MODULUS = 2**64
"""The checksum of a set of records is the sum of their `record_hash`, modulo this."""

_PREFIX = b"hailbus-record-v1"
_PLACE = Struct("<qq")
_LENGTH = Struct("<i")
_NULL = _LENGTH.pack(-1)


def record_hash(
    partition: int,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[tuple[str, bytes | None]],
) -> int:
    """Return a 64-bit hash of one record: its place in the topic, and all of its bytes but the timestamp.

    BLAKE2b with 8 bytes of digest, read as a little-endian unsigned integer, over `hailbus-record-v1`, the partition
    and the offset (8 bytes each), key and value (a length of 4 bytes, then the bytes; -1 for null), the number of
    headers (4 bytes), and each header's name in UTF-8 and value, in order, like key and value. All integers are
    little-endian and signed.
    """
    listed = list(headers)
    parts = [_PREFIX, _PLACE.pack(partition, offset), *_sized(key), *_sized(value), _LENGTH.pack(len(listed))]
    for name, content in listed:
        parts.append(_sized_name(name))
        parts += _sized(content)
    return int.from_bytes(blake2b(b"".join(parts), digest_size=8).digest(), "little")


def _sized(content: bytes | None) -> tuple[bytes, ...]:
    return (_NULL,) if content is None else (_LENGTH.pack(len(content)), content)


@lru_cache(maxsize=1024)  # a topic's records carry the same few names
def _sized_name(name: str) -> bytes:
    return b"".join(_sized(name.encode()))
