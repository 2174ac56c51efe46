"""One client's connection: carries out on a socket what `Pipeline` decides."""

from __future__ import annotations

import asyncio
import os
import socket
from errno import EIO
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from hailbus_broker.log import StorageError
from hailbus_broker.logging import get_logger
from hailbus_broker.protocol.errors import ProtocolError
from hailbus_broker.protocol.framing import read_head
from hailbus_broker.server.file_send import FileSend
from hailbus_broker.server.pipeline import Pipeline
from hailbus_broker.server.request import Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from hailbus_broker.runtime.node_core import Listener, NodeCore
    from hailbus_broker.server.request import Part

log: Any = get_logger()

T = TypeVar("T")

RECEIVE_BYTES: Final = 256 * 1024
JOINED_BYTES: Final = 16 * 1024
"""Answers that are smaller together are copied into one buffer: cheaper than a vector of many."""


class ReceiveBuffer:
    """One buffer for all connections of a loop: what is read into it is taken out before anybody else reads."""

    def __init__(self) -> None:
        self.data: Final = memoryview(bytearray(RECEIVE_BYTES))


class Service(Protocol):
    """What a connection needs of the part that serves its requests.

    Attributes:
        connections: Those that are open.
        connection_count: Of all that there ever were.
        bytes_in_work: Size of the requests of all connections.
    """

    connections: dict[Connection, None]
    connection_count: int
    bytes_in_work: int

    @property
    def core(self) -> NodeCore:
        """Of the node, whatever its roles."""
        ...

    def handle(self, request: Request) -> None:
        """Serve a request; its answer may come later."""
        ...

    def hold(self, connection: Connection, byte_count: int) -> None:
        """A connection holds so many bytes for a request that has arrived in part."""
        ...

    def has_too_much(self, connection: Connection) -> bool:
        """Whether a connection must wait until other requests are done."""
        ...

    def finished(self, byte_count: int) -> None:
        """Requests of so many bytes are done."""
        ...

    def disconnected(self, connection: Connection, in_work: list[Request]) -> None:
        """A connection is gone, and the client of these requests with it."""
        ...


