"""A small HTTP/1.1 client for one server: kept-alive connections, one request at a time on each, no redirects.

It exists because a load generator should cost less than what it loads: a request takes about 60 µs of CPU here, a
tenth of what general clients need.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

ANSWER_WITHIN_S = 30.0


class UnreachableError(Exception):
    """The server could not be reached or went away before it answered: the request may or may not have been done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A response: status, body, and the seconds that `Retry-After` asks for (0 without it)."""

    status: int
    body: bytes
    retry_after_s: float = 0.0


class _Connection(asyncio.Protocol):
    """One connection; parses one answer at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.waiter: asyncio.Future[Answer] | None = None
        self.closed = False
        self._begin()

    def _begin(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.parts: list[bytes] = []
        self.retry_after_s = 0.0
        self.keep_alive = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # a TCP one; uvloop's has no common base with asyncio's

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(UnreachableError(f"answer is no HTTP: {error}"))

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after":
            try:
                self.retry_after_s = float(value)
            except ValueError:  # a date: our own back-off is as good
                self.retry_after_s = 0.0

    def on_body(self, body: bytes) -> None:
        self.parts.append(body)

    def on_message_complete(self) -> None:
        answer = Answer(
            status=self.parser.get_status_code(), body=b"".join(self.parts), retry_after_s=self.retry_after_s
        )
        keep = self.parser.should_keep_alive()
        waiter, self.waiter = self.waiter, None
        self._begin()
        if not keep and self.transport is not None:
            self.closed = True
            self.transport.close()
        if waiter is not None and not waiter.done():
            waiter.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(UnreachableError(str(exc) if exc else "the connection was closed"))

    def _fail(self, error: UnreachableError) -> None:
        self.closed = True
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)
        if self.transport is not None:
            self.transport.close()


class HttpClient:
    """Requests to one server, such as `http://127.0.0.1:8080`; at most `connections` at a time, others wait."""

    def __init__(self, base_url: str, *, connections: int = 64) -> None:
        parts = urlsplit(base_url if "//" in base_url else f"http://{base_url}")
        if parts.scheme != "http" or parts.hostname is None:
            raise ValueError(f"{base_url!r} is no address of a service: write it as http://HOST:PORT")
        self.host, self.port = parts.hostname, parts.port or 80
        self.prefix = parts.path.rstrip("/")
        self._idle: deque[_Connection] = deque()
        self._slots = asyncio.Semaphore(connections)

    @property
    def base_url(self) -> str:
        """The server's address."""
        return f"http://{self.host}:{self.port}{self.prefix}"

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        within_s: float = ANSWER_WITHIN_S,
    ) -> Answer:
        """Send a request and return its answer, whatever its status.

        Raises:
            UnreachableError: No connection, or it broke, or no answer came in time.
        """
        lines = [f"{method} {self.prefix}{path} HTTP/1.1", f"Host: {self.host}:{self.port}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        async with self._slots:
            connection = await self._connection()
            answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            connection.waiter = answer
            assert connection.transport is not None
            connection.transport.write(head + (body or b""))
            try:
                async with asyncio.timeout(within_s):
                    result = await answer
            except TimeoutError:
                connection.waiter = None
                connection.transport.abort()
                raise UnreachableError(f"no answer from {self.base_url} within {within_s:g} s") from None
            except asyncio.CancelledError:
                connection.waiter = None
                connection.transport.abort()
                raise
            if not connection.closed:
                self._idle.append(connection)
            return result

    async def _connection(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed and connection.transport is not None and not connection.transport.is_closing():
                return connection
        try:
            async with asyncio.timeout(5):
                _, connection = await asyncio.get_running_loop().create_connection(_Connection, self.host, self.port)
        except (OSError, TimeoutError) as error:
            raise UnreachableError(f"{self.base_url} does not accept connections: {error}") from error
        return connection

    async def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            connection = self._idle.pop()
            if connection.transport is not None:
                connection.transport.close()
