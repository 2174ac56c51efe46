"""The way to the active controller, wherever it is: on another node, or on this one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from hailbus_broker.client import UnreachableError
from hailbus_broker.logging import get_logger
from hailbus_broker.protocol import codec
from hailbus_broker.protocol.api import ApiKey, header_versions, response_class
from hailbus_broker.protocol.errors import ApiError, ErrorCode, ProtocolError
from hailbus_broker.runtime.peers import SOFTWARE_VERSION, Peers

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from hailbus_broker.cluster.raft.voters import Endpoint
    from hailbus_broker.protocol.schema import Message
    from hailbus_broker.runtime.node_core import NodeCore

log: Any = get_logger()

FIRST_BACKOFF_MS: Final = 20
LAST_BACKOFF_MS: Final = 100
"""The wait between two attempts doubles from the first to the last."""
REQUEST_TIMEOUT_MS: Final = 2_000
"""Of one attempt: a controller that was cut off does not answer, and another is elected meanwhile."""

RECHECK_S: Final = 0.25
"""How often a request that is not answered looks whether another controller is active now."""

_CORRELATION_ID_BYTES: Final = 4
_LOCALHOST: Final = bytes((127, 0, 0, 1))


class ForwardedRequest(Protocol):
    """A request of a client, of which the controller decides.

    Attributes:
        frame: Header and body, as they arrived.
        api_key: Of the API.
        version: In which it is answered.
    """

    frame: memoryview
    api_key: int
    version: int

    @property
    def client_host(self) -> str:
        """Where the request came from, after a slash."""
        ...


class OwnController(Protocol):
    """Serves the controller's APIs on this node without a network."""

    async def call(self, key: ApiKey, message: Message, *, request: Any = None) -> Message:
        """Serve a request; what a handler refuses is a response with an error code.

        Args:
            key: Of the API.
            message: The request.
            request: Of the client, if one has asked; None for this node itself, in the newest version.

        Raises:
            ApiError: NOT_CONTROLLER: another node decides.
        """
        ...


