"""One end of a simulated TCP connection, as asyncio's protocols know transports."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from errno import ECONNRESET, EPIPE
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.testing.simulation.errors import EscapedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hailbus_broker.testing.simulation.channel import Channel
    from hailbus_broker.testing.simulation.loop import SimulatedLoop
    from hailbus_broker.testing.simulation.process import SimulatedProcess

_READ_BYTES: Final = 256 * 1024
"""What asyncio reads at once."""
_HIGH_WATER_BYTES: Final = 64 * 1024


class SimulatedSocket:
    """What `get_extra_info("socket")` returns: addresses and options, and no way to the bytes."""

    family: Final = socket.AF_INET
    type: Final = socket.SOCK_STREAM
    proto: Final = socket.IPPROTO_TCP

    def __init__(self, own_address: tuple[str, int], peer_address: tuple[str, int] | None, *, descriptor: int) -> None:
        self._own_address: Final = own_address
        self._peer_address: Final = peer_address
        self._descriptor: Final = descriptor

    def getsockname(self) -> tuple[str, int]:
        """Return the address of this end."""
        return self._own_address

    def getpeername(self) -> tuple[str, int]:
        """Return the address of the other end."""
        if self._peer_address is None:
            raise OSError("the socket is not connected")
        return self._peer_address

    def setsockopt(self, *_arguments: object) -> None:
        """Ignore an option."""

    def getsockopt(self, *_arguments: object) -> int:
        """Return 0 for any option."""
        return 0

    def fileno(self) -> int:
        """Return a number as the system would give it; there is no such descriptor."""
        return self._descriptor

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise EscapedError(f"socket.{name} would leave the simulation; use the transport")


class SimulatedTransport(asyncio.Transport):
    """One end of a connection.

    Args:
        loop: The world's loop.
        process: Whose end it is.
        number: The connection's number, for the trace.
        own_address: Address and port of this end.
        peer_address: Address and port of the other end.

    Attributes:
        outgoing: The channel to the other end.
        incoming: The channel from it.
        is_socket_closed: Whether the kernel has closed this end: what arrives is answered with a reset.
    """

    outgoing: Channel
    incoming: Channel

    def __init__(
        self,
        loop: SimulatedLoop,
        process: SimulatedProcess,
        number: int,
        own_address: tuple[str, int],
        peer_address: tuple[str, int],
    ) -> None:
        self._loop: Final = loop
        self.process: Final = process
        self.number: Final = number
        self.is_socket_closed = False
        self._protocol: asyncio.BaseProtocol | None = None
        descriptor = 16 + len(process.transports) + len(process.servers)
        super().__init__(
            {
                "peername": peer_address,
                "sockname": own_address,
                "socket": SimulatedSocket(own_address, peer_address, descriptor=descriptor),
            }
        )
        self._buffer: Final[deque[bytes]] = deque()
        self._buffer_size = 0
        self._high = _HIGH_WATER_BYTES
        self._low = _HIGH_WATER_BYTES // 4
        self._is_protocol_paused = False
        self._is_reading = False
        self._has_begun = False
        self._is_paused = False
        self._is_read_due = False
        self._is_closing = False
        self._is_eof_due = False
        self._is_eof_sent = False
        self._is_lost = False
        # What the kernel has received and nobody has read.
        self._inbox: Final[deque[bytes]] = deque()
        self._is_inbox_ended = False
        self._inbox_error: OSError | None = None
        process.transports[self] = None

    def __repr__(self) -> str:
        return f"<SimulatedTransport {self.number} of {self.process.name}>"

    # ------------------------------------------------------------------ the kernel's side

    def attach(self, protocol: asyncio.BaseProtocol, connected: Callable[[], None] | None = None) -> None:
        """Begin to work with a protocol, in the order of asyncio: `connection_made`, then reading."""
        self._protocol = protocol
        self._loop.call_soon(protocol.connection_made, self)
        self._loop.call_soon(self._begin_reading)
        if connected is not None:
            self._loop.call_soon(connected)

    def _begin_reading(self) -> None:
        self._is_reading = self._has_begun = True
        self._wake()

    def received(self, chunks: Iterable[bytes]) -> None:
        """Take bytes that arrived."""
        self._inbox.extend(chunks)
        self._wake()

    def received_end(self) -> None:
        """Take the other end's FIN."""
        self._is_inbox_ended = True
        self._wake()

    def received_reset(self, error: OSError | None = None) -> None:
        """Take the other end's RST, or a failure of the connection that the kernel has found."""
        self._inbox_error = error or ConnectionResetError(ECONNRESET, "Connection reset by peer")
        self.is_socket_closed = True
        self.outgoing.abandon()
        self._wake()

    def _wake(self) -> None:
        if not self._is_read_due and (self._is_reading or self._inbox_error is not None) and not self._is_lost:
            self._is_read_due = True
            self._loop.schedule(self.process, self._read)

    def acknowledged(self) -> None:
        """Send more: there is room in the window again."""
        if self._buffer and not self.is_socket_closed:
            self._loop.schedule(self.process, self._flush)

    def process_ended(self, *, is_power_cut: bool) -> None:
        """Close the socket as the kernel does when its process ends; after a power cut there is no kernel to do so."""
        self._is_lost = self._is_closing = True
        if not self.is_socket_closed:
            self.is_socket_closed = True
            if is_power_cut:
                self.outgoing.abandon()
            elif self._inbox:
                self.outgoing.send_reset()
            elif not self._is_eof_sent:
                self.outgoing.send_end()

    def refuse(self) -> None:
        """Reset a connection that nobody wants any more, before it has a protocol."""
        self._is_lost = True
        self.process.transports.pop(self, None)
        if not self.is_socket_closed:
            self.is_socket_closed = True
            self.outgoing.send_reset()

    def _close_socket(self) -> None:
        self.process.transports.pop(self, None)
        if self.is_socket_closed:
            return
        self.is_socket_closed = True
        if self._inbox:
            self.outgoing.send_reset()
        elif not self._is_eof_sent:
            self.outgoing.send_end()

    # ------------------------------------------------------------------ reading

    def _read(self) -> None:
        self._is_read_due = False
        if self._is_lost or not self._has_begun:
            return  # a reset that comes before `connection_made` is seen after it
        if self._is_closing:
            if self._inbox_error is not None:
                self._fail(self._inbox_error)  # what was to be flushed never will be
            return
        if self._inbox:
            if not self._is_paused:
                self._deliver()
                self._wake_for_more()
        elif self._is_paused:
            return
        elif self._inbox_error is not None:
            self._fail(self._inbox_error)
        elif self._is_inbox_ended:
            self._is_inbox_ended = False
            self._deliver_eof()

    def _wake_for_more(self) -> None:
        if self._inbox or self._inbox_error is not None or self._is_inbox_ended:
            self._wake()

    def _deliver(self) -> None:
        protocol, inbox = self._protocol, self._inbox
        data = inbox.popleft() if len(inbox) == 1 else b"".join(inbox)
        inbox.clear()
        try:
            if isinstance(protocol, asyncio.BufferedProtocol):
                buffer = memoryview(protocol.get_buffer(-1))
                size = count = len(data)
                if len(buffer) < size:
                    count = len(buffer)
                    if not count:
                        raise RuntimeError("get_buffer() returned an empty buffer")
                    inbox.append(data[count:])
                    data = data[:count]
                buffer[:count] = data
                self.incoming.consumed(count)
                protocol.buffer_updated(count)
            else:
                assert isinstance(protocol, asyncio.Protocol), protocol
                if len(data) > _READ_BYTES:
                    inbox.append(data[_READ_BYTES:])
                    data = data[:_READ_BYTES]
                self.incoming.consumed(len(data))
                protocol.data_received(data)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - as asyncio's transports
            self._fatal(error, "Fatal error: the protocol failed to take data.")

    def _deliver_eof(self) -> None:
        protocol = self._protocol
        assert isinstance(protocol, asyncio.Protocol | asyncio.BufferedProtocol)
        try:
            keeps_open = protocol.eof_received()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - as asyncio's transports
            self._fatal(error, "Fatal error: protocol.eof_received() call failed.")
            return
        if not keeps_open:
            self.close()

    def is_reading(self) -> bool:
        """Whether bytes are read."""
        return not self._is_closing and not self._is_paused

    def pause_reading(self) -> None:
        """Leave in the kernel what arrives."""
        self._is_paused = True

    def resume_reading(self) -> None:
        """Read again."""
        if self._is_paused and not self._is_closing:
            self._is_paused = False
            self._wake_for_more()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Change the protocol."""
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        assert self._protocol is not None
        return self._protocol

    # ------------------------------------------------------------------ writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes, or keep what the window has no room for."""
        if self._is_eof_due:
            raise RuntimeError("Cannot call write() after write_eof()")
        if not data or self._is_lost:
            return
        taken = bytes(data)
        if self.is_socket_closed:
            self._fatal(self._inbox_error or BrokenPipeError(EPIPE, "Broken pipe"), "Fatal write error")
            return
        if not self._buffer:
            room = self.outgoing.room
            if len(taken) <= room:
                self.outgoing.send(taken)
                return
            if room > 0:
                self.outgoing.send(taken[:room])
                taken = taken[room:]
        self._buffer.append(taken)
        self._buffer_size += len(taken)
        self._maybe_pause_protocol()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send several buffers as one."""
        self.write(b"".join(list_of_data))

    def _flush(self) -> None:
        if self._is_lost or self.is_socket_closed:
            return
        buffer = self._buffer
        while buffer and (room := self.outgoing.room) > 0:
            data = buffer.popleft()
            if len(data) > room:
                buffer.appendleft(data[room:])
                data = data[:room]
            self._buffer_size -= len(data)
            self.outgoing.send(data)
        self._maybe_resume_protocol()
        if not buffer:
            if self._is_closing:
                self._lose(None)
            elif self._is_eof_due:
                self._send_eof()

    def write_eof(self) -> None:
        """End this direction once everything is sent."""
        if self._is_closing or self._is_eof_due:
            return
        self._is_eof_due = True
        if not self._buffer:
            self._send_eof()

    def _send_eof(self) -> None:
        if not self._is_eof_sent and not self.is_socket_closed:
            self._is_eof_sent = True
            self.outgoing.send_end()

    def can_write_eof(self) -> bool:
        """Return True."""
        return True

    def get_write_buffer_size(self) -> int:
        """Bytes that wait for room in the window."""
        return self._buffer_size

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Low and high water mark."""
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the buffer sizes at which the protocol pauses and resumes writing."""
        if high is None:
            high = _HIGH_WATER_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high, self._low = high, low
        self._maybe_pause_protocol()

    def _maybe_pause_protocol(self) -> None:
        if self._buffer_size > self._high and not self._is_protocol_paused:
            self._is_protocol_paused = True
            self._tell_protocol("pause_writing")

    def _maybe_resume_protocol(self) -> None:
        if self._is_protocol_paused and self._buffer_size <= self._low:
            self._is_protocol_paused = False
            self._tell_protocol("resume_writing")

    def _tell_protocol(self, method: str) -> None:
        try:
            getattr(self._protocol, method)()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - as asyncio's transports
            self._report(error, f"protocol.{method}() failed")

    # ------------------------------------------------------------------ the end

    def is_closing(self) -> bool:
        """Whether the transport is closed or about to be."""
        return self._is_closing

    def close(self) -> None:
        """Close once everything is sent."""
        if self._is_closing:
            return
        self._is_closing = True
        if not self._buffer:
            self._lose(None)

    def abort(self) -> None:
        """Close at once."""
        self._fail(None)

    def _fail(self, error: BaseException | None) -> None:
        """Close at once because of an error."""
        if self._is_lost:
            return
        self._buffer.clear()
        self._buffer_size = 0
        self._is_closing = True
        self._lose(error)

    def _lose(self, error: BaseException | None) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._loop.schedule(self.process, self._connection_lost, error)

    def _connection_lost(self, error: Exception | None) -> None:
        try:
            if self._protocol is not None:
                self._protocol.connection_lost(error)
        finally:
            self._close_socket()

    def _fatal(self, error: BaseException, message: str) -> None:
        if not isinstance(error, OSError):
            self._report(error, message)
        self._fail(error)

    def _report(self, error: BaseException, message: str) -> None:
        self._loop.call_exception_handler(
            {"message": message, "exception": error, "transport": self, "protocol": self._protocol}
        )
