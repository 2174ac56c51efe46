"""The five compression codecs of record batches, by `cramjam`.

Compressed by level: gzip 1 to 9 and zstd have one, LZ4 and snappy do not. What is decompressed is bounded, so that a
small batch cannot fill the memory.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import cramjam

from hailbus_broker.records.errors import CorruptBatchError, InvalidRecordError, UnsupportedCompressionError

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_DECOMPRESSED_BYTES: Final = 256 * 1024 * 1024
"""A batch that claims to grow beyond this is refused instead of filling the memory."""

# Snappy in Kafka is the xerial framing of snappy-java: a 16-byte header, then blocks of [int32 length][raw snappy].
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
_XERIAL_BLOCK_BYTES: Final = 32 * 1024

# magic number, version 1 with independent blocks and no checksums, blocks of 64 KiB, and the header's checksum
_LZ4_HEADER: Final = bytes.fromhex("04224d18604082")
_LZ4_BLOCK_BYTES: Final = 64 * 1024
_LZ4_UNCOMPRESSED: Final = 0x8000_0000

_GZIP_WINDOW: Final = 31  # zlib: the largest window, and a gzip header
_GZIP_FIRST_PIECE_BYTES: Final = 1024
"""zlib copies what follows a member in its input. Pieces that double in size keep that below the member's own size."""

_USUAL_RATIO: Final = 16
_TOO_LARGE: Final = f"a batch grows beyond {MAX_DECOMPRESSED_BYTES} bytes when decompressed"


class Compression(IntEnum):
    """Bits 0 to 2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def from_name(cls, name: str) -> Compression:
        """The codec with Kafka's configuration name (`none`, `uncompressed`, `gzip`, `snappy`, `lz4`, `zstd`).

        Raises:
            KeyError: There is no such codec.
        """
        return cls.NONE if name == "uncompressed" else cls[name.upper()]


def compress(codec: Compression, data: bytes | bytearray | memoryview, *, level: int | None = None) -> bytes:
    """Compress a batch's record section with a codec, at its default level or the given one."""
    match codec:
        case Compression.NONE:
            return bytes(data)
        case Compression.GZIP:
            return bytes(cramjam.gzip.compress(data, level=level))
        case Compression.SNAPPY:
            return _compress_xerial(data)
        case Compression.LZ4:
            return _compress_lz4(data)
        case Compression.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=level))


def decompress(codec: int, data: bytes | bytearray | memoryview) -> bytes:
    """The record section of a batch as it was before compression.

    Raises:
        CorruptBatchError: The codec cannot read the data.
        UnsupportedCompressionError: There is no such codec.
    """
    if codec == Compression.NONE:
        return bytes(data)
    try:
        match codec:
            case Compression.GZIP:
                return _decompress_gzip(data)
            case Compression.SNAPPY:
                return _decompress_snappy(bytes(data))
            case Compression.LZ4:
                return _bounded(cramjam.lz4.decompress_into, data)
            case Compression.ZSTD:
                return _bounded(cramjam.zstd.decompress_into, data)
            case _:
                raise UnsupportedCompressionError(codec)
    except (cramjam.DecompressionError, OSError, zlib.error) as error:  # the codecs of cramjam raise either
        raise CorruptBatchError(f"the record section does not decompress ({error})") from error


def _decompress_gzip(data: bytes | bytearray | memoryview) -> bytes:
    if not len(data):
        return b""
    member = zlib.decompressobj(_GZIP_WINDOW)
    first = member.decompress(data, MAX_DECOMPRESSED_BYTES + 1)
    _check_gzip(len(first), is_whole=member.eof)
    if not member.unused_data:
        return first
    out = bytearray(first)
    view = memoryview(data)
    position = len(view) - len(member.unused_data)
    while position < len(view):  # a gzip file may have several members
        member = zlib.decompressobj(_GZIP_WINDOW)
        piece_bytes = _GZIP_FIRST_PIECE_BYTES
        while not member.eof:
            piece = view[position : position + piece_bytes]
            out += member.decompress(piece, MAX_DECOMPRESSED_BYTES - len(out) + 1)
            _check_gzip(len(out), is_whole=member.eof or bool(piece))
            position += len(piece) - len(member.unused_data)
            piece_bytes *= 2
    return bytes(out)


def _check_gzip(size_bytes: int, *, is_whole: bool) -> None:
    if size_bytes > MAX_DECOMPRESSED_BYTES:
        raise InvalidRecordError(_TOO_LARGE)
    if not is_whole:
        raise CorruptBatchError("the record section ends within its gzip data")


def _bounded(
    decompress_into: Callable[[bytes | bytearray | memoryview, bytearray], int], data: bytes | bytearray | memoryview
) -> bytes:
    """Decompress into a buffer of a given size, for codecs that know no other limit."""
    size = max(len(data) * _USUAL_RATIO, _XERIAL_BLOCK_BYTES)
    while True:
        size = min(size, MAX_DECOMPRESSED_BYTES)
        out = bytearray(size)
        try:
            return bytes(memoryview(out)[: decompress_into(data, out)])
        except (cramjam.DecompressionError, OSError) as error:
            # cramjam tells a buffer that is too small from damaged data by its words only
            if "whole buffer" not in str(error):
                raise
            if size == MAX_DECOMPRESSED_BYTES:
                raise InvalidRecordError(_TOO_LARGE) from error
        size *= _USUAL_RATIO


def _compress_lz4(data: bytes | bytearray | memoryview) -> bytes:
    """An LZ4 frame of independent blocks of 64 KiB.

    The Java client refuses the linked ones that cramjam would write.
    """
    view = memoryview(data)
    out = bytearray(_LZ4_HEADER)
    for start in range(0, len(view), _LZ4_BLOCK_BYTES):
        block = view[start : start + _LZ4_BLOCK_BYTES]
        packed = bytes(cramjam.lz4.compress_block(block, store_size=False))
        if len(packed) < len(block):
            out += len(packed).to_bytes(4, "little")
            out += packed
        else:
            out += (len(block) | _LZ4_UNCOMPRESSED).to_bytes(4, "little")
            out += block
    out += bytes(4)
    return bytes(out)


def _compress_xerial(data: bytes | bytearray | memoryview) -> bytes:
    view = memoryview(data)
    out = bytearray(_XERIAL_HEADER)
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        out += len(block).to_bytes(4, "big")
        out += block
    return bytes(out)


def _decompress_snappy(data: bytes) -> bytes:
    if not data.startswith(_XERIAL_MAGIC):  # librdkafka writes raw snappy
        return _decompress_raw_snappy(data)
    out = bytearray()
    position = len(_XERIAL_HEADER)
    while position < len(data):
        length = int.from_bytes(data[position : position + 4], "big")
        position += 4
        if position + length > len(data):
            raise CorruptBatchError("a snappy block is longer than the record section", position=position)
        out += _decompress_raw_snappy(data[position : position + length])
        if len(out) > MAX_DECOMPRESSED_BYTES:
            raise InvalidRecordError(_TOO_LARGE)
        position += length
    return bytes(out)


def _decompress_raw_snappy(data: bytes) -> bytes:
    if cramjam.snappy.decompress_raw_len(data) > MAX_DECOMPRESSED_BYTES:
        raise InvalidRecordError(_TOO_LARGE)
    return bytes(cramjam.snappy.decompress_raw(data))
