"""Cuts the bytes of a connection into frames, each a length and so many bytes."""

from __future__ import annotations

import ctypes
from typing import Final

from hailbus_broker.protocol.errors import ProtocolError
from hailbus_broker.protocol.framing import LENGTH, strangers_sentence

FIRST_BYTES: Final = 64 * 1024
"""Memory for a frame that has arrived in part, at least; it grows in proportion to what arrives."""
GROWTH: Final = 4

_uninitialised: Final = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)(
    ("PyByteArray_FromStringAndSize", ctypes.pythonapi)
)
"""Makes a bytearray without zeros in it: to write them takes longer than all of Python's work on a frame of 1 MB.

A frame is handed out when every byte of it has been read, so nobody sees what the memory held before.
"""


class FrameReader:
    """Takes bytes in and gives frames out. Reads no socket: the caller fills what `buffer` returns.

    Args:
        shared: Filled while no frame has begun; one for all connections of a loop, because what was read into it is
            taken out by `received` before anybody else reads.
        max_bytes: Largest frame, without its length.

    Attributes:
        held_bytes: Memory for a frame that has arrived in part. Proportional to what has arrived, whatever the length
            claims.
    """

    __slots__ = ("_filled", "_frame", "_max_bytes", "_rest", "_shared", "_size", "held_bytes")

    def __init__(self, shared: memoryview, *, max_bytes: int) -> None:
        self._shared: Final = shared
        self._max_bytes: Final = max_bytes
        self._frame: bytearray | None = None
        self._size = 0
        self._filled = 0
        self._rest = b""
        self.held_bytes = 0

    def buffer(self) -> memoryview:
        """Where to read to: the rest of a frame that has begun, or the shared buffer."""
        if self._frame is not None:
            return memoryview(self._frame)[self._filled :]
        return self._shared

    def received(self, count: int) -> list[memoryview]:
        """The frames that are whole, now that so many bytes were read.

        Raises:
            ProtocolError: A length is negative or too large, with a sentence that says what it may have been.
        """
        frame = self._frame
        if frame is None:
            return self._split(count)
        self._filled += count
        if self._filled == self._size:
            self._frame = None
            self.held_bytes = 0
            return [memoryview(frame)]
        if self._filled == len(frame):
            self._begin(frame, len(frame))
        return []

    def _begin(self, arrived: bytearray | memoryview, count: int) -> None:
        """Hold the first bytes of a frame, with room for more."""
        larger: bytearray = _uninitialised(None, min(self._size, max(FIRST_BYTES, GROWTH * count)))
        larger[:count] = arrived
        self._frame = larger
        self._filled = count
        self.held_bytes = len(larger)

    def _split(self, count: int) -> list[memoryview]:
        data = self._shared
        if self._rest:
            # Less than a length came last time.
            joined = self._rest + bytes(data[:count])
            self._rest = b""
            data, count = memoryview(joined), len(joined)
        frames: list[memoryview] = []
        position = 0
        while count - position >= LENGTH.size:
            (size,) = LENGTH.unpack_from(data, position)
            if not 0 <= size <= self._max_bytes:
                raise ProtocolError(self._refusal(bytes(data[position : position + LENGTH.size]), size))
            position += LENGTH.size
            end = position + size
            if end <= count:
                frames.append(memoryview(bytearray(data[position:end])))
                position = end
                continue
            self._size = size
            self._begin(data[position:count], count - position)
            return frames
        self._rest = bytes(data[position:count])
        return frames

    def _refusal(self, raw: bytes, size: int) -> str:
        sentence = strangers_sentence(raw)
        if sentence is not None:
            return sentence
        if size < 0:
            return f"a request claims {size} bytes: this is not the Kafka protocol"
        return f"a request of {size} bytes is larger than socket.request.max.bytes={self._max_bytes}"
