"""Frames out of bytes, however they arrive, and no more memory than in proportion to them."""

from __future__ import annotations

import struct

import pytest
from hailbus_broker.protocol.errors import ProtocolError
from hailbus_broker.server.frame_reader import FIRST_BYTES, GROWTH, FrameReader

MAX_BYTES = 100 * 1024 * 1024


def feed(reader: FrameReader, data: bytes) -> list[bytes]:
    """Give a reader bytes as a socket does: no more at once than it has room for."""
    frames: list[bytes] = []
    while data:
        buffer = reader.buffer()
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        data = data[count:]
        frames += map(bytes, reader.received(count))
    return frames


def new_reader() -> FrameReader:
    return FrameReader(memoryview(bytearray(256 * 1024)), max_bytes=MAX_BYTES)


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


@pytest.mark.parametrize("step", [1, 3, 4, 5, 1000, 10**9])
def test_frames_come_out_as_they_went_in(step: int) -> None:
    payloads = [b"", b"a", b"bc" * 10, bytes(range(256)) * 40]
    data = b"".join(map(framed, payloads)) * 3
    reader = new_reader()
    found: list[bytes] = []
    for start in range(0, len(data), step):
        found += feed(reader, data[start : start + step])
    assert found == payloads * 3
    assert reader.held_bytes == 0


@pytest.mark.parametrize("size", [FIRST_BYTES - 1, FIRST_BYTES, FIRST_BYTES + 1, 3_000_000])
def test_a_frame_larger_than_the_shared_buffer_is_whole(size: int) -> None:
    payload = bytes(number % 251 for number in range(size))
    assert feed(new_reader(), framed(payload) + framed(b"next")) == [payload, b"next"]


@pytest.mark.parametrize("arrived", [1, 1000, 100_000, 1_000_000])
def test_memory_follows_what_has_arrived_and_not_what_is_announced(arrived: int) -> None:
    reader = new_reader()
    assert feed(reader, struct.pack(">i", MAX_BYTES) + b"x" * arrived) == []
    assert 0 < reader.held_bytes <= max(FIRST_BYTES, GROWTH * arrived)


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        (struct.pack(">i", -2), "claims -2 bytes"),
        (struct.pack(">i", MAX_BYTES + 1), "larger than socket.request.max.bytes"),
        (b"GET / HTTP/1.1\r\n", "HTTP"),
    ],
)
def test_a_length_that_cannot_be_is_refused_by_a_sentence(start: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        feed(new_reader(), start)
