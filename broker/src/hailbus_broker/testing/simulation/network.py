"""The simulated network: hosts, links that are slow or cut, and TCP connections over them.

TCP semantics hold: bytes within a living connection arrive once and in order. A cut delays them until it heals, or
until the sender gives up. A peer that lost power answers nothing, and after its next boot with a reset.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from errno import EADDRINUSE, EADDRNOTAVAIL, ECONNREFUSED, ETIMEDOUT
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.testing.simulation.channel import Channel
from hailbus_broker.testing.simulation.link import LOOPBACK, Link, LinkQuality
from hailbus_broker.testing.simulation.process import Host, SimulatedProcess
from hailbus_broker.testing.simulation.transport import SimulatedSocket, SimulatedTransport

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence

    from hailbus_broker.testing.simulation.loop import SimulatedLoop

_CONNECT_GIVE_UP_S: Final = 127.0
"""After so long without an answer a connection attempt fails, as with Linux's default `tcp_syn_retries`."""


class SimulatedServer(asyncio.AbstractServer):
    """A listener of a process."""

    def __init__(
        self,
        network: Network,
        process: SimulatedProcess,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        address: tuple[str, int],
    ) -> None:
        self._network: Final = network
        self._protocol_factory: Final = protocol_factory
        self._address: Final = address
        self._is_serving = False
        self._is_closed = False
        self._closed: Final = network.loop.create_future()
        self.process: Final = process
        process.servers[self] = None
        process.host.listeners[address[1]] = self

    @property
    def sockets(self) -> tuple[SimulatedSocket, ...]:
        """Return the listening socket, none after `close`."""
        if self._is_closed:
            return ()
        return (SimulatedSocket(self._address, None, descriptor=15 + len(self.process.servers)),)

    def accept(self, transport: SimulatedTransport) -> None:
        """Give a connection its protocol, in the process that listens."""
        if self._is_closed:
            transport.refuse()
        else:
            transport.attach(self._protocol_factory())

    def get_loop(self) -> SimulatedLoop:
        """Return the loop."""
        return self._network.loop

    def is_serving(self) -> bool:
        """Whether connections are accepted."""
        return self._is_serving

    async def start_serving(self) -> None:
        """Accept connections."""
        if self._is_closed:
            raise RuntimeError("the server is closed")
        self._is_serving = True

    async def serve_forever(self) -> None:
        """Accept connections until the caller is cancelled."""
        await self.start_serving()
        try:
            await self._closed
        finally:
            self.close()

    def close(self) -> None:
        """Stop listening; connections stay."""
        self.process_ended()
        if not self._closed.done():
            self._closed.cancel()

    def process_ended(self) -> None:
        """Free the port."""
        self._is_serving = False
        if not self._is_closed:
            self._is_closed = True
            self.process.servers.pop(self, None)
            self.process.host.listeners.pop(self._address[1], None)

    async def wait_closed(self) -> None:
        """Return: the port is free as soon as `close` is called."""


class _Attempt:
    """A connection attempt: SYN, then SYN-ACK or RST, repeated while the link is cut."""

    def __init__(self, network: Network, process: SimulatedProcess, target: Host, port: int) -> None:
        self.answer: Final = network.loop.create_future()
        self._network: Final = network
        self._loop: Final = network.loop
        self._process: Final = process
        self._target: Final = target
        self._port: Final = port
        self._link: Final = network.link(process.host, target)
        self._back: Final = network.link(target, process.host)
        self._client: SimulatedTransport | None = None
        self._deadline: Final = self._loop.after(_CONNECT_GIVE_UP_S, self._give_up)
        self._send()

    def _send(self) -> None:
        if not self._process.is_alive or self.answer.done():
            return
        if self._link.is_open:
            self._loop.after(self._link.delay_s(self._network.rng), self._arrive)
        else:
            self._link.waiting[self._send] = None

    def _arrive(self) -> None:
        if not self._process.is_alive or self.answer.done():
            return
        if not self._link.is_open:
            self._link.waiting[self._send] = None
            return
        server = self._target.listeners.get(self._port)
        if server is None or not server.is_serving():
            if self._back.is_open:
                self._loop.after(self._back.delay_s(self._network.rng), self._refused)
            else:
                self._back.waiting[self._send] = None
            return
        network = self._network
        number = network.next_connection_number()
        client_address = (self._process.host.address, self._process.host.free_port())
        server_address = (self._target.address, self._port)
        client = SimulatedTransport(self._loop, self._process, number, client_address, server_address)
        accepted = SimulatedTransport(self._loop, server.process, number, server_address, client_address)
        client.outgoing = accepted.incoming = Channel(network, self._link, self._back, client, accepted)
        accepted.outgoing = client.incoming = Channel(network, self._back, self._link, accepted, client)
        self._client = client
        self._loop.record(server.process.name, f"connection {number} from {self._process.name}")
        self._loop.schedule(server.process, server.accept, accepted)
        self._answer()

    def _answer(self) -> None:
        if self._back.is_open:
            self._loop.after(self._back.delay_s(self._network.rng), self._established)
        else:
            self._back.waiting[self._answer] = None

    def _established(self) -> None:
        client = self._client
        assert client is not None
        if not self._process.is_alive:
            return
        if self.answer.done():
            client.refuse()
            return
        self._deadline.cancel()
        self.answer.set_result(client)

    def _refused(self) -> None:
        if not self.answer.done():
            self._deadline.cancel()
            self._loop.record(self._process.name, f"refused by {self._target.name}:{self._port}")
            self.answer.set_exception(
                ConnectionRefusedError(
                    ECONNREFUSED, f"Connect call failed {(self._target.address, self._port)}: nobody listens there"
                )
            )

    def _give_up(self) -> None:
        if not self.answer.done() and self._process.is_alive:
            self._loop.record(self._process.name, f"no answer from {self._target.name}:{self._port}")
            self.answer.set_exception(TimeoutError(ETIMEDOUT, f"{self._target.name}:{self._port} does not answer"))


