"""A small client of the broker's protocol: one connection, pipelined requests, time-outs.

It knows nothing of retries: what uses it decides. After a time-out it closes the connection, as Kafka's clients do;
what it has sent before may still arrive.
"""

from __future__ import annotations

import asyncio
from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.protocol import codec
from hailbus_broker.protocol.api import ApiKey, header_versions, response_class
from hailbus_broker.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from hailbus_broker.protocol.schema import Message

_HEADER: Final = Struct(">ihhi")
_LENGTH: Final = Struct(">i")
_SIZE_BYTES: Final = 4
_FLEXIBLE: Final = 2


class UnreachableError(Exception):
    """No response came: the request may have been processed."""


class RefusedError(Exception):
    """The broker has refused a request.

    Attributes:
        code: Why.
    """

    def __init__(self, code: ErrorCode, what: str) -> None:
        super().__init__(f"{what}: {code.name}")
        self.code: Final = code


def accept(code: int, what: str) -> None:
    """Do nothing if a response reports success.

    Raises:
        RefusedError: It does not.
    """
    if code:
        raise RefusedError(ErrorCode(code), what)


class Connection(asyncio.Protocol):
    """One connection to a broker.

    Args:
        client_id: For the broker's logs.
        when_lost: Called when the other side, or the network, has ended the connection.
    """

    def __init__(self, client_id: str, when_lost: Callable[[], object] = lambda: None) -> None:
        name = client_id.encode()
        self._client_id: Final = len(name).to_bytes(2, "big") + name
        self._when_lost: Final = when_lost
        self._waiting: Final[deque[tuple[ApiKey, int, int, asyncio.Future[Any]]]] = deque()
        self._buffer = bytearray()
        self._next_id = 0
        self._transport: asyncio.Transport | None = None
        self.is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = transport  # type: ignore[assignment]  # uvloop's do not inherit

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Fail what waits."""
        if not self.is_closed:
            self._end("the connection was lost")
            self._when_lost()

    def _end(self, reason: str) -> None:
        self.is_closed = True
        waiting = list(self._waiting)
        self._waiting.clear()
        for *_, future in waiting:
            if not future.done():
                future.set_exception(UnreachableError(reason))
                future.exception()  # a pipelined request may have nobody who waits for it any more

    def close(self, reason: str = "the connection was closed") -> None:
        """Close the connection; what waits fails."""
        if self._transport is not None:
            self._transport.close()
        self._end(reason)

    def data_received(self, data: bytes) -> None:
        """Resolve the requests whose responses are complete."""
        buffer = self._buffer
        buffer += data
        position = 0
        while len(buffer) - position >= _SIZE_BYTES:
            (size,) = _LENGTH.unpack_from(buffer, position)
            end = position + _SIZE_BYTES + size
            if end > len(buffer):
                break
            self._take(bytes(memoryview(buffer)[position + _SIZE_BYTES : end]))
            position = end
        del buffer[:position]

    def _take(self, frame: bytes) -> None:
        if not self._waiting:
            return  # closed meanwhile
        key, version, number, future = self._waiting.popleft()
        (found,) = _LENGTH.unpack_from(frame)
        assert found == number, f"the response to request {number} came as that to {found}"
        position = _SIZE_BYTES + (1 if header_versions(key, version)[1] else 0)
        response, end = codec.decode_with_end(response_class(key), frame, version, position=position)
        assert end == len(frame), f"a response of {len(frame)} bytes to {key.name} ends at {end}"
        if not future.done():
            future.set_result(response)

    def send(self, key: ApiKey, version: int, message: Message) -> asyncio.Future[Any]:
        """Send a request without waiting.

        Raises:
            UnreachableError: The connection is closed.
        """
        if self.is_closed or self._transport is None:
            raise UnreachableError("the connection is closed")
        number = self._next_id
        self._next_id += 1
        out = bytearray(_HEADER.pack(0, key, version, number))
        out += self._client_id
        if header_versions(key, version)[0] == _FLEXIBLE:
            out.append(0)
        codec.encode(message, version, out)
        _LENGTH.pack_into(out, 0, len(out) - _SIZE_BYTES)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((key, version, number, future))
        self._transport.write(out)
        return future


class Client:
    """Connects when it has to, and waits for each response no longer than its time-out.

    Args:
        bootstrap: HOST:PORT of the broker.
        client_id: For the broker's logs.
        timeout_s: Of connecting and of each request.
        when_abandoned: Called when a request had a time-out.
    """

    def __init__(
        self, bootstrap: str, client_id: str, *, timeout_s: float, when_abandoned: Callable[[], object] = lambda: None
    ) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self._host: Final = host
        self._port: Final = int(port)
        self.client_id: Final = client_id
        self.timeout_s: Final = timeout_s
        self._when_abandoned: Final = when_abandoned
        self._connection: Connection | None = None

    async def connect(self) -> Connection:
        """Return the open connection, or a new one.

        Raises:
            UnreachableError: There is no broker, or it does not answer.
        """
        connection = self._connection
        if connection is not None and not connection.is_closed:
            return connection
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.timeout_s):
                _, connection = await loop.create_connection(lambda: Connection(self.client_id), self._host, self._port)
        except OSError as error:  # TimeoutError is one
            raise UnreachableError(f"no connection: {error}") from error
        self._connection = connection
        return connection

    def close(self) -> None:
        """Close the connection if there is one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def response(
        self, future: asyncio.Future[Any], connection: Connection, *, timeout_s: float | None = None
    ) -> Any:
        """Wait for the response to something that was sent.

        Raises:
            UnreachableError: It did not come.
        """
        if future.done():
            return future.result()

        def abandon() -> None:
            self._when_abandoned()
            connection.close("no response came in time")

        timer = asyncio.get_running_loop().call_later(timeout_s or self.timeout_s, abandon)
        try:
            return await future
        finally:
            timer.cancel()

    async def ask(self, key: ApiKey, version: int, message: Message, *, timeout_s: float | None = None) -> Any:
        """Send a request and wait for its response, whose type depends on the API.

        Raises:
            UnreachableError: No response came.
        """
        connection = await self.connect()
        return await self.response(connection.send(key, version, message), connection, timeout_s=timeout_s)