class Connection(asyncio.BufferedProtocol):
    """The protocol object of one connection.

    Args:
        dispatcher: Who handles requests.
        listener: Where the connection came in.
        receive: Shared by all connections of the loop.
        max_request_bytes: Largest request.

    Attributes:
        number: Grows with each connection.
    """

    def __init__(
        self, dispatcher: Service, listener: Listener, receive: ReceiveBuffer, *, max_request_bytes: int
    ) -> None:
        self.dispatcher = dispatcher
        self.listener = listener
        self.peer_host = ""
        self.peer = ""
        self.client_software = ""
        dispatcher.connection_count += 1
        self.number = dispatcher.connection_count
        self.is_closed = False
        self.is_idle = False
        self._pipeline: Pipeline[Request] = Pipeline(receive.data, max_request_bytes=max_request_bytes)
        self._transport: asyncio.Transport | None = None
        self._is_dispatching = False
        self._is_flush_due = False
        self._socket: socket.socket | None = None
        self._file_send: FileSend | None = None
        self._is_file_send_due = False

    # ------------------------------------------------------------------ bytes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio`."""
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]  # uvloop's do not inherit
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.peer_host, self.peer = str(peer[0]), f"{peer[0]}:{peer[1]}"
        core = self.dispatcher.core
        if not core.machine.descriptors.has_room_for_connection(transport.get_extra_info("socket").fileno()):
            core.warn_of_descriptors(f"a connection from {self.peer} was refused")
            self.close()
            return
        self.dispatcher.connections[self] = None

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio calls it so
        """See `asyncio`."""
        self.is_closed = True
        if self._file_send is not None:
            self._file_send.cancel()
            self._file_send = None
        elif self._socket is not None:
            self._socket.close()
        self._socket = None
        size, waiting = self._pipeline.clear()
        self.dispatcher.finished(size)
        self.dispatcher.hold(self, 0)
        self.dispatcher.connections.pop(self, None)
        self.dispatcher.disconnected(self, waiting)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio calls it so
        """See `asyncio`: where to read to."""
        return self._pipeline.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio`: so many bytes were read."""
        self.is_idle = False
        pipeline = self._pipeline
        held_bytes = pipeline.held_bytes
        try:
            arrived_bytes = pipeline.received(nbytes)
        except ProtocolError as error:
            self.abort(str(error))
            return
        is_held = pipeline.held_bytes != held_bytes
        if is_held:
            self.dispatcher.hold(self, pipeline.held_bytes)
        if pipeline.has_requests:
            self.dispatcher.bytes_in_work += arrived_bytes
            self._dispatch()
        elif is_held:
            self._flow()

    def eof_received(self) -> bool:
        """The client has no more requests; it still gets its answers."""
        return self._pipeline.end()

    # ------------------------------------------------------------------ requests

    def _dispatch(self) -> None:
        if self._is_dispatching:
            return
        self._is_dispatching = True
        pipeline = self._pipeline
        try:
            while (frame := pipeline.next_frame()) is not None:
                try:
                    head = read_head(frame)
                except ProtocolError as error:
                    self.dispatcher.finished(len(frame))
                    self.abort(str(error))
                    return
                request = Request(self, frame, *head)
                pipeline.started(request)
                self.dispatcher.handle(request)
                if self.is_closed:
                    return
        finally:
            self._is_dispatching = False
        if pipeline.has_answers:
            self._flush()
        self._flow()

    def _flow(self) -> None:
        """Stop reading while too much is queued."""
        transport, pipeline = self._transport, self._pipeline
        assert transport is not None
        if pipeline.flow(is_full=pipeline.has_queued_too_much or self.dispatcher.has_too_much(self)):
            if pipeline.is_paused:
                transport.pause_reading()
            else:
                transport.resume_reading()

    def look_again(self) -> None:
        """There is room for requests again."""
        if not self.is_closed:
            self._flow()

    def answered(self) -> None:
        """A request has its answer: send all that are next in order, those of one turn of the loop together."""
        self._pipeline.answered()
        if not self._is_dispatching and not self._is_flush_due and self._pipeline.has_answers:
            self._is_flush_due = True
            self.dispatcher.core.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        pipeline = self._pipeline
        if self.is_closed or not pipeline.has_answers:
            return
        parts, from_files, request_bytes = pipeline.take_answers()
        self.dispatcher.finished(request_bytes)
        transport = self._transport
        assert transport is not None
        if len(parts) == 1:
            transport.write(parts[0])
        elif parts:
            if sum(map(len, parts)) < JOINED_BYTES:
                transport.write(b"".join(parts))
            else:
                transport.writelines(parts)
        if from_files is not None:
            self._send_files(from_files.parts)
        else:
            self._continue()

    def _continue(self) -> None:
        """Something was sent: start what comes next, or close a connection that was ended."""
        pipeline = self._pipeline
        if pipeline.has_requests:
            self._dispatch()
        elif pipeline.is_ending and pipeline.is_idle:
            assert self._transport is not None
            self._transport.close()

    def _send_files(self, parts: list[Part]) -> None:
        """Send an answer past the transport, as soon as that is empty; what comes next waits for its end."""
        transport = self._transport
        assert transport is not None
        if self._socket is None:
            try:
                self._socket = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
            except OSError as error:
                self.abort(f"too many open files: {error}")
                return
            self._socket.setblocking(False)
        core = self.dispatcher.core
        self._file_send = FileSend(core.loop, core.threads, self._socket, parts, self._files_sent)
        self._is_file_send_due = transport.get_write_buffer_size() > 0
        if self._is_file_send_due:
            transport.set_write_buffer_limits(high=0)  # calls `resume_writing` when it is empty
        else:
            self._file_send.go_on()

    def _files_sent(self, error: OSError | None) -> None:
        self._file_send = None
        transport = self._transport
        assert transport is not None
        if error is not None:
            if error.errno == EIO:
                self.dispatcher.core.take_offline(StorageError(f"cannot read: {error}", errno=EIO))
            # The client has a part of the answer: there is no way to tell it but this one.
            self.close()
            return
        transport.set_write_buffer_limits()
        self._pipeline.files_sent()
        if self._pipeline.has_answers:
            self._flush()
        else:
            self._continue()

    def pause_writing(self) -> None:
        """The client does not read: nothing new is begun for it."""
        self._pipeline.is_writable = False

    def resume_writing(self) -> None:
        """It reads again."""
        self._pipeline.is_writable = True
        if self._is_file_send_due and self._file_send is not None:
            self._is_file_send_due = False
            self._file_send.go_on()
        self._dispatch()

    # ------------------------------------------------------------------ end

    def close_if_idle(self) -> None:
        """Close the connection if nothing has come over it since the last look, and nothing is owed."""
        if self.is_idle and self._pipeline.is_idle:
            self.close()
        self.is_idle = True

    def hold(self) -> None:
        """See `Peer`."""
        self._pipeline.is_beginning = True

    def release(self) -> None:
        """See `Peer`."""
        self._pipeline.is_beginning = False
        if not self.is_closed and self._pipeline.has_requests:
            self._dispatch()

    def in_thread(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], object]) -> None:
        """See `Peer`."""
        self.dispatcher.core.threads.submit(work, done)

    def abort(self, sentence: str) -> None:
        """Close the connection because of what came over it, with one line in the log."""
        if self.is_closed:
            return
        log.warning("connection_closed", peer=self.peer, listener=self.listener.name, reason=sentence)
        self.close()

    def close(self) -> None:
        """Close the connection; what was written still goes out."""
        self.is_closed = True
        if self._transport is not None:
            self._transport.close()