class Network:
    """All hosts and what lies between them.

    Args:
        loop: The world's loop.
        rng: Decides delays and splits.
        note: Counts what a campaign wants to have seen.
        quality: Of links that nobody has changed.
    """

    def __init__(
        self, loop: SimulatedLoop, rng: random.Random, note: Callable[[str], None], quality: LinkQuality
    ) -> None:
        self.loop: Final = loop
        self.rng: Final = rng
        self.note: Final = note
        self.quality = quality
        self.hosts: Final[dict[str, Host]] = {}
        self._links: Final[dict[tuple[str, str], Link]] = {}
        self._connection_count = 0

    def next_connection_number(self) -> int:
        """Number the connections of the world."""
        self._connection_count += 1
        return self._connection_count

    # ------------------------------------------------------------------ hosts

    def host(self, name: str) -> Host:
        """Return the host of a name; the first call makes it."""
        found = self.hosts.get(name)
        if found is None:
            found = self.hosts[name] = Host(name, len(self.hosts) + 1, self.loop)
        return found

    def resolve(self, process: SimulatedProcess, name: str) -> Host:
        """Return the host of a name or an address.

        Raises:
            socket.gaierror: There is none.
        """
        if name in {"localhost", "127.0.0.1"}:
            return process.host
        for host in self.hosts.values():
            if name in {host.name, host.address}:
                return host
        raise socket.gaierror(socket.EAI_NONAME, f"there is no host {name!r} in the simulation")

    def forget(self) -> None:
        """Let go of all programs, at the end of the world."""
        for link in self._links.values():
            link.channels.clear()
            link.waiting.clear()
        for host in self.hosts.values():
            host.processes.clear()
            host.listeners.clear()
            host.when_power_lost.clear()

    # ------------------------------------------------------------------ connections

    def listen(
        self,
        process: SimulatedProcess,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | Sequence[str] | None,
        port: int,
    ) -> SimulatedServer:
        """Take a port; connections are refused until the server serves.

        Raises:
            OSError: The address belongs to another host, or the port is taken.
        """
        own = process.host
        names = [host] if isinstance(host, str) else list(host or [])
        for name in names:
            if name not in {"", "0.0.0.0", "::"} and self.resolve(process, name) is not own:  # noqa: S104 - compared, not bound
                raise OSError(EADDRNOTAVAIL, f"{name} is not an address of {own.name}")
        port = port or own.free_port()
        if port in own.listeners:
            raise OSError(EADDRINUSE, f"port {port} of {own.name} is in use")
        bound = names[0] if names and names[0] not in {"", "::", "localhost"} else "0.0.0.0"  # noqa: S104 - a simulated address
        return SimulatedServer(self, process, protocol_factory, (bound, port))

    async def connect(
        self, process: SimulatedProcess, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[SimulatedTransport, asyncio.BaseProtocol]:
        """Connect a process to a listener.

        Raises:
            OSError: There is no such host, nobody listens, or nobody answers.
        """
        target = self.resolve(process, host)
        transport: SimulatedTransport = await _Attempt(self, process, target, port).answer
        protocol = protocol_factory()
        connected = self.loop.create_future()
        transport.attach(protocol, lambda: None if connected.done() else connected.set_result(None))
        try:
            await connected
        except BaseException:
            transport.close()
            raise
        return transport, protocol

    # ------------------------------------------------------------------ faults

    def link(self, source: Host, target: Host) -> Link:
        """Return one direction between two hosts."""
        key = (source.name, target.name)
        found = self._links.get(key)
        if found is None:
            quality = LOOPBACK if source is target else self.quality
            found = self._links[key] = Link(source, target, quality)
        return found

    def _between(self, first: str, second: str, *, is_one_way: bool) -> Iterator[Link]:
        yield self.link(self.host(first), self.host(second))
        if not is_one_way:
            yield self.link(self.host(second), self.host(first))

    def cut(self, source: str, target: str, *, is_one_way: bool = False) -> None:
        """Let no packet pass between two hosts, or from the first to the second only."""
        for link in self._between(source, target, is_one_way=is_one_way):
            if not link.is_cut:
                self.note("one-way cut" if is_one_way else "cut")
                self.loop.record("network", f"cut {link.source.name} -> {link.target.name}")
                link.is_cut = True
                self._interrupt(link)

    def _interrupt(self, link: Link) -> None:
        link.cut_since_s = self.loop.now_s
        for channel in list(link.channels):
            channel.interrupt()

    def heal(self, source: str, target: str, *, is_one_way: bool = False) -> None:
        """Let packets pass again."""
        for link in self._between(source, target, is_one_way=is_one_way):
            if link.is_cut:
                self.loop.record("network", f"heal {link.source.name} -> {link.target.name}")
                link.is_cut = False
                self._healed(link)

    def heal_all(self) -> None:
        """End all cuts, and give all links their first quality again."""
        for link in list(self._links.values()):
            self.heal(link.source.name, link.target.name, is_one_way=True)
            self.release(link.source.name, link.target.name)
            link.quality = LOOPBACK if link.source is link.target else self.quality

    def hold_back(self, source: str, target: str, trap: Callable[[bytes], bool]) -> None:
        """Hold back the next message of a kind from one host to another, and what follows it in its connection.

        Other connections work, and so does one that the sender opens instead. `release` lets the bytes pass, even if
        the sender has closed the connection meanwhile: its kernel has kept sending them.

        Args:
            source: Who sends.
            target: Who receives.
            trap: Whether the bytes of a write are such a message.
        """
        self.link(self.host(source), self.host(target)).trap = trap

    def release(self, source: str, target: str) -> None:
        """End what `hold_back` has begun."""
        link = self.link(self.host(source), self.host(target))
        link.trap = None
        for channel in list(link.channels):
            channel.unblock()

    @property
    def has_late_bytes(self) -> bool:
        """Whether bytes may still arrive of a process that has ended, or of a connection that was closed."""
        return any(channel.outlives_sender for link in self._links.values() for channel in link.channels)

    def _healed(self, link: Link) -> None:
        if not link.is_open:
            return
        waiting = list(link.waiting)
        link.waiting.clear()
        for action in waiting:
            self.loop.after(link.backoff_s(self.loop.now_s, self.rng), action)
        back = self.link(link.target, link.source)
        for channel in [*link.channels, *back.channels]:
            channel.heal(link)

    def change(self, source: str, target: str, *, is_one_way: bool = False, **qualities: Any) -> None:
        """Change how a link behaves: the attributes of `LinkQuality` by name."""
        for link in self._between(source, target, is_one_way=is_one_way):
            self.loop.record("network", f"change {link.source.name} -> {link.target.name} {qualities}")
            link.quality = replace(link.quality, **qualities)

    def reset(self, first: str, second: str) -> None:
        """Reset all connections between two hosts, as a middlebox does that has forgotten them."""
        links = self._between(first, second, is_one_way=first == second)
        ends = {channel.receiver: None for link in links for channel in link.channels}
        for end in ends:
            if not end.is_socket_closed:
                self.note("connection reset")
                self.loop.record("network", f"reset connection {end.number}")
                end.received_reset()

    def power_off(self, host: Host) -> None:
        """Cut the power of a host: its processes end, and their peers are not notified."""
        if not host.is_up:
            return
        host.is_up = False
        for process in host.processes:
            self.loop.kill(process, is_power_cut=True)
        for link in self._links.values():
            if link.target is host:
                self._interrupt(link)
        for callback in host.when_power_lost:
            callback()

    def boot(self, host: Host) -> None:
        """Turn a host on; its old connections are answered with resets."""
        if host.is_up:
            return
        self.loop.record(host.name, "boot")
        host.is_up = True
        for link in list(self._links.values()):
            if link.target is host:
                self._healed(link)
