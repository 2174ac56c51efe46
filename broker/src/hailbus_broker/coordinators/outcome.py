"""What a coordinator decides: records to append, and answers that wait until these records are safe."""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from struct import error as packing_error
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.protocol import codec
from hailbus_broker.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hailbus_broker.protocol.schema import Message

_SHORT: Final = Struct(">h")


@dataclass(frozen=True, slots=True)
class CoordinatorRecord:
    """A record of a coordinator's topic. Without a value it is a tombstone."""

    key: Message
    value: Message | None
    value_version: int = 0

    def encode_key(self) -> bytes:
        """The key's type, then its fields."""
        return bytes(codec.encode(self.key, 0, bytearray(_SHORT.pack(self.key.__api_key__))))

    def encode_value(self) -> bytes | None:
        """The value's version, then its fields."""
        if self.value is None:
            return None
        return bytes(codec.encode(self.value, self.value_version, bytearray(_SHORT.pack(self.value_version))))


@dataclass(slots=True)
class Outcome:
    """Append `records`, replay them, and when the high watermark has passed them send `replies`.

    Attributes:
        records: In order; may be empty. They are written all or not at all, unless the machine fails in between.
        is_atomic: Whether all records go into one batch, so that even a crash cannot separate them.
        replies: A token, as it was given with a request, and the response to it. One outcome may answer many requests.
        producer: Id and epoch of the producer in whose transaction the records are written.
        undo: Called, the last one first, when the records are refused: they restore what the decision changed before.
            Their argument is an outcome to which they add what has to follow.
        facts: What a person may want to read in the log: a name and its data.
    """

    records: list[CoordinatorRecord] = field(default_factory=list)
    replies: list[tuple[object, Message]] = field(default_factory=list)
    facts: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    producer: tuple[int, int] | None = None
    is_atomic: bool = False
    undo: list[Callable[[Outcome], None]] = field(default_factory=list)


def decode_key(data: bytes | memoryview, types: dict[int, type[Message]]) -> Message:
    """The key of a coordinator's record.

    Raises:
        ProtocolError: The bytes are no key of these types.
    """
    key_type = _read_short(data)
    cls = types.get(key_type)
    if cls is None:
        raise ProtocolError(f"a coordinator's record has a key of type {key_type}, which this broker does not know")
    return codec.decode(cls, data, 0, position=_SHORT.size)


def decode_value(data: bytes | memoryview, cls: type[Message]) -> Message:
    """The value that belongs to a key.

    Raises:
        ProtocolError: The bytes are no such value, or one of a version that this broker does not know.
    """
    version = _read_short(data)
    return codec.decode(cls, data, version, position=_SHORT.size)


def _read_short(data: bytes | memoryview) -> int:
    try:
        (number,) = _SHORT.unpack_from(data)
    except packing_error as error:
        raise ProtocolError(f"a coordinator's record of {len(data)} bytes is too short for its type") from error
    return int(number)
