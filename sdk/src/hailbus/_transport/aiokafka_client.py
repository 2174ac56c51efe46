"""What producers, consumers and admins over aiokafka share: connecting, and its errors as ours."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from aiokafka import errors as kafka_errors

from hailbus._transport.cluster import RETRY_BACKOFF_S, ClusterSettings
from hailbus._transport.refusals import refusal, unreachable
from hailbus._transport.repeated_lines import aiokafka_lines
from hailbus.errors import ConfigurationError, DeliveryError

__all__ = ["connected", "connection", "tls_context", "translated"]

T = TypeVar("T")


def connection(settings: ClusterSettings, client_id: str) -> dict[str, Any]:  # Any: arguments of an untyped library
    """Connection settings as aiokafka's arguments."""
    aiokafka_lines.install("aiokafka")
    return {
        "bootstrap_servers": settings.bootstrap_servers,
        "client_id": settings.client_id_of(client_id),
        "request_timeout_ms": settings.request_timeout_ms,
        # Metadata is refreshed on errors anyway; this finds new partitions.
        "metadata_max_age_ms": 60_000,
        "security_protocol": settings.security_protocol,
        "ssl_context": tls_context(settings),
        "sasl_mechanism": settings.sasl_mechanism,
        "sasl_plain_username": settings.sasl_username,
        "sasl_plain_password": settings.sasl_password,
    }


def tls_context(settings: ClusterSettings) -> ssl.SSLContext | None:
    """The given context, else one from the given files; None without encryption."""
    if settings.ssl_context is not None or not settings.security_protocol.endswith("SSL"):
        return settings.ssl_context
    try:
        context = ssl.create_default_context(cafile=settings.ssl_ca_file)
    except OSError as error:  # an SSLError is one
        message = f"ssl_ca_file={settings.ssl_ca_file!r} cannot be used: {_of_file(error)}; give a readable PEM file"
        raise ConfigurationError(message) from error
    context.check_hostname = settings.ssl_check_hostname
    if settings.ssl_cert_file is not None:
        try:  # without a password OpenSSL would ask for one at the terminal
            context.load_cert_chain(settings.ssl_cert_file, settings.ssl_key_file, settings.ssl_key_password or "")
        except OSError as error:
            message = (
                f"ssl_cert_file={settings.ssl_cert_file!r} and ssl_key_file={settings.ssl_key_file!r} cannot be used: "
                f"{_of_file(error)}; give readable PEM files that belong together, and the key's ssl_key_password="
            )
            raise ConfigurationError(message) from error
    return context


def _of_file(error: OSError) -> str:
    return (error.reason if isinstance(error, ssl.SSLError) else error.strerror) or str(error)


async def connected(
    settings: ClusterSettings,
    make: Callable[[], T],
    start: Callable[[T], Awaitable[None]],
    stop: Callable[[T], Awaitable[None]],
) -> T:
    """A started client; tries again until the connect timeout, as the broker may still be coming up.

    Raises:
        BrokerUnreachableError: No broker answered in time.
        ConnectionRejectedError: One answered, but does not agree with this client on TLS or SASL.
    """
    arguments = connection(settings, "hailbus-check")
    began = time.monotonic()
    delay_s = RETRY_BACKOFF_S
    while True:
        client = make()
        left_s = settings.connect_timeout_s - (time.monotonic() - began)
        try:
            async with asyncio.timeout(max(left_s, 1.0)):
                await start(client)
        except (TimeoutError, OSError, kafka_errors.KafkaError) as error:
            with contextlib.suppress(Exception):  # a client that never started has nothing to lose
                async with asyncio.timeout(5.0):
                    await stop(client)
            waited_s = time.monotonic() - began
            retriable = (
                isinstance(error, (TimeoutError, OSError))
                or getattr(error, "retriable", False)
                or isinstance(error, (kafka_errors.KafkaConnectionError, kafka_errors.UnrecognizedBrokerVersion))
            )
            # The library says no more than that it could not connect.
            found = await refusal(settings, arguments) if retriable else None
            if not retriable or (found is not None and found.is_certain) or waited_s >= settings.connect_timeout_s:
                raise unreachable(settings, waited_s, found, reason="" if retriable else str(error)) from error
            await asyncio.sleep(min(delay_s, max(settings.connect_timeout_s - waited_s, 0.0)))
            delay_s = min(delay_s * 2, 1.0)
        except BaseException:
            with contextlib.suppress(Exception):
                await stop(client)
            raise
        else:
            aiokafka_lines.reached()
            return client


def translated(error: Exception, topic: str, partition: int | None) -> DeliveryError:
    """A client library's error as ours."""
    return DeliveryError(
        f"a record for topic {topic!r} was not accepted: {error or type(error).__name__}",
        topic=topic,
        partition=partition,
        retriable=bool(getattr(error, "retriable", False)),
    )
