"""What the first bytes of a frame say, before it is known which message it holds."""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from hailbus_broker.protocol.api import APIS
from hailbus_broker.protocol.codec import read_uvarint
from hailbus_broker.protocol.errors import ProtocolError

_HEAD: Final = Struct(">hhih")
LENGTH: Final = Struct(">i")


class FrameHead(NamedTuple):
    """A request's header.

    Attributes:
        position: Where the body begins.
    """

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    position: int


def read_head(frame: memoryview) -> FrameHead:
    """Read a request's header, v1 or v2.

    Raises:
        ProtocolError: The frame ends too early or the client id is no text.
    """
    size = len(frame)
    if size < _HEAD.size:
        raise ProtocolError(f"a request of {size} bytes is too short for its header", position=0)
    api_key, version, correlation_id, length = _HEAD.unpack_from(frame)
    position = _HEAD.size
    client_id = None
    if length >= 0:
        end = position + length
        if end > size:
            raise ProtocolError("the request ends within its client id", position=position)
        try:
            client_id = str(frame[position:end], "utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolError("the client id is not UTF-8", position=position) from error
        position = end
    api = APIS.get(api_key)
    if api is not None and api.flexible_since <= version <= api.last:
        if position < size and not frame[position]:
            return FrameHead(api_key, version, correlation_id, client_id, position + 1)
        count, position = read_uvarint(frame, position, size)
        for _ in range(count):
            _, position = read_uvarint(frame, position, size)
            length, position = read_uvarint(frame, position, size)
            position += length
            if position > size:
                raise ProtocolError("the request ends within its header", position=position)
    return FrameHead(api_key, version, correlation_id, client_id, position)


def strangers_sentence(length_bytes: bytes) -> str | None:
    """What it means when a frame's length is no length: somebody speaks another protocol."""
    if length_bytes[:3] == b"\x16\x03\x01" or length_bytes[:2] == b"\x16\x03":
        return (
            "a client opened a TLS connection, and this listener is plain: set security.protocol=PLAINTEXT there, "
            "or connect to a TLS listener"
        )
    if length_bytes in {b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN"}:
        return "a client spoke HTTP, and this listener speaks the Kafka protocol: check the client's host and port"
    if length_bytes == b"SSH-":
        return "a client spoke SSH, and this listener speaks the Kafka protocol: check the client's host and port"
    return None
