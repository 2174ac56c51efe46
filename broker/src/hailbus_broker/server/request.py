"""One request on its way through the broker, and its place in the order of answers."""

from __future__ import annotations

from functools import cache
from struct import Struct
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from hailbus_broker.log import FileSlice
from hailbus_broker.protocol import codec
from hailbus_broker.protocol.api import APIS, request_class
from hailbus_broker.protocol.schema import Struct as Described
from hailbus_broker.server.error_responses import error_response

if TYPE_CHECKING:
    from collections.abc import Callable

    from hailbus_broker.protocol.errors import ErrorCode
    from hailbus_broker.protocol.schema import Message
    from hailbus_broker.runtime.node_core import Listener

Part = bytes | bytearray | memoryview | FileSlice

HEAD: Final = Struct(">ii")

NO_BYTES: Final = memoryview(b"")

MANY_ENTRIES: Final = 500
"""A message with more than so many entries in its lists takes milliseconds to be encoded."""

T = TypeVar("T")


class Peer(Protocol):
    """The connection that a request came over.

    Attributes:
        number: Grows with each connection.
        peer: Address of the client.
        peer_host: The host in it.
        client_software: What the client says that it is.
        listener: Where the connection came in.
        is_closed: Whether nothing more is sent.
    """

    number: int
    peer: str
    peer_host: str
    client_software: str
    listener: Listener
    is_closed: bool

    def answered(self) -> None:
        """A request has its answer."""
        ...

    def in_thread(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], object]) -> None:
        """Run `work` in a thread, then `done` in the loop; see `Threads.submit`."""
        ...

    def hold(self) -> None:
        """Start no other request before `release`."""
        ...

    def release(self) -> None:
        """The request that was started last is begun: others may follow."""
        ...

    def abort(self, sentence: str) -> None:
        """Close the connection because of what came over it."""
        ...

    def close(self) -> None:
        """Close the connection; what was written still goes out."""
        ...


class Request:
    """A request; answered exactly once, by `respond`, `respond_parts`, `respond_error` or `respond_nothing`.

    Attributes:
        frame: All bytes of the request, without its length; empty after `release_frame`.
        size_bytes: Of the request.
        position: Where the body begins.
        message: The decoded body, once somebody has decoded it.
        has_files: Whether some of the parts are slices of files.
        loses_answer: The connection closes instead of the answer; for tests.
        on_answer: Called when the answer is there, whatever it is; for metrics.
        on_disconnect: Called when the connection is lost before the answer.
    """

    __slots__ = (
        "api_key",
        "client_id",
        "connection",
        "correlation_id",
        "frame",
        "has_files",
        "is_done",
        "loses_answer",
        "message",
        "on_answer",
        "on_disconnect",
        "parts",
        "position",
        "size_bytes",
        "version",
    )

    def __init__(
        self,
        connection: Peer,
        frame: memoryview,
        api_key: int,
        version: int,
        correlation_id: int,
        client_id: str | None,
        position: int,
    ) -> None:
        self.connection = connection
        self.frame = frame
        self.size_bytes = len(frame)
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.position = position
        self.message: Message | None = None
        self.is_done = False
        self.has_files = False
        self.loses_answer = False
        self.on_answer: Callable[[Request], None] | None = None
        self.on_disconnect: Callable[[], None] | None = None
        self.parts: list[Part] = []

    @property
    def client_host(self) -> str:
        """Where the request came from, as group members are shown with it."""
        return "/" + self.connection.peer_host

    @property
    def listener(self) -> Listener:
        """The listener that the connection came in by."""
        return self.connection.listener

    def release_frame(self) -> None:
        """Let go of the request's bytes: nobody reads them any more."""
        self.frame = NO_BYTES

    def response_head(self) -> bytearray:
        """Room for length and correlation id and, where the version has them, no tags."""
        out = bytearray(8)  # filled in when the length is known
        # ApiVersions answers without tags whatever the version: a client has to read it before it knows anything.
        if self.api_key != 18 and self.version >= APIS[self.api_key].flexible_since:
            out.append(0)
        return out

    def respond(self, message: Message, *, version: int | None = None) -> None:
        """Send a message; a thread encodes one with very many entries, which nobody changes any more."""
        version = self.version if version is None else version
        if not has_many_entries(message):
            out = self.response_head()
            codec.encode(message, version, out)
            self.respond_encoded(out)
            return
        self.respond_from_thread(lambda: message, version=version)

    def respond_from_thread(self, make: Callable[[], Message], *, version: int | None = None) -> None:
        """Let a thread make a message and encode it, then send it."""
        version = self.version if version is None else version

        def done(out: bytearray | None, error: BaseException | None) -> None:
            if out is None:
                self.connection.close()
                raise error or AssertionError("nothing was encoded")
            self.respond_encoded(out)

        def encode() -> bytearray:
            out = self.response_head()
            codec.encode(make(), version, out)
            return out

        self.connection.in_thread(encode, done)

    def respond_parts(self, head: bytearray, parts: list[Part], size: int) -> None:
        """Send what was encoded already.

        Args:
            head: From `response_head`.
            parts: What follows it.
            size: Bytes in the parts.
        """
        HEAD.pack_into(head, 0, len(head) - 4 + size, self.correlation_id)
        self._finish([head, *parts])

    def respond_encoded(self, out: bytearray) -> None:
        """Send what was appended to the bytes of `response_head`."""
        HEAD.pack_into(out, 0, len(out) - 4, self.correlation_id)
        self._finish([out])

    def respond_error(self, code: ErrorCode, text: str | None = None) -> None:
        """Send the response that this API gives when nothing worked; the text goes where it has an error message."""
        message = self.message
        if message is None:
            message = codec.decode(request_class(self.api_key), self.frame, self.version, position=self.position)
        self.respond(error_response(self.api_key, self.version, message, code, text))

    def respond_nothing(self) -> None:
        """The client does not want an answer (acks=0)."""
        self._finish([])

    def _finish(self, parts: list[Part]) -> None:
        if self.is_done:
            return
        self.is_done = True
        if self.loses_answer:
            self.connection.close()
            return
        self.parts = parts
        if self.on_answer is not None:
            self.on_answer(self)
        self.connection.answered()


def has_many_entries(message: Message) -> bool:
    """Whether a message has more than `MANY_ENTRIES` entries in its lists, and in the lists of their entries."""
    lists = _lists_of(type(message))
    if not lists:
        return False
    count = 0
    for name in lists:
        entries = getattr(message, name)
        if not entries:
            continue
        count += len(entries)
        if count > MANY_ENTRIES:
            return True
        if isinstance(entries[0], Described):
            for inner in _lists_of(type(entries[0])):
                count += sum([len(getattr(entry, inner) or ()) for entry in entries])
    return count > MANY_ENTRIES


@cache
def _lists_of(kind: type[Described]) -> tuple[str, ...]:
    return tuple(field.name for field in kind.__fields__ if field.kind == "array")
