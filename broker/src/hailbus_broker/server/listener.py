"""The listening sockets of a broker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hailbus_broker.runtime.errors import StartError
from hailbus_broker.runtime.node import Listener, Node
from hailbus_broker.server.connection import Connection, ReceiveBuffer
from hailbus_broker.server.dispatch import Dispatcher
from hailbus_broker.server.handlers.table import HANDLERS

if TYPE_CHECKING:
    from collections.abc import Mapping


class Server:
    """A node and its listeners.

    Args:
        node: Started by `start`.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.dispatcher: Dispatcher | None = None
        self._servers: list[asyncio.Server] = []

    async def start(self) -> None:
        """Bind, open the data, and serve.

        Raises:
            StartError: With one sentence that says what to do.
        """
        config = self.node.config
        addresses = parse_listeners(config["listeners"], "listeners")
        _check_protocols(config["listener.security.protocol.map"], addresses)
        advertised = parse_listeners(config["advertised.listeners"] or "", "advertised.listeners")
        unknown = sorted(set(advertised) - set(addresses))
        if unknown:
            raise StartError(
                f"advertised.listeners names {unknown[0]}, which is not among the listeners {', '.join(addresses)}"
            )
        loop = asyncio.get_running_loop()
        receive = ReceiveBuffer()
        self.dispatcher = dispatcher = Dispatcher(self.node, HANDLERS)
        pending: list[tuple[asyncio.Server, str, str]] = []
        for name, (host, port) in addresses.items():
            holder: list[Listener] = []

            def connect(holder: list[Listener] = holder) -> Connection:
                return Connection(dispatcher, holder[0], receive, max_request_bytes=config["socket.request.max.bytes"])

            try:
                server = await loop.create_server(connect, host or None, port, start_serving=False, backlog=1024)
            except OSError as error:
                await self._close_servers()
                raise StartError(
                    f"cannot listen on {host}:{port}: {_reason(error)}; "
                    "stop what uses the address or choose another with --listen"
                ) from error
            self._servers.append(server)
            bound = server.sockets[0].getsockname()
            told_host, told_port = advertised.get(name, (host, bound[1]))
            if not told_host or told_host in {"0.0.0.0", "::"}:  # noqa: S104 - compared, not bound
                told_host = "127.0.0.1" if name not in advertised and len(addresses) == 1 else _own_host()
            listener = Listener(
                name=name,
                host=host,
                port=bound[1],
                advertised_host=told_host,
                advertised_port=told_port or bound[1],
            )
            holder.append(listener)
            self.node.listeners.append(listener)
            pending.append((server, host, name))
        try:
            await self.node.start()
        except BaseException:
            await self._close_servers()
            raise
        for server, _, _ in pending:
            await server.start_serving()
        if config["connections.max.idle.ms"] >= 0:
            self.node.every(config["connections.max.idle.ms"], dispatcher.close_idle_connections)

    @property
    def bootstrap(self) -> str:
        """Where clients find the broker: the first listener's advertised address."""
        listener = self.node.listeners[0]
        return f"{listener.advertised_host}:{listener.advertised_port}"

    async def stop(self) -> None:
        """Close the listeners and connections, then the node."""
        await self._close_servers()
        if self.dispatcher is not None:
            await self.dispatcher.close()
        await self.node.stop()

    async def _close_servers(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()


def parse_listeners(text: str, option: str) -> dict[str, tuple[str, int]]:
    """`NAME://HOST:PORT,…` → host and port by name.

    Raises:
        StartError: The text is something else.
    """
    found: dict[str, tuple[str, int]] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, separator, address = item.partition("://")
        host, colon, port = address.rpartition(":")
        if not separator or not colon or not port.isdigit() or int(port) > 65535:
            raise StartError(f"{option}: {item!r} is not NAME://HOST:PORT")
        if name in found:
            raise StartError(f"{option}: {name} stands there twice")
        found[name] = (host.strip("[]"), int(port))
    return found


def _check_protocols(text: str | None, names: Mapping[str, object]) -> None:
    protocols = {}
    for item in filter(None, (part.strip() for part in (text or "").split(","))):
        name, colon, protocol = item.partition(":")
        if not colon:
            raise StartError(f"listener.security.protocol.map: {item!r} is not NAME:PROTOCOL")
        protocols[name] = protocol
    for name in names:
        protocol = protocols.get(name, name if name in {"SSL", "SASL_PLAINTEXT", "SASL_SSL"} else "PLAINTEXT")
        if protocol != "PLAINTEXT":
            raise StartError(
                f"listener {name} asks for {protocol}, and only PLAINTEXT is offered so far: give it PLAINTEXT"
            )


def _own_host() -> str:
    import socket

    return socket.gethostname()


def _reason(error: OSError) -> str:
    import errno
    import os

    if error.errno == errno.EADDRINUSE:
        return "another process uses the address"
    return os.strerror(error.errno) if error.errno else str(error)
