"""Requests of clients that the active controller decides: on this node, or on the one that they are forwarded to."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.client import UnreachableError
from hailbus_broker.protocol.errors import ApiError, ErrorCode
from hailbus_broker.protocol.schema import Struct

if TYPE_CHECKING:
    from collections.abc import Callable

    from hailbus_broker.server.dispatch import Dispatcher, Handle
    from hailbus_broker.server.request import Request

MAX_WAIT_MS: Final = 30_000
"""A request waits no longer for a controller, whatever its own timeout says."""


def decided_here(decide: Handle) -> Handle:
    """Return a handler that serves an API only while this node's controller is active.

    Controllers' listeners and envelopes use it. It raises NOT_CONTROLLER for the whole request, so that it is asked
    again elsewhere, also when the controller has ceased to be active halfway.
    """

    async def handle(dispatcher: Dispatcher, request: Request, message: Any) -> Any:
        if not dispatcher.core.metadata.is_active:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        response = decide(dispatcher, request, message)
        if isinstance(response, Awaitable):
            response = await response
        if _reports(response, ErrorCode.NOT_CONTROLLER):
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        return response

    return handle


def forwarded(decide: Handle, *, complete: Callable[[Dispatcher, Any], object] = lambda *_: None) -> Handle:
    """Return a handler for brokers' listeners.

    Args:
        decide: The handler of the active controller.
        complete: Adds to the response what only the broker knows that the client asked.
    """

    async def handle(dispatcher: Dispatcher, request: Request, message: Any) -> Any:
        if dispatcher.core.roles.is_standalone:
            response = decide(dispatcher, request, message)
            if isinstance(response, Awaitable):
                response = await response
        else:
            response = await _forward(dispatcher, request, message)
        complete(dispatcher, response)
        return response

    return handle


async def _forward(dispatcher: Dispatcher, request: Request, message: Any) -> Any:
    timeout_ms = getattr(message, "timeout_ms", 0)
    timeout_ms = min(timeout_ms, MAX_WAIT_MS) if timeout_ms > 0 else MAX_WAIT_MS
    try:
        return await dispatcher.node.channel.forward(request, message, timeout_s=timeout_ms / 1_000)
    except UnreachableError as error:
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error


def _reports(response: Struct, code: ErrorCode) -> bool:
    """Whether a response has an error code, for the whole request or for a part of it."""
    for field in response.__fields__:
        value = getattr(response, field.name)
        if field.name == "error_code":
            found = value == code
        else:
            is_list = field.kind == "array" and value and isinstance(value[0], Struct)
            found = is_list and any(_reports(entry, code) for entry in value)
        if found:
            return True
    return False
