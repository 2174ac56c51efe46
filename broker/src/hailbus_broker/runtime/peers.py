"""Connections to the other nodes of the cluster."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.client import Connection, UnreachableError
from hailbus_broker.protocol.api import APIS, ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hailbus_broker.cluster.raft.voters import Endpoint
    from hailbus_broker.protocol.schema import Message

HANDSHAKE_VERSION: Final = 3
"""Of ApiVersions: every node that can be a peer knows it."""

SOFTWARE_NAME: Final = "hailbus-broker"
SOFTWARE_VERSION: Final = "0.1.0"
"""As this node tells the others."""

Address = tuple[str, int]


class Peers:
    """One connection to each address that this node has asked something, opened when it is needed.

    Args:
        client_id: For the other nodes' logs.
        software_version: Of this node.
        timeout_s: Of connecting, and of a request that names no other.

    Attributes:
        when_refused: Called with an address whose connection was lost, and that refuses another: nobody listens there.
    """

    def __init__(self, client_id: str, *, software_version: str, timeout_s: float) -> None:
        self._client_id: Final = client_id
        self._software_version: Final = software_version
        self._timeout_s: Final = timeout_s
        self.when_refused: Callable[[Address], object] = lambda _: None
        self._peers: Final[dict[Address, _Peer]] = {}
        self._probes: Final[dict[asyncio.Task[None], None]] = {}
        self._is_closed = False

    async def ask(self, endpoint: Endpoint, key: ApiKey, message: Message, *, timeout_s: float | None = None) -> Any:
        """Send a request and wait for its response, whose type depends on the API.

        Args:
            endpoint: Of the other node.
            key: Of the request; it is sent in the newest version that both nodes know.
            message: The request.
            timeout_s: Of the request; the connection is closed when it has passed.

        Raises:
            UnreachableError: No response came.
        """
        peer = self._peer((endpoint.host, endpoint.port))
        connection, versions = await peer.connect()
        version = versions.get(key)
        if version is None:
            raise UnreachableError(f"{endpoint.host}:{endpoint.port} does not serve {key.name} in a version known here")
        return await peer.answer(connection.send(key, version, message), connection, timeout_s or self._timeout_s)

    def hello(self) -> Message:
        """Return the request by which a node asks another one what it supports."""
        return _hello(self._software_version)

    def drop(self, endpoint: Endpoint) -> None:
        """Close the connection to an address; what waits there fails, and the next request opens another one."""
        peer = self._peers.get((endpoint.host, endpoint.port))
        if peer is not None:
            peer.close()

    def _peer(self, address: Address) -> _Peer:
        peer = self._peers.get(address)
        if peer is None:
            peer = self._peers[address] = _Peer(
                address, self._client_id, self._software_version, self._timeout_s, lambda: self._lost(address)
            )
        return peer

    def _lost(self, address: Address) -> None:
        if not self._is_closed:
            task = asyncio.get_running_loop().create_task(self._probe(address), name="peer-probe")
            self._probes[task] = None
            task.add_done_callback(self._probes.pop)

    async def _probe(self, address: Address) -> None:
        """Look whether anybody listens at an address: one that ended has closed its port."""
        try:
            await self._peers[address].connect()
        except UnreachableError as error:
            if isinstance(error.__cause__, ConnectionRefusedError):
                self.when_refused(address)

    async def close(self) -> None:
        """Close all connections; what waits fails."""
        self._is_closed = True
        for task in list(self._probes):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        for peer in self._peers.values():
            peer.close()


class _Peer:
    """The connection to one address."""

    def __init__(
        self,
        address: Address,
        client_id: str,
        software_version: str,
        timeout_s: float,
        when_lost: Callable[[], object],
    ) -> None:
        self._address: Final = address
        self._client_id: Final = client_id
        self._software_version: Final = software_version
        self._timeout_s: Final = timeout_s
        self._when_lost: Final = when_lost
        self._connection: Connection | None = None
        self._versions: Mapping[ApiKey, int] = {}
        self._connecting: Final = asyncio.Lock()

    async def connect(self) -> tuple[Connection, Mapping[ApiKey, int]]:
        """Return the open connection, or a new one, and the version in which each request is sent over it.

        Raises:
            UnreachableError: Nobody listens there, or nobody answers.
        """
        async with self._connecting:
            connection = self._connection
            if connection is not None and not connection.is_closed:
                return connection, self._versions
            self._connection, self._versions = await self._connect()
            return self._connection, self._versions

    async def _connect(self) -> tuple[Connection, Mapping[ApiKey, int]]:
        host, port = self._address
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(self._client_id, self._when_lost), host, port
                )
        except OSError as error:  # TimeoutError is one
            raise UnreachableError(f"no connection to {host}:{port}: {error}") from error
        future = connection.send(ApiKey.API_VERSIONS, HANDSHAKE_VERSION, _hello(self._software_version))
        answer = await self.answer(future, connection, self._timeout_s)
        return connection, _common_versions(answer.api_keys)

    async def answer(self, future: asyncio.Future[Any], connection: Connection, timeout_s: float) -> Any:
        """Wait for the response to something that was sent.

        Raises:
            UnreachableError: It did not come.
        """
        timer = asyncio.get_running_loop().call_later(timeout_s, connection.close, "no response came in time")
        try:
            return await future
        finally:
            timer.cancel()

    def close(self) -> None:
        """Close the connection if there is one."""
        if self._connection is not None:
            self._connection.close()


def _hello(software_version: str) -> Message:
    from hailbus_broker.protocol.definitions.api_versions_request import ApiVersionsRequest

    return ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=software_version)


def _common_versions(served: Any) -> Mapping[ApiKey, int]:
    """Return the newest version of each API that this node and the other one know."""
    found = {}
    for one in served:
        if one.api_key in APIS:
            api = APIS[one.api_key]
            version = min(api.last, one.max_version)
            if version >= max(api.first, one.min_version):
                found[ApiKey(one.api_key)] = version
    return found
