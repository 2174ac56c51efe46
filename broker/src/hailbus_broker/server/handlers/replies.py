"""What a coordinator answers to: a client's request, or a callback of the broker itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic

from hailbus_broker.coordinators.outcome import ResponseT
from hailbus_broker.protocol.definitions.add_offsets_to_txn_response import AddOffsetsToTxnResponse
from hailbus_broker.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from hailbus_broker.server.request import Request


class Reply(Generic[ResponseT]):
    """A token for a coordinator: the request, with a last change to the response that its version needs."""

    __slots__ = ("request", "shape")

    def __init__(self, request: Request, shape: Callable[[ResponseT], ResponseT]) -> None:
        self.request = request
        self.shape = shape

    def respond(self, message: ResponseT) -> None:
        """See `Request`."""
        self.request.respond(self.shape(message))

    def respond_error(self, code: ErrorCode) -> None:
        """See `Request`."""
        self.request.respond_error(code)


class CodeReply:
    """A token for a coordinator whose answer is a code for the broker itself."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[ErrorCode], None]) -> None:
        self.callback = callback

    def respond(self, message: AddOffsetsToTxnResponse) -> None:
        """The coordinator's answer."""
        self.callback(ErrorCode(message.error_code))

    def respond_error(self, code: ErrorCode) -> None:
        """The coordinator could not answer."""
        self.callback(code)


def code_response(code: ErrorCode) -> AddOffsetsToTxnResponse:
    """A code as a message, for `CodeReply`."""
    return AddOffsetsToTxnResponse(error_code=code)
