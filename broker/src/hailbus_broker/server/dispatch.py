"""API key → handler. ApiVersions is computed from this table."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from hailbus_broker.log import LogError
from hailbus_broker.logging import get_logger
from hailbus_broker.protocol import codec
from hailbus_broker.protocol.api import APIS, ApiKey, request_class
from hailbus_broker.protocol.errors import ApiError, ErrorCode, ProtocolError
from hailbus_broker.records import RecordsError
from hailbus_broker.server.error_responses import error_response
from hailbus_broker.server.fetch_sessions import FetchSessions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hailbus_broker.protocol.schema import Message
    from hailbus_broker.runtime.node import Node
    from hailbus_broker.runtime.node_core import NodeCore
    from hailbus_broker.runtime.replica import LeaderReplica
    from hailbus_broker.server.connection import Connection
    from hailbus_broker.server.request import Request

log: Any = get_logger()

DECODED_IN_LOOP_BYTES: Final = 16 * 1024
"""Larger requests that carry no records are decoded by a thread: a MiB of them takes 100 ms."""

Handle = Callable[[Any, Any, Any], Any]
"""(dispatcher, request, message) → response, None if it follows by `request.respond…`, or an awaitable of these."""


@dataclass(frozen=True, slots=True)
class Handler:
    """How an API is served.

    Attributes:
        is_raw: The handler reads the frame itself; `message` is None.
        first: Lowest version served; None is the protocol's.
        answer_unsupported: Makes the answer to a version that is not served, sent as version 0; None closes the
            connection.
    """

    handle: Handle
    is_raw: bool = False
    first: int | None = None
    answer_unsupported: Callable[[Any], Message] | None = None


@dataclass(frozen=True, slots=True)
class OwnRequest:
    """What a handler needs to know of a request that this node makes to itself."""

    api_key: ApiKey
    version: int


class WaitingBatch(Protocol):
    """A batch that waits until the coordinator knows its transaction."""

    def verified(self, partition: LeaderReplica, code: ErrorCode) -> None:
        """The coordinator knows it, or has refused it."""
        ...


class Dispatcher:
    """Hands requests to their handlers and turns what goes wrong into what a client understands.

    Args:
        core: Of the node that serves.
        handlers: Of a listener's APIs.
        node: The broker, for handlers of brokers' APIs.
    """

    def __init__(self, core: NodeCore, handlers: Mapping[ApiKey, Handler], *, node: Node | None = None) -> None:
        self.core: Final = core
        self.node: Final = cast("Node", node)  # the handlers of a controller's listener use the core alone
        self.connections: dict[Connection, None] = {}
        self.handlers: Final = handlers
        self.ranges: Final = {
            key: (APIS[key].first if handler.first is None else handler.first, APIS[key].last)
            for key, handler in handlers.items()
        }
        self.fetch_sessions = FetchSessions(core.config["max.incremental.fetch.session.cache.slots"], core.rng)
        self.metadata_cache: dict[tuple[str, int, bytes], bytes] = {}
        self.metadata_cache_bytes = 0
        self.metadata_cache_version = -1
        self.unverified: dict[tuple[LeaderReplica, int, int], list[WaitingBatch]] = {}
        """By partition, producer id and epoch: what waits behind a batch until the coordinator knows its transaction.

        Each batch belongs to a request in work, so `queued.max.request.bytes` bounds them.
        """
        self.bytes_in_work = 0
        self.held_bytes = 0
        """Of requests that have arrived in part."""
        self._held: dict[Connection, int] = {}
        self.connection_count = 0
        """Of all connections that there ever were."""
        self._max_bytes_in_work: int = core.config["queued.max.request.bytes"]
        self._waiting: dict[Connection, None] = {}
        self.disturb: Callable[[Request, Callable[[Request], None]], bool] | None = None
        self.observe: Callable[[Request], None] | None = None
        self.when_lost: Callable[[Connection], object] | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}

    def handle(self, request: Request) -> None:
        """Serve one request, or let it go wrong where a test asks for that."""
        if self.observe is not None:
            self.observe(request)
        if self.disturb is None or not self.disturb(request, self.serve):
            self.serve(request)

    def serve(self, request: Request) -> None:
        """Serve one request; its answer may come later."""
        handler = self.handlers.get(request.api_key)  # type: ignore[call-overload]  # an int that may be no ApiKey
        if handler is None:
            request.connection.abort(
                f"a request for the unknown API {request.api_key} v{request.version} from client {request.client_id!r}"
            )
            return
        first, last = self.ranges[request.api_key]  # type: ignore[index]  # as above
        if not first <= request.version <= last:
            if handler.answer_unsupported is not None:
                # Clients probe from above: they read this one answer in its first format.
                request.respond(handler.answer_unsupported(self), version=0)
                return
            request.connection.abort(
                f"{APIS[request.api_key].name} v{request.version} is not served (v{first} to v{last} are), "
                f"asked for by client {request.client_id!r}"
            )
            return
        try:
            if handler.is_raw:
                result = handler.handle(self, request, None)
            elif len(request.frame) <= DECODED_IN_LOOP_BYTES:
                message = codec.decode(
                    request_class(request.api_key), request.frame, request.version, position=request.position
                )
                request.message = message
                result = handler.handle(self, request, message)
            else:
                result = self._serve_large(request, handler)
            if result is None:
                return
            if isinstance(result, Awaitable):
                task = asyncio.ensure_future(self._finish(request, result))
                self._tasks[task] = None
                task.add_done_callback(self._tasks.pop)
                return
            request.respond(result)
        except Exception as error:  # noqa: BLE001 - every one has its meaning, or is our mistake and is logged as such
            self._failed(request, error)

    async def call(self, key: ApiKey, message: Message, *, request: Any = None) -> Message:
        """See `OwnController`."""
        request = request or OwnRequest(key, APIS[key].last)
        try:
            result = self.handlers[key].handle(self, request, message)
            response: Message = await result if isinstance(result, Awaitable) else result
        except (ApiError, LogError, RecordsError) as error:
            code = error_code(error)
            if code is ErrorCode.NOT_CONTROLLER:
                raise
            return error_response(key, request.version, message, code, error_text(error))
        return response

    async def _serve_large(self, request: Request, handler: Handler) -> Message | None:
        """Let a thread decode a request; its connection starts no other one before the answer."""
        decode = partial(
            codec.decode, request_class(request.api_key), request.frame, request.version, position=request.position
        )
        request.message = await self.core.threads.run(decode)
        result = handler.handle(self, request, request.message)
        response: Message | None = await result if isinstance(result, Awaitable) else result
        return response

    async def _finish(self, request: Request, result: Awaitable[Message | None]) -> None:
        try:
            response = await result
            if response is not None:
                request.respond(response)
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(request, error)

    def _failed(self, request: Request, error: Exception) -> None:
        if isinstance(error, ProtocolError):
            request.connection.abort(f"{APIS[request.api_key].name} v{request.version}: {error}")
            return
        code = error_code(error)
        if code is ErrorCode.UNKNOWN_SERVER_ERROR:
            log.error(
                "request_failed",
                api=APIS[request.api_key].name,
                version=request.version,
                client_id=request.client_id,
                peer=request.connection.peer,
                exc_info=error,
            )
        try:
            request.respond_error(code, error_text(error))
        except Exception:
            log.exception("error_response_failed", api=APIS[request.api_key].name)
            request.connection.close()

    def hold(self, connection: Connection, byte_count: int) -> None:
        """A connection holds so many bytes for a request that has arrived in part.

        They count as if they were in work. If requests that do not arrive leave no room for any that does, the largest
        of them is given up with its connection.
        """
        held = self._held
        self.held_bytes += byte_count - held.pop(connection, 0)
        self.finished(0)
        if byte_count:
            held[connection] = byte_count
        while self.held_bytes > self._max_bytes_in_work:
            largest = max(held, key=held.__getitem__)
            self.held_bytes -= held.pop(largest)
            largest.abort(
                "requests that have arrived in part hold more than queued.max.request.bytes="
                f"{self._max_bytes_in_work}, and this is the largest of them"
            )

    @property
    def _has_room(self) -> bool:
        return self.bytes_in_work + self.held_bytes <= self._max_bytes_in_work

    def has_too_much(self, connection: Connection) -> bool:
        """Whether a connection must wait until other requests are done; it is notified then.

        One whose request has arrived in part need not wait: others wait for its end.
        """
        if self._has_room or connection in self._held:
            return False
        self._waiting[connection] = None
        return True

    def finished(self, byte_count: int) -> None:
        """Requests of so many bytes are done."""
        self.bytes_in_work -= byte_count
        if self._waiting and self._has_room:
            waiting, self._waiting = self._waiting, {}
            for connection in waiting:
                connection.look_again()

    def close_idle_connections(self) -> None:
        """Close connections over which nothing has come since the last call."""
        for connection in list(self.connections):
            connection.close_if_idle()

    def disconnected(self, connection: Connection, in_work: list[Request]) -> None:
        """A connection is gone: what waits for it need not wait any longer."""
        if self.when_lost is not None:
            self.when_lost(connection)
        for request in in_work:
            if request.on_disconnect is not None:
                request.on_disconnect()

    async def close(self) -> None:
        """Close all connections and wait for what is in work."""
        for connection in list(self.connections):
            connection.close()
        await asyncio.sleep(0)  # a handler whose task is cancelled before it has begun would never be awaited
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def error_code(error: BaseException) -> ErrorCode:
    """The response for an exception."""
    if isinstance(error, ApiError):
        return error.code
    if isinstance(error, (LogError, RecordsError)):
        return ErrorCode[error.error_name]
    return ErrorCode.UNKNOWN_SERVER_ERROR


def error_text(error: BaseException) -> str | None:
    """What a response may say beside the code of an exception."""
    return error.message if isinstance(error, ApiError) else None
