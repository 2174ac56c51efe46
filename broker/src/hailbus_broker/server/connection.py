"""One client's connection: frames in, requests out one after another, answers back in the same order.

As in Kafka, a connection has one request in work at a time; only Produce requests begin while earlier ones wait for the
disk, since their appends happen in order anyway. What a client pipelines beyond that is kept, up to a bound, and then
no longer read.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from errno import EIO
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.log import StorageError
from hailbus_broker.logging import get_logger
from hailbus_broker.protocol.errors import ProtocolError
from hailbus_broker.protocol.framing import read_head
from hailbus_broker.server.file_send import FileSend
from hailbus_broker.server.frame_reader import FrameReader
from hailbus_broker.server.request import Request

if TYPE_CHECKING:
    from hailbus_broker.runtime.node import Listener
    from hailbus_broker.server.dispatch import Dispatcher

log: Any = get_logger()

RECEIVE_BYTES: Final = 256 * 1024
QUEUED_FRAMES: Final = 256
QUEUED_BYTES: Final = 8 * 1024 * 1024
PRODUCE: Final = 0
JOINED_BYTES: Final = 16 * 1024
"""Answers that are smaller together are copied into one buffer: cheaper than a vector of many."""


class ReceiveBuffer:
    """One buffer for all connections of a loop: what is read into it is taken out before anybody else reads."""

    def __init__(self) -> None:
        self.data: Final = memoryview(bytearray(RECEIVE_BYTES))


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
        self, dispatcher: Dispatcher, listener: Listener, receive: ReceiveBuffer, *, max_request_bytes: int
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
        self._reader = FrameReader(receive.data, max_bytes=max_request_bytes)
        self._transport: asyncio.Transport | None = None
        self._queue: deque[memoryview] = deque()
        self._queued_bytes = 0
        self._in_work: deque[Request] = deque()
        self._unanswered_count = 0
        self._is_paused = False
        self._is_dispatching = False
        self._is_flush_due = False
        self._is_writable = True
        self._is_ending = False
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
        node = self.dispatcher.node
        if not node.machine.descriptors.has_room_for_connection(transport.get_extra_info("socket").fileno()):
            node.warn_of_descriptors(f"a connection from {self.peer} was refused")
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
        self.dispatcher.finished(self._queued_bytes + sum(len(request.frame) for request in self._in_work))
        self.dispatcher.hold(self, 0)
        self._queue.clear()
        self._queued_bytes = 0
        self.dispatcher.connections.pop(self, None)
        self.dispatcher.disconnected(list(self._in_work))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio calls it so
        """See `asyncio`: where to read to."""
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio`: so many bytes were read."""
        self.is_idle = False
        held_bytes = self._reader.held_bytes
        try:
            frames = self._reader.received(nbytes)
        except ProtocolError as error:
            self.abort(str(error))
            return
        if self._reader.held_bytes != held_bytes:
            self.dispatcher.hold(self, self._reader.held_bytes)
        for frame in frames:
            self._take(frame)
        if frames:
            self._dispatch()
        elif self._reader.held_bytes != held_bytes:
            self._flow()

    def _take(self, frame: memoryview) -> None:
        self._queue.append(frame)
        self._queued_bytes += len(frame)
        self.dispatcher.bytes_in_work += len(frame)

    def eof_received(self) -> bool:
        """The client has no more requests; it still gets its answers."""
        if self._in_work or self._queue:
            self._is_ending = True
            return True
        return False

    # ------------------------------------------------------------------ requests

    def _dispatch(self) -> None:
        if self._is_dispatching:
            return
        self._is_dispatching = True
        try:
            while self._queue and self._is_writable and self._file_send is None and self._may_start():
                frame = self._queue.popleft()
                self._queued_bytes -= len(frame)
                try:
                    head = read_head(frame)
                except ProtocolError as error:
                    self.abort(str(error))
                    return
                request = Request(self, frame, *head)
                self._in_work.append(request)
                self._unanswered_count += 1
                self.dispatcher.handle(request)
                if self.is_closed:
                    return
        finally:
            self._is_dispatching = False
        if self._in_work and self._in_work[0].is_done:
            self._flush()
        self._flow()

    def _may_start(self) -> bool:
        if not self._unanswered_count:
            return True
        if len(self._in_work) >= QUEUED_FRAMES or self._in_work[-1].api_key != PRODUCE:
            return False
        # Peek at the key: two bytes at the start.
        frame = self._queue[0]
        return len(frame) >= 2 and frame[0] == 0 and frame[1] == PRODUCE

    def _flow(self) -> None:
        """Stop reading while too much is queued."""
        assert self._transport is not None
        is_full = (
            len(self._queue) > QUEUED_FRAMES or self._queued_bytes > QUEUED_BYTES or self.dispatcher.has_too_much(self)
        )
        if is_full and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        elif self._is_paused and not self._queue and not is_full:
            self._is_paused = False
            self._transport.resume_reading()

    def look_again(self) -> None:
        """There is room for requests again."""
        if not self.is_closed:
            self._flow()

    def answered(self) -> None:
        """A request has its answer: send all that are next in order, those of one turn of the loop together."""
        self._unanswered_count -= 1
        if self._is_dispatching or self._is_flush_due or not self._in_work or not self._in_work[0].is_done:
            return
        self._is_flush_due = True
        self.dispatcher.node.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        in_work = self._in_work
        if self.is_closed or not in_work or not in_work[0].is_done or self._file_send is not None:
            return
        parts: list[Any] = []
        with_files: Request | None = None
        while in_work and in_work[0].is_done:
            request = in_work.popleft()
            self.dispatcher.finished(len(request.frame))
            if request.has_files:
                with_files = request
                break
            parts += request.parts
        transport = self._transport
        assert transport is not None
        if len(parts) == 1:
            transport.write(parts[0])
        elif parts:
            if sum(map(len, parts)) < JOINED_BYTES:
                transport.write(b"".join(parts))
            else:
                transport.writelines(parts)
        if with_files is not None:
            self._send_files(with_files)
        elif self._queue:
            if not self._is_dispatching:
                self._dispatch()
        elif self._is_ending and not in_work:
            transport.close()

    def _send_files(self, request: Request) -> None:
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
        node = self.dispatcher.node
        self._file_send = FileSend(node.loop, node.threads, self._socket, request.parts, self._files_sent)
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
                self.dispatcher.node.take_offline(StorageError(f"cannot read: {error}", errno=EIO))
            # The client has a part of the answer: there is no way to tell it but this one.
            self.close()
            return
        transport.set_write_buffer_limits()
        if self._in_work and self._in_work[0].is_done:
            self._flush()
        elif self._queue:
            self._dispatch()
        elif self._is_ending and not self._in_work:
            transport.close()

    def pause_writing(self) -> None:
        """The client does not read: nothing new is begun for it."""
        self._is_writable = False

    def resume_writing(self) -> None:
        """It reads again."""
        self._is_writable = True
        if self._is_file_send_due and self._file_send is not None:
            self._is_file_send_due = False
            self._file_send.go_on()
        self._dispatch()

    # ------------------------------------------------------------------ end

    def close_if_idle(self) -> None:
        """Close the connection if nothing has come over it since the last look, and nothing is owed."""
        if self.is_idle and not self._in_work and not self._queue and self._file_send is None:
            self.close()
        self.is_idle = True

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
