"""What producers and consumers over librdkafka share: configuration, threads, and its errors as ours."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from hailbus._transport.aiokafka_client import connection as arguments
from hailbus._transport.cluster import RETRY_BACKOFF_S, ClusterSettings
from hailbus._transport.reachability import Reachability
from hailbus._transport.refusals import refusal, unreachable
from hailbus.errors import BrokerUnreachableError, DeliveryError

__all__ = ["Connection", "connect", "in_thread", "partition_counts", "translated"]

log = logging.getLogger("hailbus.transport")
library_log = logging.getLogger("hailbus.transport.librdkafka")
T = TypeVar("T")
Config = dict[str, Any]  # Any: text, numbers, booleans and callbacks
METADATA_TIMEOUT_S = 5.0
STATISTICS_INTERVAL_MS = 1_000


class Connection:
    """The configuration of one client, and what its callbacks have told about the brokers."""

    def __init__(self, settings: ClusterSettings, client_id: str, loop: asyncio.AbstractEventLoop) -> None:
        self.reachability = Reachability()
        self.refusal: str | None = None
        """Why the brokers do not let this client in; None while nothing of the kind was said."""
        self._settings = settings
        self._client_id = client_id
        self._loop = loop

    def config(self) -> Config:
        """The settings that producers and consumers have in common, in librdkafka's names."""
        settings = self._settings
        config: Config = {
            "bootstrap.servers": settings.bootstrap_servers,
            "client.id": settings.client_id_of(self._client_id),
            "socket.timeout.ms": settings.request_timeout_ms,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1_000,
            "retry.backoff.ms": int(RETRY_BACKOFF_S * 1_000),
            "security.protocol": settings.security_protocol,
            "statistics.interval.ms": STATISTICS_INTERVAL_MS,
            "log.connection.close": False,
            "log_level": 2,  # a broker that is away is logged once, below, and not at each attempt
            "error_cb": self._on_error,
            "stats_cb": self._on_statistics,
            "logger": library_log,
        }
        if settings.security_protocol.endswith("SSL"):
            config["ssl.endpoint.identification.algorithm"] = "https" if settings.ssl_check_hostname else "none"
            files = {
                "ssl.ca.location": settings.ssl_ca_file,
                "ssl.certificate.location": settings.ssl_cert_file,
                "ssl.key.location": settings.ssl_key_file,
                "ssl.key.password": settings.ssl_key_password,
            }
            config |= {name: value for name, value in files.items() if value is not None}
        if settings.security_protocol.startswith("SASL"):
            config["sasl.mechanisms"] = settings.sasl_mechanism
            config["sasl.username"] = settings.sasl_username
            config["sasl.password"] = settings.sasl_password
        return config

    # Called from whatever thread polls the client.

    def _on_error(self, error: KafkaError) -> None:
        code = error.code()
        if code in {KafkaError._AUTHENTICATION, KafkaError._SSL}:
            if self.refusal is None:
                log.error("broker_refused_client: %s: %s", self._client_id, error.str())
            self.refusal = error.str()
        elif code == KafkaError._ALL_BROKERS_DOWN:
            if self.reachability.since_s is None:
                log.warning("broker_unreachable: %s: %s", self._client_id, error.str())
            self.reachability.observe(is_connected=False, now_s=self._loop.time())
        else:
            log.debug("client_error: %s: %s", self._client_id, error)

    def _on_statistics(self, statistics: str) -> None:
        if '"state":"UP"' in statistics:  # of some broker; a group's state is written in lower case
            if self.reachability.since_s is not None:
                log.info("broker_reachable: %s", self._client_id)
            self.reachability.observe(is_connected=True, now_s=self._loop.time())
            self.refusal = None


async def connect(
    settings: ClusterSettings, connection: Connection, client: Producer | Consumer, stopped: threading.Event
) -> dict[str, int]:
    """Wait until a broker answers; the partition count of each topic.

    Raises:
        BrokerUnreachableError: None answered within the connect timeout.
        ConnectionRejectedError: One answered, but does not agree with this client on TLS or SASL.
    """
    try:
        return await in_thread(lambda: _connect(settings, connection, client, stopped))
    except BrokerUnreachableError as error:
        # librdkafka has its own words for its own settings, and none for some refusals.
        found = await refusal(settings, arguments(settings, "hailbus-check"))
        if found is None:
            raise
        raise unreachable(settings, error.waited_s, found) from error


def _connect(
    settings: ClusterSettings, connection: Connection, client: Producer | Consumer, stopped: threading.Event
) -> dict[str, int]:
    began_s = time.monotonic()
    while True:
        left_s = settings.connect_timeout_s - (time.monotonic() - began_s)
        try:
            return partition_counts(client, timeout_s=min(max(left_s, 0.5), 1.0))
        except KafkaException as error:
            if isinstance(client, Producer):
                client.poll(0)  # calls the callbacks
            else:
                client.consume(1, 0)
            waited_s = time.monotonic() - began_s
            if connection.refusal is not None or waited_s >= settings.connect_timeout_s or stopped.is_set():
                raise BrokerUnreachableError(
                    bootstrap=settings.bootstrap_servers, waited_s=waited_s, reason=connection.refusal or ""
                ) from error
            time.sleep(RETRY_BACKOFF_S)


def partition_counts(client: Producer | Consumer, *, timeout_s: float = METADATA_TIMEOUT_S) -> dict[str, int]:
    """The partition count of each topic. Blocks. A request by name would create the topics that are missing."""
    found = client.list_topics(timeout=timeout_s)
    return {name: len(topic.partitions) for name, topic in found.topics.items() if topic.error is None}


async def in_thread(call: Callable[[], T]) -> T:
    """Make a call that blocks, in a thread that keeps no process alive."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():  # its caller has given up
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # the result, when there is no error

    def run() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 passed to the caller
            failure = error
        try:
            loop.call_soon_threadsafe(settle, result, failure)
        except RuntimeError:  # the loop has been closed meanwhile
            log.debug("call_outlived_its_loop: %r", call)

    threading.Thread(target=run, name="hailbus-librdkafka-call", daemon=True).start()
    return await future


def kafka_error(error: KafkaException) -> KafkaError:
    """The error inside an exception of the library."""
    found: KafkaError = error.args[0]
    return found


def translated(error: KafkaError, topic: str, partition: int | None) -> DeliveryError:
    """The client library's error as ours."""
    failure = DeliveryError(
        f"a record for topic {topic!r} was not accepted: {error.str()}",
        topic=topic,
        partition=partition,
        retriable=error.retriable() or error.txn_requires_abort(),
    )
    failure.__cause__ = KafkaException(error)
    return failure
