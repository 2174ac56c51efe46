"""What a coordinator decides: records to append, and answers that wait until these records are safe."""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.protocol import codec

if TYPE_CHECKING:
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
    """Append `records` in one batch, replay them, and when the high watermark has passed them send `replies`.

    Attributes:
        records: In order; may be empty.
        replies: A token, as it was given with a request, and the response to it. One outcome may answer many requests.
        producer: Id and epoch of the producer in whose transaction the records are written.
        facts: What a person may want to read in the log: a name and its data.
    """

    records: list[CoordinatorRecord] = field(default_factory=list)
    replies: list[tuple[object, Message]] = field(default_factory=list)
    facts: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    producer: tuple[int, int] | None = None


def decode_key(data: bytes | memoryview, types: dict[int, type[Message]]) -> Message | None:
    """The key of a coordinator's record, or None for a type that this broker does not know."""
    (key_type,) = _SHORT.unpack_from(data)
    cls = types.get(key_type)
    return None if cls is None else codec.decode(cls, data, 0, position=_SHORT.size)


def decode_value(data: bytes | memoryview, cls: type[Message]) -> Message:
    """The value that belongs to a key."""
    (version,) = _SHORT.unpack_from(data)
    return codec.decode(cls, data, version, position=_SHORT.size)
