"""One direction of a simulated TCP connection: bytes arrive once and in order, or the connection ends."""

from __future__ import annotations

import zlib
from collections import deque
from errno import ETIMEDOUT
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hailbus_broker.testing.simulation.handles import KernelEvent
    from hailbus_broker.testing.simulation.link import Link
    from hailbus_broker.testing.simulation.network import Network
    from hailbus_broker.testing.simulation.transport import SimulatedTransport

_WINDOW_BYTES: Final = 256 * 1024
"""Sent and not yet read by the other end: the kernels' buffers on both sides."""
_GIVE_UP_S: Final = 924.6
"""After so long without an acknowledgement a connection fails, as with Linux's default `tcp_retries2`."""


class _End:
    """Stands in a channel for FIN."""


class _Reset:
    """Stands in a channel for RST."""


_END: Final = _End()
_RESET: Final = _Reset()
_Segment = bytes | _End | _Reset


class Channel:
    """One direction of a connection: what its sender has sent and its receiver has not read yet.

    Args:
        network: The network.
        link: Between the hosts of the two ends.
        back: The link of the opposite direction, for acknowledgements and resets.
        receiver: Who gets the bytes.
        sender: Who sends them.

    Attributes:
        is_blocked: Whether all packets of this direction are lost, while other connections of the link work.
    """

    def __init__(
        self, network: Network, link: Link, back: Link, sender: SimulatedTransport, receiver: SimulatedTransport
    ) -> None:
        self._network: Final = network
        self._loop: Final = network.loop
        self._link: Final = link
        self._back: Final = back
        self.sender: Final = sender
        self.receiver: Final = receiver
        self.unread_bytes = 0
        self._in_flight: Final[deque[tuple[float, _Segment]]] = deque()
        self._held: Final[deque[_Segment]] = deque()
        self._unacknowledged_bytes = 0
        self._last_arrival_s = 0.0
        self._arrival: KernelEvent | None = None
        self._is_abandoned = False
        self._is_ended = False
        self.is_blocked = False
        self._stalled_since_s: float | None = None
        link.channels[self] = None

    @property
    def room(self) -> int:
        """Bytes that may be sent now."""
        return _WINDOW_BYTES - self.unread_bytes

    @property
    def outlives_sender(self) -> bool:
        """Whether bytes are under way whose sender has closed its socket: the kernel delivers them all the same."""
        return bool(self._in_flight or self._held) and self.sender.is_socket_closed

    # ------------------------------------------------------------------ the sender's side

    def send(self, data: bytes) -> None:
        """Send bytes; they arrive later, unless the connection ends before."""
        self.unread_bytes += len(data)
        rng, link = self._network.rng, self._link
        if link.trap is not None and link.trap(data):
            link.trap = None
            self._network.note("message held back")
            self._loop.record("network", f"hold back connection {self.sender.number}")
            self.is_blocked = True
        drawn = rng.random()
        if drawn < link.quality.split_probability and len(data) > 1:
            cut = rng.randrange(1, len(data))
            self._put(data[:cut])
            self._put(data[cut:])
        elif self._held or link.is_cut or not link.target.is_up or self._is_abandoned or self.is_blocked:
            self._put(data)
        else:
            self._transmit(data, 0.0)

    def send_end(self) -> None:
        """Send FIN."""
        self._put(_END)

    def send_reset(self) -> None:
        """Send RST in place of whatever has not arrived."""
        self._held.clear()
        self._put(_RESET)

    def abandon(self) -> None:
        """Forget what has not left yet: the sender is gone."""
        self._is_abandoned = True
        self._held.clear()
        self._stalled_since_s = None
        self._forget_if_done()

    def _put(self, segment: _Segment) -> None:
        if self._is_abandoned and segment is not _RESET:
            return
        if not self._link.is_open or self._held or self.is_blocked:
            self._held.append(segment)
            self._stall()
            return
        self._transmit(segment, 0.0)

    def _transmit(self, segment: _Segment, extra_s: float) -> None:
        loop, link = self._loop, self._link
        leaves_s = loop.now_s + extra_s
        if link.quality.bytes_per_second is not None and isinstance(segment, bytes):
            leaves_s = max(leaves_s, link.free_at_s) + len(segment) / link.quality.bytes_per_second
            link.free_at_s = leaves_s
        arrival_s = leaves_s + link.delay_s(self._network.rng)
        if arrival_s < self._last_arrival_s:
            arrival_s = self._last_arrival_s
        else:
            self._last_arrival_s = arrival_s
        self._in_flight.append((arrival_s, segment))
        if self._arrival is None:
            self._arrival = loop.at(arrival_s, self._arrive)

    # ------------------------------------------------------------------ the receiver's side

    def _arrive(self) -> None:
        self._arrival = None
        in_flight, now_s, receiver = self._in_flight, self._loop.now_s, self.receiver
        data = in_flight[0][1]
        if isinstance(data, bytes) and len(in_flight) == 1 and not receiver.is_socket_closed:
            # Nearly always: one segment for a program that reads it.
            in_flight.clear()
            self._loop.record(
                receiver.process.name, f"connection {receiver.number} got {len(data)} bytes {zlib.crc32(data):08x}"
            )
            receiver.received((data,))
            return
        chunks: list[bytes] = []
        is_end = is_reset = False
        while in_flight and in_flight[0][0] <= now_s:
            segment = in_flight.popleft()[1]
            if isinstance(segment, bytes):
                chunks.append(segment)
            elif segment is _END:
                is_end = True
            else:
                is_reset = True
        if in_flight:
            self._arrival = self._loop.at(in_flight[0][0], self._arrive)
        size = sum(map(len, chunks))
        checksum = 0
        for chunk in chunks:
            checksum = zlib.crc32(chunk, checksum)
        name = receiver.process.name
        kind = " end" * is_end + " reset" * is_reset
        self._loop.record(name, f"connection {receiver.number} got {size} bytes {checksum:08x}{kind}")
        if receiver.is_socket_closed:
            if chunks and not is_reset:
                receiver.outgoing.answer_with_reset()
        else:
            if chunks:
                receiver.received(chunks)
            if is_reset:
                receiver.received_reset()
            elif is_end:
                receiver.received_end()
        if is_end or is_reset:
            self._is_ended = True
            self._forget_if_done()

    def answer_with_reset(self) -> None:
        """Answer for a socket that is closed: RST."""
        self._network.note("reset of a half-open connection")
        self._link.channels[self] = None
        self.send_reset()

    def consumed(self, count: int) -> None:
        """Acknowledge bytes that the receiver's program has read."""
        if self._back.is_open:
            self.unread_bytes -= count
            if self.sender.get_write_buffer_size():
                self._loop.after(self._back.delay_s(self._network.rng), self.sender.acknowledged)
        else:
            self._unacknowledged_bytes += count
            self._stall()

    # ------------------------------------------------------------------ cuts

    def interrupt(self) -> None:
        """Take back what is on its way: it will be sent again when the link heals."""
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None
        self._held.extendleft(segment for _, segment in reversed(self._in_flight))
        self._in_flight.clear()
        if self._held:
            self._stall()

    def heal(self, link: Link) -> None:
        """Send again what was held, or acknowledge what could not be acknowledged."""
        if link is self._back and self._unacknowledged_bytes:
            self.unread_bytes -= self._unacknowledged_bytes
            self._unacknowledged_bytes = 0
            delay_s = link.backoff_s(self._loop.now_s, self._network.rng) + link.delay_s(self._network.rng)
            self._loop.after(delay_s, self.sender.acknowledged)
        if link is self._link and self._held and not self.is_blocked:
            self._send_held(link.backoff_s(self._loop.now_s, self._network.rng))
        if not self._held and not self._unacknowledged_bytes:
            self._stalled_since_s = None

    def unblock(self) -> None:
        """Let packets of this direction pass again; what was held back is sent."""
        if self.is_blocked:
            self.is_blocked = False
            if self._link.is_open and self._held:
                self._send_held(0.0)
                if not self._unacknowledged_bytes:
                    self._stalled_since_s = None

    def _send_held(self, extra_s: float) -> None:
        held = list(self._held)
        self._held.clear()
        for segment in held:
            self._transmit(segment, extra_s)

    def _stall(self) -> None:
        if self._stalled_since_s is None:
            began_s = self._stalled_since_s = self._loop.now_s

            def give_up() -> None:
                if self._stalled_since_s == began_s and not self.sender.is_socket_closed:
                    self._network.note("retransmissions given up")
                    self._loop.record(self.sender.process.name, f"connection {self.sender.number} timed out")
                    self.sender.received_reset(TimeoutError(ETIMEDOUT, "Connection timed out"))

            self._loop.after(_GIVE_UP_S, give_up)

    def _forget_if_done(self) -> None:
        if (self._is_ended or self._is_abandoned) and not self._in_flight and not self._held:
            self._link.channels.pop(self, None)
