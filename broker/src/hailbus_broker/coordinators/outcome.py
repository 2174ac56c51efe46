"""What a coordinator decides: records to append, and answers that wait until these records are durable."""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from struct import error as packing_error
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from hailbus_broker.protocol import codec
from hailbus_broker.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hailbus_broker.protocol.errors import ErrorCode
    from hailbus_broker.protocol.schema import Message

_SHORT: Final = Struct(">h")

ResponseT_contra = TypeVar("ResponseT_contra", contravariant=True)
ResponseT = TypeVar("ResponseT", bound="Message")


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


class PreparedRecords(NamedTuple):
    """The records of an atomic decision, made before it: whatever takes long and needs nothing of the shard's state.

    Attributes:
        batch: All of them, as they are appended.
        apply: Changes the shard as a replay of the batch does; called with the id of the producer, or -1.
        response: For the client, if the decision accepts its request.
    """

    batch: bytearray
    apply: Callable[[int], None]
    response: Message


class Token(Protocol[ResponseT_contra]):
    """A request that waits for its response. It is answered exactly once."""

    def respond(self, message: ResponseT_contra, /) -> None:
        """Send the response."""
        ...

    def respond_error(self, code: ErrorCode, /) -> None:
        """Send the response that this API gives when nothing worked."""
        ...


@dataclass
class Outcome:
    """What one decision asks for: append `records`, install the decision, replay the records, then send `replies`.

    The replies wait until the high watermark has passed the last record. If the records are refused, nothing of the
    decision takes effect: `request` gets an error, and all other requests wait on as before.

    Attributes:
        records: In order; may be empty. They are written all or not at all, unless the machine fails in between.
        is_atomic: Whether all records go into one batch, so that even a crash cannot separate them.
        prepared: Records to append in place of `records`.
        replies: Requests and their responses, added by `reply`. One outcome may answer many requests.
        request: The request that asked for the decision; None if a timer did.
        producer: Id and epoch of the producer in whose transaction the records are written.
        on_refused: Called when the records are refused. Decides what follows from that; None if nothing does.
        log_events: Lines for the log: the name of an event and its data.
    """

    records: list[CoordinatorRecord] = field(default_factory=list)
    replies: list[tuple[Token[Any], Message]] = field(default_factory=list)
    log_events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    request: Token[Any] | None = None
    producer: tuple[int, int] | None = None
    is_atomic: bool = False
    prepared: PreparedRecords | None = None
    on_refused: Callable[[ErrorCode], Outcome | None] | None = None

    def reply(self, token: Token[ResponseT], response: ResponseT) -> None:
        """Answer a request, once the records are durable."""
        self.replies.append((token, response))

    def install(self) -> None:
        """Put what the decision has changed besides its records in place, once these are appended.

        A decision works on copies. Until this call the shard is as it was before the decision.
        """

    def replies_parked(self) -> None:
        """Note that the replies wait until the records are durable; `replies_released` follows."""

    def replies_released(self, now_ms: int) -> None:
        """Note that replies which were parked have been sent, or refused."""


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
