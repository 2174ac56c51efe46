"""Produce by hand, for the request that nearly all are: one topic, one partition, no transaction.

It says the same as the generated codec, which takes over whenever something else comes along.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple

from hailbus_broker.protocol.codec import read_uvarint
from hailbus_broker.protocol.errors import ProtocolError

_NULL_ACKS_TIMEOUT: Final = Struct(">bhi")
_CLASSIC_START: Final = Struct(">hhii")
_SHORT: Final = Struct(">h")
_INT: Final = Struct(">i")
_THREE_INTS: Final = Struct(">iii")
_RESULT_V3: Final = Struct(">ihqq")
_RESULT_V5: Final = Struct(">ihqqq")
_END_FLEXIBLE: Final = b"\x01\x00\x00\x00\x00\x00\x00\x00\x00"  # no errors, no message, tags, tags, throttle time, tags
_END_V8: Final = b"\x00\x00\x00\x00\xff\xff\x00\x00\x00\x00"  # no errors, no message, throttle time
_END_V3: Final = b"\x00\x00\x00\x00"  # throttle time

_new_tuple = tuple.__new__  # makes a named tuple in half the time

FIRST_FLEXIBLE: Final = 9
FIRST_WITH_IDS: Final = 13


class SingleProduce(NamedTuple):
    """A Produce request for one partition. `topic` is its name in ASCII, or its id from v13 on."""

    acks: int
    topic: bytes
    partition: int
    timeout_ms: int


def read_single_produce(frame: memoryview, version: int, position: int) -> tuple[SingleProduce, memoryview] | None:
    """The request and its batch, or None when it is not of that simple kind, or damaged.

    The request itself keeps none of the frame's memory alive.
    """
    size = len(frame)
    if size - position < 32:
        return None
    if version < FIRST_FLEXIBLE:
        null, acks, timeout_ms, topic_count = _CLASSIC_START.unpack_from(frame, position)
        if null != -1 or topic_count != 1:
            return None
        position += _CLASSIC_START.size
        (length,) = _SHORT.unpack_from(frame, position)
        end = position + 2 + length
        if length <= 0 or end + 12 > size:
            return None
        topic = bytes(frame[position + 2 : end])
        partition_count, index, length = _THREE_INTS.unpack_from(frame, end)
        start = end + 12
        if partition_count != 1 or length <= 0 or start + length != size or not topic.isascii():
            return None
        return _new_tuple(SingleProduce, (acks, topic, index, timeout_ms)), frame[start:]
    null, acks, timeout_ms = _NULL_ACKS_TIMEOUT.unpack_from(frame, position)
    position += _NULL_ACKS_TIMEOUT.size
    if null or frame[position] != 2:
        return None
    position += 1
    if version >= FIRST_WITH_IDS:
        end = position + 16
    else:
        length = frame[position]
        position += 1
        end = position + length - 1
        if not 1 < length < 128:
            return None
    if end + 6 > size or frame[end] != 2:
        return None
    topic = bytes(frame[position:end])
    if version < FIRST_WITH_IDS and not topic.isascii():
        return None
    (index,) = _INT.unpack_from(frame, end + 1)
    length, start = read_uvarint(frame, end + 5, size)
    stop = start + length - 1
    if length <= 1 or stop + 3 != size or frame[stop] or frame[stop + 1] or frame[stop + 2]:
        return None
    return _new_tuple(SingleProduce, (acks, topic, index, timeout_ms)), frame[start:stop]


def has_many_batches(frame: memoryview, version: int, position: int, limit: int) -> bool:
    """Whether a Produce request has batches for more partitions than `limit`, or is not of the usual form.

    It steps over the batches, at the most `limit` of them: a small part of what it costs to decode them.
    """
    try:
        if version < FIRST_FLEXIBLE:
            return _has_many_classic(frame, position, limit)
        return _has_many_flexible(frame, version, position, limit)
    except (struct_error, IndexError, ProtocolError):
        return True


def _has_many_classic(frame: memoryview, position: int, limit: int) -> bool:
    (length,) = _SHORT.unpack_from(frame, position)
    position += 2 + max(length, 0) + 6  # the transactional id, acks, timeout
    (topic_count,) = _INT.unpack_from(frame, position)
    if topic_count > limit:
        return True
    position += 4
    batch_count = 0
    for _ in range(topic_count):
        (length,) = _SHORT.unpack_from(frame, position)
        position += 2 + length
        (partition_count,) = _INT.unpack_from(frame, position)
        position += 4
        batch_count += partition_count
        if batch_count > limit or partition_count < 0:
            return True
        for _ in range(partition_count):
            (length,) = _INT.unpack_from(frame, position + 4)
            position += 8 + max(length, 0)
    return False


def _has_many_flexible(frame: memoryview, version: int, position: int, limit: int) -> bool:
    end = len(frame)
    length, position = read_uvarint(frame, position, end)
    position += max(length - 1, 0) + 6  # the transactional id, acks, timeout
    topic_count, position = read_uvarint(frame, position, end)
    if topic_count - 1 > limit:
        return True
    batch_count = 0
    for _ in range(topic_count - 1):
        if version >= FIRST_WITH_IDS:
            position += 16
        else:
            length, position = read_uvarint(frame, position, end)
            position += length - 1
        partition_count, position = read_uvarint(frame, position, end)
        batch_count += partition_count - 1
        if batch_count > limit:
            return True
        for _ in range(partition_count - 1):
            length, position = read_uvarint(frame, position + 4, end)
            position += max(length - 1, 0)
            if frame[position]:  # a tag, which no client sends
                return True
            position += 1
        if frame[position]:
            return True
        position += 1
    return False


def write_single_produced(
    out: bytearray,
    version: int,
    single: SingleProduce,
    base_offset: int,
    log_append_time_ms: int,
    log_start_offset: int,
) -> None:
    """Append the response's body: success for that one partition."""
    topic = single.topic
    if version >= FIRST_FLEXIBLE:
        out.append(2)
        if version < FIRST_WITH_IDS:
            out.append(len(topic) + 1)
        out += topic
        out.append(2)
        out += _RESULT_V5.pack(single.partition, 0, base_offset, log_append_time_ms, log_start_offset)
        out += _END_FLEXIBLE
        return
    out += b"\x00\x00\x00\x01"
    out += _SHORT.pack(len(topic))
    out += topic
    out += b"\x00\x00\x00\x01"
    if version >= 5:
        out += _RESULT_V5.pack(single.partition, 0, base_offset, log_append_time_ms, log_start_offset)
        out += _END_V8 if version == 8 else _END_V3
    else:
        out += _RESULT_V3.pack(single.partition, 0, base_offset, log_append_time_ms)
        out += _END_V3
