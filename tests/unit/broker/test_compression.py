"""What decompression costs, whatever a client has made of its batch."""

from __future__ import annotations

import gzip
import zlib
from typing import TYPE_CHECKING, Any

import pytest
from hailbus_broker.records import Compression, CorruptBatchError, compress, decompress

if TYPE_CHECKING:
    from hailbus_broker.log.disk import Buffer

new_member = zlib.decompressobj
PIECES = [b"", b"a", b"bus" * 500, b"", bytes(range(256)) * 300, b"z"]


class CountingZlib:
    """zlib that counts what it is given: it copies what it does not use."""

    def __init__(self) -> None:
        self.given_bytes = 0

    def decompressobj(self, window: int) -> CountingMember:
        return CountingMember(self, window)


class CountingMember:
    def __init__(self, owner: CountingZlib, window: int) -> None:
        self.owner = owner
        self.member = new_member(window)

    def decompress(self, data: Buffer, limit: int) -> bytes:
        self.owner.given_bytes += len(data)
        return self.member.decompress(data, limit)

    def __getattr__(self, name: str) -> Any:  # Any: what zlib says
        return getattr(self.member, name)


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> CountingZlib:
    spy = CountingZlib()
    monkeypatch.setattr("hailbus_broker.records.compression.zlib.decompressobj", spy.decompressobj)
    return spy


def test_gzip_of_several_members_is_their_sum() -> None:
    assert decompress(Compression.GZIP, b"") == b""
    data = b"".join(gzip.compress(piece) for piece in PIECES)
    assert decompress(Compression.GZIP, data) == b"".join(PIECES)
    for cut in (1, len(data) // 2, len(data) - 1):
        with pytest.raises(CorruptBatchError):
            decompress(Compression.GZIP, data[:cut])


def test_gzip_of_many_empty_members_is_read_in_linear_time(counting: CountingZlib) -> None:
    member = gzip.compress(b"")
    count = 5_000
    assert decompress(Compression.GZIP, member * count) == b""
    # After the first member each is given a piece of 1 KiB. All that follows would be 250 MB.
    assert counting.given_bytes <= len(member) * count + count * 1024


@pytest.mark.parametrize("size", [0, 1, 1000, 1_000_000])
def test_gzip_of_one_member_is_read_once(counting: CountingZlib, size: int) -> None:
    content = bytes(index * index % 251 for index in range(size))
    data = compress(Compression.GZIP, content)
    assert decompress(Compression.GZIP, data) == content
    assert counting.given_bytes == len(data)
