"""Envelope: a request that a client has sent to a broker, which has forwarded it to the controller (KIP-590)."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.logging import get_logger
from hailbus_broker.protocol import codec
from hailbus_broker.protocol.api import APIS, ApiKey, request_class
from hailbus_broker.protocol.definitions.default_principal_data import DefaultPrincipalData
from hailbus_broker.protocol.definitions.envelope_response import EnvelopeResponse
from hailbus_broker.protocol.errors import ApiError, ErrorCode, ProtocolError
from hailbus_broker.protocol.framing import read_head
from hailbus_broker.server.dispatch import error_code, error_text
from hailbus_broker.server.error_responses import error_response
from hailbus_broker.server.request import Request, has_many_entries

if TYPE_CHECKING:
    from hailbus_broker.protocol.definitions.envelope_request import EnvelopeRequest
    from hailbus_broker.protocol.schema import Message
    from hailbus_broker.server.dispatch import Dispatcher

log: Any = get_logger()

FORWARDABLE: Final = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.UPDATE_FEATURES,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.ADD_RAFT_VOTER,
        ApiKey.REMOVE_RAFT_VOTER,
    }
)
"""What brokers forward; no other request may come in an envelope."""

_SIZE_BYTES: Final = 4
_CORRELATION_ID_BYTES: Final = 4
_VERSION_BYTES: Final = 2


async def envelope(dispatcher: Dispatcher, request: Request, message: EnvelopeRequest) -> EnvelopeResponse:
    """Envelope v0, on controllers' listeners only: their clients are nodes of the cluster."""
    if not dispatcher.core.metadata.is_active:
        raise ApiError(ErrorCode.NOT_CONTROLLER)
    client = f"{_principal(message)}@{_host(message)}"
    inner, inner_message = _unpack(request, message)
    handler = dispatcher.handlers.get(ApiKey(inner.api_key)) if inner.api_key in FORWARDABLE else None
    if handler is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"API {inner.api_key} cannot be forwarded.")
    response: Message
    try:
        result = handler.handle(dispatcher, inner, inner_message)
        response = await result if isinstance(result, Awaitable) else result
    except Exception as error:
        code = error_code(error)
        if code is ErrorCode.NOT_CONTROLLER:
            raise  # the broker looks for the active controller and asks it
        if code is ErrorCode.UNKNOWN_SERVER_ERROR:
            log.error("request_failed", api=APIS[inner.api_key].name, forwarded_for=client, exc_info=error)
        response = error_response(inner.api_key, inner.version, inner_message, code, error_text(error))
    encode = partial(_encode, inner, response)
    data = await dispatcher.core.threads.run(encode) if has_many_entries(response) else encode()
    return EnvelopeResponse(response_data=data)


def _principal(message: EnvelopeRequest) -> str:
    """Return who the client is, as the broker has found out.

    Raises:
        ApiError: The bytes are no principal.
    """
    data = message.request_principal
    try:
        if data is None or int.from_bytes(data[:_VERSION_BYTES], "big") != 0:
            raise ApiError(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE)
        principal = codec.decode(DefaultPrincipalData, data, 0, position=_VERSION_BYTES)
    except ProtocolError as error:
        raise ApiError(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE) from error
    return f"{principal.type}:{principal.name}"


def _host(message: EnvelopeRequest) -> str:
    try:
        return str(ipaddress.ip_address(bytes(message.client_host_address)))
    except ValueError:
        raise ApiError(ErrorCode.INVALID_REQUEST, "The client's address has neither 4 nor 16 bytes.") from None


def _unpack(request: Request, message: EnvelopeRequest) -> tuple[Request, Message]:
    """Return the request in the envelope, and its decoded body.

    Raises:
        ApiError: It is malformed, or in a version that is not known here.
    """
    frame = memoryview(message.request_data)
    try:
        head = read_head(frame)
        if head.api_key not in APIS or head.version not in APIS[head.api_key]:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
        inner = Request(request.connection, frame, *head)
        inner.message = codec.decode(request_class(head.api_key), frame, head.version, position=head.position)
    except ProtocolError as error:
        raise ApiError(ErrorCode.INVALID_REQUEST, str(error)) from error
    return inner, inner.message


def _encode(inner: Request, response: Message) -> bytes:
    """Return a response with its header, as a client would get it, without its size."""
    out = inner.response_head()
    codec.encode(response, inner.version, out)
    end = _SIZE_BYTES + _CORRELATION_ID_BYTES
    out[_SIZE_BYTES:end] = inner.correlation_id.to_bytes(_CORRELATION_ID_BYTES, "big", signed=True)
    return bytes(out[_SIZE_BYTES:])
