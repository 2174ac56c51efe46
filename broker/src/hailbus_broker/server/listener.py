"""The listening sockets of a node."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from hailbus_broker.runtime.errors import StartError
from hailbus_broker.runtime.node_core import Listener
from hailbus_broker.server.connection import Connection, ReceiveBuffer
from hailbus_broker.server.dispatch import Dispatcher
from hailbus_broker.server.handlers.table import CONTROLLER_HANDLERS, HANDLERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hailbus_broker.runtime.controller_node import ControllerNode
    from hailbus_broker.runtime.node import Node


class Listeners:
    """The listening sockets of a node, and the connections that come in over them.

    Args:
        dispatcher: Serves the requests.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher: Final = dispatcher
        self._servers: list[asyncio.Server] = []

    async def bind(self) -> None:
        """Bind all addresses of the settings, and note them in the node; nobody can connect yet.

        Raises:
            StartError: With one sentence that says what to do.
        """
        dispatcher, config = self._dispatcher, self._dispatcher.core.config
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
        for name, (host, port) in addresses.items():
            holder: list[Listener] = []

            def connect(holder: list[Listener] = holder) -> Connection:
                return Connection(dispatcher, holder[0], receive, max_request_bytes=config["socket.request.max.bytes"])

            try:
                server = await loop.create_server(connect, host or None, port, start_serving=False, backlog=1024)
            except OSError as error:
                self.close()
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
            dispatcher.core.listeners.append(listener)

    async def serve(self) -> None:
        """Let clients connect."""
        for server in self._servers:
            await server.start_serving()
        core = self._dispatcher.core
        if core.config["connections.max.idle.ms"] >= 0:
            core.every(core.config["connections.max.idle.ms"], self._dispatcher.close_idle_connections)

    def close(self) -> None:
        """Let nobody else connect."""
        for server in self._servers:
            server.close()
        self._servers.clear()


class Server:
    """A broker and its listeners.

    Args:
        node: Started by `start`.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.dispatcher: Dispatcher | None = None
        self._listeners: Listeners | None = None

    async def start(self) -> None:
        """Bind, open the data, and serve.

        Raises:
            StartError: With one sentence that says what to do.
        """
        self.dispatcher = Dispatcher(self.node.core, HANDLERS, node=self.node)
        self._listeners = await _start(self.node, self.dispatcher)

    @property
    def bootstrap(self) -> str:
        """Where clients find the broker: the first listener's advertised address."""
        listener = self.node.listeners[0]
        return f"{listener.advertised_host}:{listener.advertised_port}"

    async def stop(self) -> None:
        """Close the listeners and connections, then the node."""
        if self._listeners is not None:
            self._listeners.close()
        if self.dispatcher is not None:
            await self.dispatcher.close()
        await self.node.stop()


class ControllerServer:
    """A controller and its listeners.

    Args:
        node: Started by `start`.
    """

    def __init__(self, node: ControllerNode) -> None:
        self.node: Final = node
        self._dispatcher: Dispatcher | None = None
        self._listeners: Listeners | None = None

    async def start(self) -> None:
        """Bind, open the data, and serve.

        Raises:
            StartError: With one sentence that says what to do.
        """
        self._dispatcher = Dispatcher(self.node.core, CONTROLLER_HANDLERS)
        self._listeners = await _start(self.node, self._dispatcher)

    async def stop(self) -> None:
        """Lead no more, then close the listeners and connections, and the node."""
        self.node.resign()
        if self._listeners is not None:
            self._listeners.close()
        if self._dispatcher is not None:
            await self._dispatcher.close()
        await self.node.stop()


async def _start(node: Node | ControllerNode, dispatcher: Dispatcher) -> Listeners:
    """Bind, start a node, and let its clients connect."""
    listeners = Listeners(dispatcher)
    await listeners.bind()
    try:
        await node.start()
    except BaseException:
        listeners.close()
        raise
    await listeners.serve()
    return listeners


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
