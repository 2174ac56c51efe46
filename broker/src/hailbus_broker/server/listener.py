"""The listening sockets of a node."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from hailbus_broker.runtime.addresses import check_protocols, parse_listeners
from hailbus_broker.runtime.errors import StartError
from hailbus_broker.runtime.node_core import Listener
from hailbus_broker.server.connection import Connection, ReceiveBuffer
from hailbus_broker.server.dispatch import Dispatcher
from hailbus_broker.server.handlers.table import CONTROLLER_HANDLERS, HANDLERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from hailbus_broker.runtime.controller_node import ControllerNode
    from hailbus_broker.runtime.node import Node
    from hailbus_broker.runtime.node_core import NodeCore


class Listeners:
    """The listening sockets of a node, and the connections that come in over them.

    Args:
        core: Of the node.
        service_of: Serves the requests that come in by a listener, by its name.
    """

    def __init__(self, core: NodeCore, service_of: Callable[[str], Dispatcher]) -> None:
        self._core: Final = core
        self._service_of: Final = service_of
        self._servers: dict[str, asyncio.Server] = {}

    async def bind(self) -> None:
        """Bind all addresses of the settings, and note them in the node; nobody can connect yet.

        Raises:
            StartError: With one sentence that says what to do.
        """
        config = self._core.config
        addresses = parse_listeners(config["listeners"], "listeners")
        check_protocols(config["listener.security.protocol.map"], addresses)
        advertised = parse_listeners(config["advertised.listeners"] or "", "advertised.listeners")
        unknown = sorted(set(advertised) - set(addresses))
        if unknown:
            raise StartError(
                f"advertised.listeners names {unknown[0]}, which is not among the listeners {', '.join(addresses)}"
            )
        loop = asyncio.get_running_loop()
        receive = ReceiveBuffer()
        roles = self._core.roles
        for name, (host, port) in addresses.items():
            holder: list[Listener] = []
            service = self._service_of(name)

            def connect(service: Dispatcher = service, holder: list[Listener] = holder) -> Connection:
                return Connection(service, holder[0], receive, max_request_bytes=config["socket.request.max.bytes"])

            try:
                server = await loop.create_server(connect, host or None, port, start_serving=False, backlog=1024)
            except OSError as error:
                self.close()
                raise StartError(
                    f"cannot listen on {host}:{port}: {_reason(error)}; "
                    "stop what uses the address or choose another with --listen"
                ) from error
            self._servers[name] = server
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
            is_for_controllers = roles.is_broker and name in roles.controller_listeners
            (self._core.controller_listeners if is_for_controllers else self._core.listeners).append(listener)

    async def serve(self, *listeners: Listener) -> None:
        """Let others connect to listeners."""
        services: dict[Dispatcher, None] = {}
        for listener in listeners:
            await self._servers[listener.name].start_serving()
            services[self._service_of(listener.name)] = None
        config = self._core.config
        if config["connections.max.idle.ms"] >= 0:
            for service in services:
                self._core.every(config["connections.max.idle.ms"], service.close_idle_connections)

    def close(self, *listeners: Listener) -> None:
        """Let nobody else connect to listeners; without any given, to none."""
        for name in [one.name for one in listeners] or list(self._servers):
            server = self._servers.pop(name, None)
            if server is not None:
                server.close()


class Server:
    """A broker, with or without the role of a controller, and its listeners.

    Args:
        node: Started by `start`.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.dispatcher: Dispatcher | None = None
        self._controller: Dispatcher | None = None
        self._listeners: Listeners | None = None

    async def start(self) -> None:
        """Bind, open the data, and serve.

        Controllers are served first: a broker registers with one of them, which may be this node. Clients are served
        before the controller lets the broker lead.

        Raises:
            StartError: With one sentence that says what to do.
        """
        node, core = self.node, self.node.core
        broker = self.dispatcher = Dispatcher(core, HANDLERS, node=node)
        controller = self._controller = controller_service(core) if core.roles.is_controller else None

        def service_of(name: str) -> Dispatcher:
            return controller if controller is not None and name in core.roles.controller_listeners else broker

        listeners = self._listeners = Listeners(core, service_of)
        await listeners.bind()
        is_started = False
        try:
            await node.open()
            await listeners.serve(*core.controller_listeners)
            await node.start()
            is_started = True
            await listeners.serve(*core.listeners)
            await node.until_unfenced()
        except BaseException:
            listeners.close()
            await self._close_connections()
            if is_started:
                await node.stop()
            raise

    @property
    def bootstrap(self) -> str:
        """Where clients find the broker: the first listener's advertised address."""
        listener = self.node.listeners[0]
        return f"{listener.advertised_host}:{listener.advertised_port}"

    async def stop(self) -> None:
        """Give leaderships away, close the listeners and connections, then the node.

        A node whose data directory has failed gives none away: closed connections tell the controller sooner.
        """
        if self.node.failure is None:
            await self.node.leave()
        if self._listeners is not None:
            self._listeners.close()
        await self._close_connections()
        await self.node.stop()

    async def _close_connections(self) -> None:
        for dispatcher in (self.dispatcher, self._controller):
            if dispatcher is not None:
                await dispatcher.close()


class ControllerServer:
    """A controller and its listeners.

    Args:
        node: Started by `start`.
    """

    def __init__(self, node: ControllerNode) -> None:
        self.node: Final = node
        self.dispatcher: Dispatcher | None = None
        self._listeners: Listeners | None = None

    async def start(self) -> None:
        """Bind, open the data, and serve.

        Raises:
            StartError: With one sentence that says what to do.
        """
        core = self.node.core
        dispatcher = self.dispatcher = controller_service(core)
        listeners = self._listeners = Listeners(core, lambda _: dispatcher)
        await listeners.bind()
        try:
            await self.node.start()
        except BaseException:
            listeners.close()
            raise
        await listeners.serve(*core.listeners, *core.controller_listeners)

    @property
    def bootstrap(self) -> str:
        """Where other nodes find the controller: the first listener's advertised address."""
        listener = self.node.core.listeners[0]
        return f"{listener.advertised_host}:{listener.advertised_port}"

    async def stop(self) -> None:
        """Lead no more, then close the listeners and connections, and the node."""
        self.node.resign()
        if self._listeners is not None:
            self._listeners.close()
        if self.dispatcher is not None:
            await self.dispatcher.close()
        await self.node.stop()


def controller_service(core: NodeCore) -> Dispatcher:
    """Return what serves the requests to a node's controller, those of the node itself included."""
    service = Dispatcher(core, CONTROLLER_HANDLERS)
    service.when_lost = partial(_lost, core)
    core.own_controller = service
    return service


def _lost(core: NodeCore, connection: Connection) -> None:
    if core.controller_role is not None:
        core.controller_role.connection_lost(connection)


def _own_host() -> str:
    import socket

    return socket.gethostname()


def _reason(error: OSError) -> str:
    import errno
    import os

    if error.errno == errno.EADDRINUSE:
        return "another process uses the address"
    return os.strerror(error.errno) if error.errno else str(error)
