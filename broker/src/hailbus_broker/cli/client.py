"""A blocking client of a broker: one request, one response."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final, Self

from hailbus_broker.protocol import codec
from hailbus_broker.protocol.api import APIS, header_versions, response_class
from hailbus_broker.protocol.definitions.request_header import RequestHeader
from hailbus_broker.protocol.definitions.response_header import ResponseHeader
from hailbus_broker.protocol.framing import LENGTH
from hailbus_broker.runtime.errors import StartError

if TYPE_CHECKING:
    from types import TracebackType

    from hailbus_broker.protocol.schema import Message

CLIENT_ID: Final = "hailbus-broker-cli"


class BrokerClient:
    """A connection to a broker.

    Args:
        bootstrap: HOST:PORT.
        timeout_s: For each step.

    Raises:
        StartError: The address is none.
        OSError: Nobody answers there.
    """

    def __init__(self, bootstrap: str, *, timeout_s: float = 5.0) -> None:
        host, colon, port = bootstrap.rpartition(":")
        if not colon or not port.isdigit():
            raise StartError(f"--bootstrap {bootstrap} is not HOST:PORT, for example 127.0.0.1:9092")
        self._connection = socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s)
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._connection.close()

    def ask(self, request: Message, *, version: int | None = None) -> Message:
        """Send a request and wait for its response.

        Args:
            request: Any that has an API key.
            version: None is the newest.

        Raises:
            OSError: The connection failed.
            EOFError: The broker closed it, as for an API or version that it does not serve.
            ProtocolError: What came back is no such response.
        """
        key = request.__api_key__
        version = APIS[key].last if version is None else version
        request_header, response_header = header_versions(key, version)
        self._correlation_id += 1
        frame = codec.encode(
            RequestHeader(
                request_api_key=key,
                request_api_version=version,
                correlation_id=self._correlation_id,
                client_id=CLIENT_ID,
            ),
            request_header,
        )
        codec.encode(request, version, frame)
        self._connection.sendall(LENGTH.pack(len(frame)) + frame)
        (size,) = LENGTH.unpack(self._read(LENGTH.size))
        answer = self._read(size)
        _, position = codec.decode_with_end(ResponseHeader, answer, response_header)
        return codec.decode(response_class(key), answer, version, position=position)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._connection.recv(size - len(data))
            if not part:
                raise EOFError("the connection was closed")
            data += part
        return data