class ControllerChannel:
    """Sends requests to the active controller, and again to another one when it is no controller any more.

    Args:
        core: Of this node.
        name: What the channel is for, in the controller's logs.
    """

    def __init__(self, core: NodeCore, name: str) -> None:
        self._core: Final = core
        self._peers: Final = Peers(
            f"node-{core.node_id}-{name}", software_version=SOFTWARE_VERSION, timeout_s=REQUEST_TIMEOUT_MS / 1_000
        )
        self._silent_since_ms: int | None = None

    async def ask(self, key: ApiKey, message: Message, *, timeout_s: float) -> Any:
        """Send a request of this node, and wait for the response, whose type depends on the API.

        Args:
            key: Of the API; its response has a field `error_code`.
            message: The request. It may be processed more than once.
            timeout_s: Of all attempts together.

        Raises:
            UnreachableError: No controller has answered in time.
        """

        async def attempt(endpoint: Endpoint | None, left_s: float) -> Any:
            if endpoint is None:
                return await self._own.call(key, message)
            timeout_s = min(left_s, REQUEST_TIMEOUT_MS / 1_000)
            return await self._while_active(endpoint, self._peers.ask(endpoint, key, message, timeout_s=timeout_s))

        return await self._until_answered(key, attempt, timeout_s)

    async def _while_active(self, endpoint: Endpoint, asked: Coroutine[Any, Any, Any]) -> Any:
        """Wait for the response of a controller, unless another one becomes active: the first may be cut off.

        A connection that has not answered for `REQUEST_TIMEOUT_MS` is closed when the wait ends. Lost packets are sent
        again ever more rarely, so after a cut it could stay silent for a minute.

        Raises:
            UnreachableError: Another one has, or the connection was lost.
        """
        clock = self._core.clock
        if self._silent_since_ms is None:
            self._silent_since_ms = clock.now_ms()
        task = self._core.loop.create_task(asked, name="controller-request")
        try:
            while not task.done():
                await asyncio.wait([task], timeout=RECHECK_S)
                is_own, now_active = self._controller()
                if not task.done() and (is_own or now_active not in {endpoint, None}):
                    self._peers.drop(endpoint)
                    self._silent_since_ms = None
                    raise UnreachableError("another controller has become active")
            return task.result()
        finally:
            task.cancel()
            if task.done() and not task.cancelled() and task.exception() is None:
                self._silent_since_ms = None
            elif self._silent_since_ms is not None and clock.now_ms() - self._silent_since_ms >= REQUEST_TIMEOUT_MS:
                self._peers.drop(endpoint)
                self._silent_since_ms = None

    async def forward(self, request: ForwardedRequest, message: Message, *, timeout_s: float) -> Any:
        """Have the controller serve a request of a client (KIP-590), and return its response.

        Args:
            request: Of the client.
            message: Its body.
            timeout_s: Of all attempts together.

        Raises:
            ApiError: The controller does not serve forwarded requests of this kind.
            UnreachableError: No controller has answered in time.
        """
        from hailbus_broker.protocol.definitions.envelope_request import EnvelopeRequest

        key = ApiKey(request.api_key)
        frame = bytes(request.frame)

        async def attempt(endpoint: Endpoint | None, left_s: float) -> Any:
            if endpoint is None:
                return await self._own.call(key, message, request=request)
            envelope = EnvelopeRequest(
                request_data=frame, request_principal=_principal(), client_host_address=_address(request.client_host)
            )
            asked = self._peers.ask(endpoint, ApiKey.ENVELOPE, envelope, timeout_s=left_s)
            return await self._while_active(endpoint, asked)

        response = await self._until_answered(key, attempt, timeout_s)
        if not isinstance(response, _envelope_response()):
            return response
        if response.error_code:
            raise ApiError(ErrorCode(response.error_code), f"the controller refuses to serve {key.name} by an envelope")
        return _unwrap(key, request.version, response.response_data)

    @property
    def _own(self) -> OwnController:
        assert self._core.own_controller is not None
        return self._core.own_controller

    async def _until_answered(self, key: ApiKey, attempt: Any, timeout_s: float) -> Any:
        """Attempt a request until a controller answers it.

        Raises:
            UnreachableError: None has in time.
        """
        clock = self._core.clock
        deadline_ms = clock.now_ms() + int(timeout_s * 1_000)
        backoff_ms = FIRST_BACKOFF_MS
        reason = "no controller is known"
        while True:
            left_ms = deadline_ms - clock.now_ms()
            if left_ms <= 0:
                raise UnreachableError(
                    f"no controller has answered {key.name} within {timeout_s:g} s: {reason}; "
                    "check that a majority of the controllers runs"
                )
            is_own, endpoint = self._controller()
            if is_own or endpoint is not None:
                try:
                    async with asyncio.timeout(left_ms / 1_000):
                        response = await attempt(None if is_own else endpoint, left_ms / 1_000)
                except (UnreachableError, TimeoutError) as error:
                    reason = str(error) or "it takes too long"
                except ApiError as error:
                    if error.code is not ErrorCode.NOT_CONTROLLER:
                        raise
                    reason = str(error)
                else:
                    if getattr(response, "error_code", ErrorCode.NONE) != ErrorCode.NOT_CONTROLLER:
                        return response
                    reason = "the node that was asked is not the active controller"
                log.debug("controller_request_failed", api=key.name, error=reason)
            await asyncio.sleep(min(backoff_ms, max(deadline_ms - clock.now_ms(), 0)) / 1_000)
            backoff_ms = min(2 * backoff_ms, LAST_BACKOFF_MS)

    def _controller(self) -> tuple[bool, Endpoint | None]:
        """Return whether this node's own controller is active, and else where the leader listens, if it is known."""
        if self._core.metadata.is_active and self._core.own_controller is not None:
            return True, None
        return False, self._core.metadata.quorum.leader_endpoint

    async def close(self) -> None:
        """Close the connection; what waits fails."""
        await self._peers.close()


def _envelope_response() -> type[Any]:
    from hailbus_broker.protocol.definitions.envelope_response import EnvelopeResponse

    return EnvelopeResponse


def _principal() -> bytes:
    """Return who asks, as Apache Kafka's default principal builder writes it: nobody is authenticated so far."""
    from hailbus_broker.protocol.definitions.default_principal_data import DefaultPrincipalData

    version = 0
    principal = DefaultPrincipalData(type="User", name="ANONYMOUS", token_authenticated=False)
    return version.to_bytes(2, "big") + bytes(codec.encode(principal, version))


def _address(client_host: str) -> bytes:
    from ipaddress import ip_address

    try:
        return ip_address(client_host.removeprefix("/")).packed
    except ValueError:
        return _LOCALHOST


def _unwrap(key: ApiKey, version: int, data: bytes | memoryview | None) -> Any:
    """Return the response in an envelope.

    Raises:
        UnreachableError: It is no such response.
    """
    position = _CORRELATION_ID_BYTES + (1 if header_versions(key, version)[1] else 0)
    try:
        return codec.decode(response_class(key), data or b"", version, position=position)
    except ProtocolError as error:
        raise UnreachableError(f"the envelope holds no response to {key.name} v{version}: {error}") from error
