"""`hailbus-broker describe`."""

from __future__ import annotations

import socket
import sys
from typing import Final

from hailbus_broker.cluster.options import BROKER_OPTIONS
from hailbus_broker.protocol import codec
from hailbus_broker.protocol.api import ApiKey, request_class, response_class
from hailbus_broker.protocol.definitions.request_header import RequestHeader
from hailbus_broker.protocol.errors import ProtocolError
from hailbus_broker.protocol.framing import LENGTH
from hailbus_broker.runtime.errors import StartError

CLIENT_ID: Final = "hailbus-broker-describe"


def describe_options() -> None:
    """Print every setting with its default."""
    for name, option in sorted(BROKER_OPTIONS.items()):
        default = "" if option.default is None else option.default
        dynamic = ", may change while running" if option.is_dynamic else ""
        sys.stdout.write(f"{name}={default}\n    {option.doc} ({option.type.name.lower()}{dynamic})\n")


def describe(bootstrap: str, *, timeout_s: float) -> int:
    """Print what a broker says of itself; 1 when it does not answer.

    Raises:
        StartError: The address is none.
    """
    host, colon, port = bootstrap.rpartition(":")
    if not colon or not port.isdigit():
        raise StartError(f"--bootstrap {bootstrap} is not HOST:PORT, for example 127.0.0.1:9092")
    try:
        with socket.create_connection((host, int(port)), timeout=timeout_s) as connection:
            request = request_class(ApiKey.DESCRIBE_CLUSTER)()
            version = 1
            frame = codec.encode(
                RequestHeader(
                    request_api_key=ApiKey.DESCRIBE_CLUSTER,
                    request_api_version=version,
                    correlation_id=1,
                    client_id=CLIENT_ID,
                ),
                2,
            )
            codec.encode(request, version, frame)
            connection.sendall(LENGTH.pack(len(frame)) + frame)
            (size,) = LENGTH.unpack(_read(connection, LENGTH.size))
            answer = _read(connection, size)
    except (OSError, EOFError) as error:
        sys.stderr.write(f"hailbus-broker: no broker answers at {bootstrap}: {error}\n")
        return 1
    try:
        response = codec.decode(response_class(ApiKey.DESCRIBE_CLUSTER), answer, version, position=5)
    except ProtocolError as error:
        sys.stderr.write(f"hailbus-broker: what answers at {bootstrap} is no Kafka broker: {error}\n")
        return 1
    sys.stdout.write(f"cluster_id={response.cluster_id}\ncontroller_id={response.controller_id}\n")  # type: ignore[attr-defined]
    for broker in response.brokers:  # type: ignore[attr-defined]  # a DescribeClusterResponse
        sys.stdout.write(f"broker={broker.broker_id} {broker.host}:{broker.port}\n")
    return 0


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError("the connection was closed")
        data += part
    return data
