"""The ports over aiokafka. Its errors are translated here and nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ssl import SSLContext
from typing import Any, Literal, ParamSpec, TypeVar, cast

import aiokafka
from aiokafka import errors as kafka_errors
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.protocol.commit import OffsetFetchRequest

from hailbus._transport import (
    Outgoing,
    RebalanceListener,
    Received,
    Start,
    TopicDescription,
    TopicPartition,
    TransportBrokenError,
    admin_requests,
)
from hailbus.errors import (
    BrokerUnreachableError,
    ConfigurationError,
    DeliveryError,
    ProducerFencedError,
    RecordTooLargeError,
    TopicMissingError,
)
from hailbus.event import Topic
from hailbus.partitioner import Murmur2, Partitioner

__all__ = ["KafkaBus"]

log = logging.getLogger("hailbus.transport")
P = ParamSpec("P")
T = TypeVar("T")

RETRY_BACKOFF_S = 0.1
ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaBus:
    """A Kafka cluster.

    Args:
        bootstrap_servers: `host:port`, several joined by commas.
        client_id: Prefix of the client ids; else the service's name.
        connect_timeout_s: How long a start waits for a broker that is still coming up.
        acks: `all`, or 1 or 0 for data that may be lost; idempotence needs `all`.
        idempotent: Broker-side deduplication of the client's own retries.
        compression: Of record batches.
        linger_ms: How long a lone record waits for company. 0 is right for most: batches fill while one is in flight.
        max_batch_bytes: Upper bound of one record batch.
        max_record_bytes: Larger records are refused before they are sent.
        session_timeout_ms: A consumer that is silent for so long loses its partitions.
        rebalance_timeout_ms: How long the others wait for a member that is still settling its records.
        assignor: `range`, `roundrobin` or `sticky`; the client library knows eager assignment only.
        group_instance_id: Static membership: a restart within the session timeout causes no rebalance.
        isolation: Whether consumers see records of open and aborted transactions.
        security_protocol, ssl_context, sasl_mechanism, sasl_username, sasl_password: As the cluster asks for.
        partitioner: Where keyed records go; Java's murmur2 unless given.
    """

    bootstrap_servers: str
    client_id: str | None = None
    connect_timeout_s: float = 60.0
    acks: Literal["all", 1, 0] = "all"
    idempotent: bool = True
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none"
    linger_ms: int = 0
    max_batch_bytes: int = 262_144
    max_record_bytes: int = 1_048_576
    session_timeout_ms: int = 10_000
    heartbeat_interval_ms: int = 2_000
    rebalance_timeout_ms: int = 30_000
    request_timeout_ms: int = 30_000
    fetch_max_wait_ms: int = 250
    max_partition_fetch_bytes: int = 1_048_576
    assignor: Literal["range", "roundrobin", "sticky"] = "roundrobin"
    group_instance_id: str | None = None
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    ssl_context: SSLContext | None = None
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    partitioner: Partitioner = field(default_factory=Murmur2)

    def __post_init__(self) -> None:
        for server in self.bootstrap_servers.split(","):
            host, _, port = server.strip().rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                message = f"bootstrap server {server.strip()!r} is not like 'host:9092'"
                raise ConfigurationError(message)
        if self.idempotent and self.acks != "all":
            message = f"acks={self.acks} and idempotent=True exclude each other; give idempotent=False or acks='all'"
            raise ConfigurationError(message)

    @property
    def address(self) -> str:
        """The bootstrap servers."""
        return self.bootstrap_servers

    @property
    def rebalance_timeout(self) -> timedelta:
        """See `Bus`."""
        return timedelta(milliseconds=self.rebalance_timeout_ms)

    def common(self, client_id: str) -> dict[str, Any]:
        """Connection settings in aiokafka's words."""
        return {
            "bootstrap_servers": self.bootstrap_servers,
            "client_id": f"{self.client_id}-{client_id}" if self.client_id else client_id,
            "request_timeout_ms": self.request_timeout_ms,
            # Metadata is refreshed on errors anyway; this finds new partitions.
            "metadata_max_age_ms": 60_000,
            "security_protocol": self.security_protocol,
            "ssl_context": self.ssl_context,
            "sasl_mechanism": self.sasl_mechanism,
            "sasl_plain_username": self.sasl_username,
            "sasl_plain_password": self.sasl_password,
        }

    def producer(self, *, client_id: str, transactional_id: str | None = None) -> KafkaProducer:
        """See `Bus`."""
        return KafkaProducer(self, client_id=client_id, transactional_id=transactional_id)

    def consumer(
        self,
        *,
        client_id: str,
        group: str | None,
        topics: Sequence[str],
        start: Start,
        listener: RebalanceListener | None = None,
        read_committed: bool = True,
    ) -> KafkaConsumer:
        """See `Bus`."""
        return KafkaConsumer(
            self,
            client_id=client_id,
            group=group,
            topics=topics,
            start=start,
            listener=listener,
            read_committed=read_committed and self.isolation == "read_committed",
        )

    def admin(self, *, client_id: str) -> KafkaAdmin:
        """See `Bus`."""
        return KafkaAdmin(self, client_id=client_id)


async def connected(
    bus: KafkaBus,
    make: Callable[[], Any],
    start: Callable[[Any], Awaitable[None]],
    stop: Callable[[Any], Awaitable[None]],
) -> Any:
    """A started client; tries again until the bus's connect timeout, as the broker may still be coming up."""
    began = time.monotonic()
    delay_s = RETRY_BACKOFF_S
    while True:
        client = make()
        left_s = bus.connect_timeout_s - (time.monotonic() - began)
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
            if not retriable or waited_s >= bus.connect_timeout_s:
                raise BrokerUnreachableError(
                    bootstrap=bus.bootstrap_servers, waited_s=waited_s, reason="" if retriable else str(error)
                ) from error
            await asyncio.sleep(min(delay_s, max(bus.connect_timeout_s - waited_s, 0.0)))
            delay_s = min(delay_s * 2, 1.0)
        except BaseException:
            with contextlib.suppress(Exception):
                await stop(client)
            raise
        else:
            return client


# ------------------------------------------------------------------------------------------------------ producer

# After these the client library's sequence numbers and the broker's no longer meet (a broker that lost producer state,
# an expired producer id): only a new producer id goes on. The batch is sent again with the same event ids.
LOST_PRODUCER = (
    kafka_errors.OutOfOrderSequenceNumber,
    kafka_errors.UnknownProducerId,
    kafka_errors.InvalidProducerIdMapping,
    kafka_errors.InvalidProducerEpoch,
    kafka_errors.ProducerFenced,
    kafka_errors.ProducerClosed,
)


class KafkaProducer:
    """A producer that replaces its client when that one can no longer go on."""

    def __init__(self, bus: KafkaBus, *, client_id: str, transactional_id: str | None) -> None:
        self._bus = bus
        self._client_id = client_id
        self._transactional_id = transactional_id
        self._client: Any = None  # aiokafka is untyped
        self._replacing = asyncio.Lock()
        self._stopped = False
        self._counts: dict[str, int] = {}

    def _make(self) -> Any:
        bus = self._bus
        return aiokafka.AIOKafkaProducer(
            **bus.common(self._client_id),
            acks=bus.acks,
            enable_idempotence=bus.idempotent or self._transactional_id is not None,
            transactional_id=self._transactional_id,
            compression_type=None if bus.compression == "none" else bus.compression,
            linger_ms=bus.linger_ms,
            max_batch_size=bus.max_batch_bytes,
            max_request_size=bus.max_record_bytes,
        )

    async def start(self) -> None:
        self._client = await connected(self._bus, self._make, lambda c: c.start(), lambda c: c.stop())

    async def stop(self) -> None:
        self._stopped = True
        if self._client is not None:
            await self._close(self._client)

    async def _close(self, client: Any) -> None:
        try:
            async with asyncio.timeout(5.0):
                await client.stop()
        except TimeoutError:
            # The client waits for ever for records that a dead broker does not take; its parts can be stopped alone.
            log.warning("producer_stop_timed_out: unsent records of %s were dropped", self._client_id)
            await client._sender.close()  # noqa: SLF001 see above
            await client.client.close()
        except (kafka_errors.KafkaError, asyncio.InvalidStateError) as error:
            log.warning("producer_stop_failed: %r", error)

    async def _replace(self, broken: Any) -> None:
        async with self._replacing:
            if self._client is not broken or self._stopped:
                return
            log.warning("producer_replaced: %s gets a new producer id", self._client_id)
            fresh = self._make()
            try:
                await fresh.start()
            except BaseException:
                await self._close(fresh)
                raise
            self._client = fresh
        await self._close(broken)

    def known_partition_count(self, topic: str) -> int | None:
        return self._counts.get(topic)

    async def partition_count(self, topic: str) -> int:
        try:
            partitions = await self._client.partitions_for(topic)
        except kafka_errors.UnknownTopicOrPartitionError as error:
            raise TopicMissingError(topic=topic) from error
        except kafka_errors.KafkaError as error:
            raise translated(error, topic, None) from error
        self._counts[topic] = len(partitions)
        return len(partitions)

    async def send(self, topic: str, partition: int, records: Sequence[Outgoing]) -> Sequence[int]:
        offsets: list[int] = []
        done = 0
        limit = self._bus.max_record_bytes
        while done < len(records):
            client = self._client
            builder = client.create_batch()
            now_ms = time.time_ns() // 1_000_000
            end = done
            while end < len(records):
                key, value, headers = records[end]
                size = len(value) if value is not None else 0
                if size > limit:
                    if end > done:
                        break  # first what came before it
                    raise RecordTooLargeError(topic=topic, size_bytes=size, limit_bytes=limit)
                if builder.append(timestamp=now_ms, key=key, value=value, headers=headers) is None:
                    break
                end += 1
            builder.close()
            try:
                future = await client.send_batch(builder, topic, partition=partition)
                metadata = await future
            except asyncio.CancelledError:
                raise
            except Exception as error:  # the client library raises bare KafkaError and AssertionError too
                if self._stopped:
                    raise translated(error, topic, partition) from error
                await self._recover(client, error, topic, partition, count=end - done)
                continue
            base = metadata.offset if metadata is not None else -1
            offsets.extend(range(base, base + end - done) if base >= 0 else [-1] * (end - done))
            done = end
        return offsets

    async def _recover(self, client: Any, error: Exception, topic: str, partition: int, *, count: int) -> None:
        """Make the next attempt possible, or raise what the caller must know."""
        if isinstance(error, kafka_errors.MessageSizeTooLargeError):
            raise RecordTooLargeError(topic=topic, size_bytes=0) from error
        if self._transactional_id is not None:
            if isinstance(error, (kafka_errors.ProducerFenced, kafka_errors.InvalidProducerEpoch)):
                raise ProducerFencedError(transactional_id=self._transactional_id) from error
            raise translated(error, topic, partition) from error
        sender = client._sender.sender_task  # noqa: SLF001 the client has no public way to tell that it has died
        if isinstance(error, LOST_PRODUCER) or (sender is not None and sender.done()):
            log.warning("producer_lost: %r on %s-%d", error, topic, partition)
            try:
                await self._replace(client)
            except (kafka_errors.KafkaError, OSError) as failure:
                log.warning("producer_replacement_failed: %r", failure)
                await asyncio.sleep(1.0)
            return
        if isinstance(error, (kafka_errors.KafkaTimeoutError, kafka_errors.UnknownTopicOrPartitionError)) or getattr(
            error, "retriable", False
        ):
            log.warning("produce_retried: %r on %s-%d, %d records", error, topic, partition, count)
            await asyncio.sleep(RETRY_BACKOFF_S)
            return
        raise translated(error, topic, partition) from error

    async def begin(self) -> None:
        await self._in_transaction(self._client.begin_transaction())

    async def send_offsets(self, offsets: Mapping[TopicPartition, int], group: str) -> None:
        await self._in_transaction(
            self._client.send_offsets_to_transaction(
                {aiokafka.TopicPartition(*tp): offset for tp, offset in offsets.items()}, group
            )
        )

    async def commit(self) -> None:
        await self._in_transaction(self._client.commit_transaction())

    async def abort(self) -> None:
        await self._in_transaction(self._client.abort_transaction())

    async def _in_transaction(self, step: Awaitable[None]) -> None:
        try:
            await step
        except (kafka_errors.ProducerFenced, kafka_errors.InvalidProducerEpoch) as error:
            raise ProducerFencedError(transactional_id=self._transactional_id or "") from error
        except (kafka_errors.KafkaError, AssertionError) as error:  # the latter: a commit on its way cannot be aborted
            raise translated(error, "", None) from error


def translated(error: Exception, topic: str, partition: int | None) -> DeliveryError:
    """A client library's error as ours."""
    return DeliveryError(
        f"a record for topic {topic!r} was not accepted: {error or type(error).__name__}",
        topic=topic,
        partition=partition,
        retriable=bool(getattr(error, "retriable", False)),
    )


# ------------------------------------------------------------------------------------------------------ consumer


STOP_TIMEOUT_S = 10.0


async def stop_consumer(client: Any) -> None:
    """Stop a consumer of the client library, and close its connections even where that fails.

    The library's own `stop` waits for answers of the coordinator as long as for any other request. And it is cut short,
    by the `CancelledError` of a task of its own, while a fetch waits to try again, as when a broker is away: what is
    left then goes on to connect for ever, and is found by the garbage collector when the loop has been closed.
    """
    stopping = asyncio.ensure_future(client.stop())
    connections = client._client  # noqa: SLF001 the library has no public way to close only these
    try:
        await asyncio.wait({stopping}, timeout=STOP_TIMEOUT_S)
        if not stopping.done():
            log.warning("consumer_stop_timed_out: the broker does not answer, its connections are closed")
            await connections.close()  # whoever waits for an answer there need not any longer
            await asyncio.wait({stopping}, timeout=1.0)
    finally:
        stopping.cancel()
        await asyncio.wait({stopping})
        error = None if stopping.cancelled() else stopping.exception()
        if error is not None:
            log.warning("consumer_stop_failed: %r", error)
        if error is not None or stopping.cancelled():
            await connections.close()


class _Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka is untyped
    def __init__(self, listener: RebalanceListener) -> None:
        self._listener = listener

    async def on_partitions_revoked(self, revoked: set[Any]) -> None:
        await self._listener.revoked(frozenset(TopicPartition(*tp) for tp in revoked))

    async def on_partitions_assigned(self, assigned: set[Any]) -> None:
        await self._listener.assigned(frozenset(TopicPartition(*tp) for tp in assigned))


class KafkaConsumer:
    """A group member, or without a group a reader of all partitions of its topics."""

    def __init__(
        self,
        bus: KafkaBus,
        *,
        client_id: str,
        group: str | None,
        topics: Sequence[str],
        start: Start,
        listener: RebalanceListener | None,
        read_committed: bool,
    ) -> None:
        self._bus = bus
        self._client_id = client_id
        self._group = group
        self._topics = tuple(topics)
        self._start = start
        self._listener = listener
        self._read_committed = read_committed
        self._client: Any = None  # aiokafka is untyped
        self._paused: set[TopicPartition] = set()
        self._resumed = asyncio.Event()

    def _make(self) -> Any:
        bus = self._bus
        return aiokafka.AIOKafkaConsumer(
            **bus.common(self._client_id),
            group_id=self._group,
            group_instance_id=bus.group_instance_id if self._group else None,
            enable_auto_commit=False,
            auto_offset_reset=self._start,
            session_timeout_ms=bus.session_timeout_ms,
            heartbeat_interval_ms=bus.heartbeat_interval_ms,
            rebalance_timeout_ms=bus.rebalance_timeout_ms,
            # A stuck handler shows in the health route. Leaving the group would only move the stuck record elsewhere.
            max_poll_interval_ms=2**31 - 1,
            fetch_max_wait_ms=bus.fetch_max_wait_ms,
            max_partition_fetch_bytes=bus.max_partition_fetch_bytes,
            partition_assignment_strategy=(ASSIGNORS[bus.assignor],),
            isolation_level="read_committed" if self._read_committed else "read_uncommitted",
        )

    async def start(self) -> None:
        async def begin(client: Any) -> None:
            await client.start()
            if self._group is not None:
                self._client = client  # the listener may use this consumer before `start` returns
                client.subscribe(self._topics, listener=_Listener(self._listener) if self._listener else None)
                return
            partitions = []
            for topic in self._topics:
                found = await client._client._wait_on_metadata(topic)  # noqa: SLF001 the public call never waits
                partitions += [aiokafka.TopicPartition(topic, partition) for partition in sorted(found)]
            client.assign(partitions)

        self._client = await connected(self._bus, self._make, begin, stop_consumer)

    async def stop(self) -> None:
        if self._client is not None:
            await stop_consumer(self._client)

    async def poll(self, *, timeout_s: float, max_records: int) -> Mapping[TopicPartition, Sequence[Received]]:
        client = self._client
        self._learn_topics()
        partitions: list[Any] = []
        if self._paused:
            partitions = [tp for tp in client.assignment() if tp not in self._paused]
            if not partitions:
                # Everything is paused. An empty list would mean "all" to the client.
                self._resumed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(timeout_s):
                        await self._resumed.wait()
                return {}
        try:
            records: Mapping[TopicPartition, Sequence[Received]] = await client.getmany(
                *partitions, timeout_ms=int(timeout_s * 1000), max_records=max_records
            )
        except kafka_errors.ConsumerStoppedError as error:
            raise TransportBrokenError(str(error)) from error
        except kafka_errors.KafkaError as error:
            coordinator = client._coordinator  # noqa: SLF001 no public way to tell that the membership task has died
            task = getattr(coordinator, "_coordination_task", None)
            if task is not None and task.done():
                raise TransportBrokenError(repr(error)) from error
            log.warning("poll_failed: %r, trying again", error)
            await asyncio.sleep(RETRY_BACKOFF_S)
            return {}
        return records

    def _learn_topics(self) -> None:
        """Ask for the topics' metadata when the client has none.

        The client sends a request for metadata that was lost with a broker again after `metadata_max_age_ms` only. If
        this member leads its group meanwhile, nobody is given partitions. What the answer brings makes it rejoin.
        """
        if self._group is not None and not all(self._client.partitions_for_topic(topic) for topic in self._topics):
            # At most one request at a time; nobody waits for it here.
            self._client._client.force_metadata_update()  # noqa: SLF001 it has no public way

    def pause(self, partition: TopicPartition) -> None:
        # Not the client's own pause: that one throws away what it has fetched ahead.
        self._paused.add(partition)

    def resume(self, partition: TopicPartition) -> None:
        self._paused.discard(partition)
        self._resumed.set()

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(TopicPartition(*tp) for tp in self._client.assignment()) if self._client else frozenset()

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> bool:
        try:
            await self._client.commit({aiokafka.TopicPartition(*tp): offset for tp, offset in offsets.items()})
        except (kafka_errors.CommitFailedError, kafka_errors.IllegalStateError) as error:
            log.info("commit_overtaken_by_rebalance: %s", error)
            return False
        except kafka_errors.KafkaError as error:
            log.warning("commit_failed: %r, the next commit covers it", error)
            return False
        return True

    async def committed(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        found = {tp: await self._client.committed(aiokafka.TopicPartition(*tp)) for tp in partitions}
        return {tp: offset for tp, offset in found.items() if offset is not None}

    async def positions(self) -> Mapping[TopicPartition, int]:
        return {TopicPartition(*tp): await self._client.position(tp) for tp in self._client.assignment()}

    async def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        for tp, offset in offsets.items():
            self._client.seek(aiokafka.TopicPartition(*tp), offset)


# ------------------------------------------------------------------------------------------------------ admin

TOPIC_ALREADY_EXISTS = 36
GROUP_ID_NOT_FOUND = 69
COORDINATOR_MOVES = frozenset({14, 15, 16})
"""Loading, not available, not this one: each passes."""
REBALANCES_TAG = 10_000
ConfigKind = Literal["topic", "broker", "group"]
CONFIG_KINDS: Mapping[ConfigKind, int] = {"topic": 2, "broker": 4, "group": 32}
# Where a value comes from. 1: set on the topic; 2 to 4: set on the broker; 5: Kafka's default; 8: set on the group.
OWN_SOURCES: Mapping[ConfigKind, frozenset[int]] = {
    "topic": frozenset({1}),
    "broker": frozenset({2, 3, 4}),
    "group": frozenset({8}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One configuration value; None for a secret."""

    name: str
    value: str | None
    is_default: bool
    is_read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """One member of a group."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalance:
    """Why a group was rebalanced, where the broker tells: hailbus-broker does, Apache Kafka does not."""

    at_ms: int
    generation: int
    members: int
    cause: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group as its coordinator sees it. `rebalances` are the last few, oldest first."""

    group: str
    kind: Literal["classic", "consumer"]
    state: str
    coordinator: int
    assignor: str
    members: tuple[GroupMember, ...]
    rebalances: tuple[Rebalance, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    """A group in a list."""

    group: str
    kind: str
    protocol_type: str
    state: str


def refused(code: int, what: str, message: str | None = None) -> None:
    """Raise `ConfigurationError` with the broker's reason, if it has refused something."""
    if code:
        reason = (
            message or getattr(kafka_errors.for_code(code), "description", "") or kafka_errors.for_code(code).__name__
        )
        text = f"{what}: {reason}"
        raise ConfigurationError(text)


def _broker(kind: ConfigKind, name: str) -> int | None:
    """Who must be asked: a broker's own settings are its own affair.

    Raises:
        ConfigurationError: A broker's name is not its id.
    """
    if kind != "broker" or not name:
        return None
    if not name.isdigit():
        message = f"{name!r} is no broker id: it is a number"
        raise ConfigurationError(message)
    return int(name)


def _assigned(assignment: bytes | None) -> tuple[TopicPartition, ...]:
    if not assignment:
        return ()
    decoded = ConsumerProtocolMemberAssignment.decode(assignment)
    return tuple(sorted(TopicPartition(topic, index) for topic, indexes in decoded.assignment for index in indexes))


def _rebalances(tags: Mapping[int, bytes]) -> tuple[Rebalance, ...]:
    """hailbus-broker's own field of a described group: JSON, the oldest first."""
    if REBALANCES_TAG not in tags:
        return ()
    return tuple(Rebalance(**entry) for entry in json.loads(tags[REBALANCES_TAG]))


def _answered(call: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Turn what the client library raises in an admin's method into errors of ours."""

    @functools.wraps(call)
    async def answered(*args: P.args, **kwargs: P.kwargs) -> T:
        began = time.monotonic()
        try:
            return await call(*args, **kwargs)
        except (kafka_errors.KafkaError, OSError) as error:
            address = cast("KafkaAdmin", args[0]).address
            if isinstance(error, OSError) or getattr(error, "retriable", False) or is_connection_error(error):
                waited_s = time.monotonic() - began
                raise BrokerUnreachableError(bootstrap=address, waited_s=waited_s, reason=_reason(error)) from error
            message = f"the cluster at {address} refused: {_reason(error)}"
            raise ConfigurationError(message) from error

    return answered


def is_connection_error(error: Exception) -> bool:
    """Whether a client library's error means that no broker answered."""
    return isinstance(error, (kafka_errors.KafkaConnectionError, kafka_errors.KafkaTimeoutError))


def _reason(error: Exception) -> str:
    return str(error) or getattr(error, "description", "") or type(error).__name__


class KafkaAdmin:
    """Topics and offsets over the admin and the consumer client."""

    def __init__(self, bus: KafkaBus, *, client_id: str) -> None:
        self._bus = bus
        self._client_id = client_id
        self._client: Any = None  # aiokafka is untyped
        self._reader: Any = None

    async def start(self) -> None:
        self._client = await connected(
            self._bus,
            lambda: AIOKafkaAdminClient(**self._bus.common(self._client_id)),
            lambda c: c.start(),
            lambda c: c.close(),
        )

    async def stop(self) -> None:
        if self._reader is not None:
            await stop_consumer(self._reader)
        if self._client is not None:
            await self._client.close()

    @_answered
    async def create(
        self,
        topics: Sequence[Topic],
        *,
        replication_factor: int | None = None,
        assignment: Sequence[Sequence[int]] | None = None,
    ) -> frozenset[str]:
        existing = await self.describe([topic.name for topic in topics])
        missing = [topic for topic in topics if topic.name not in existing]
        if not missing:
            return frozenset()
        factor = replication_factor or min(3, len((await self._client.describe_cluster())["brokers"]))
        response = await self._client.create_topics(
            [
                NewTopic(topic.name, topic.partitions, factor, topic_configs=topic.kafka_config())
                if assignment is None
                else NewTopic(
                    topic.name,
                    -1,
                    -1,
                    replica_assignments={number: list(brokers) for number, brokers in enumerate(assignment)},
                    topic_configs=topic.kafka_config(),
                )
                for topic in missing
            ],
            timeout_ms=self._bus.request_timeout_ms,
        )
        created = set()
        for name, code, *message in response.topic_errors:
            if code == 0:
                created.add(name)
            elif code != TOPIC_ALREADY_EXISTS:  # another process was quicker
                reason = (message[0] if message else None) or kafka_errors.for_code(code).__name__
                text = f"topic {name!r} cannot be created on {self._bus.address}: {reason}"
                raise ConfigurationError(text)
        await self._until_led(missing)
        return frozenset(created)

    async def _until_led(self, topics: Sequence[Topic]) -> None:
        """Wait until every partition has a leader, as producers would otherwise meet an unknown topic."""
        try:
            async with asyncio.timeout(30.0):
                while True:
                    found = await self.describe([topic.name for topic in topics])
                    if all(
                        topic.name in found and all(leader >= 0 for leader in found[topic.name].leaders.values())
                        for topic in topics
                    ):
                        return
                    await asyncio.sleep(RETRY_BACKOFF_S)
        except TimeoutError as error:
            raise BrokerUnreachableError(
                bootstrap=self._bus.address, waited_s=30.0, reason="new topics got no leader"
            ) from error

    @_answered
    async def describe(self, topics: Sequence[str] | None = None) -> Mapping[str, TopicDescription]:
        if topics is not None and not topics:
            return {}
        metadata = await self._client._get_cluster_metadata()  # noqa: SLF001 by name it would create missing topics
        wanted = None if topics is None else set(topics)
        found = {}
        for topic in metadata.to_object()["topics"]:
            name = topic["topic"]
            if topic["error_code"] != 0 or (topic.get("is_internal") if wanted is None else name not in wanted):
                continue
            partitions = topic["partitions"]
            found[name] = TopicDescription(
                name=name,
                partition_count=len(partitions),
                replication_factor=len(partitions[0]["replicas"]) if partitions else 0,
                leaders={p["partition"]: p["leader"] for p in partitions},
                replicas={p["partition"]: tuple(p["replicas"]) for p in partitions},
                isr={p["partition"]: tuple(p["isr"]) for p in partitions},
            )
        return found

    async def _partitions(self, topics: Sequence[str]) -> list[Any]:
        found = await self.describe(topics)
        for topic in topics:
            if topic not in found:
                raise TopicMissingError(topic=topic)
        return [
            aiokafka.TopicPartition(name, partition)
            for name in sorted(found)
            for partition in sorted(found[name].leaders)
        ]

    async def _consumer(self) -> Any:
        if self._reader is None:
            self._reader = await connected(
                self._bus,
                lambda: aiokafka.AIOKafkaConsumer(**self._bus.common(self._client_id), group_id=None),
                lambda c: c.start(),
                stop_consumer,
            )
        return self._reader

    async def _offsets(self, topics: Sequence[str], ask: Callable[[Any, list[Any]], Awaitable[Any]]) -> dict[Any, Any]:
        partitions = await self._partitions(topics)
        if not partitions:
            return {}
        answer: dict[Any, Any] = await ask(await self._consumer(), partitions)
        return answer

    @_answered
    async def start_offsets(self, topics: Sequence[str]) -> Mapping[TopicPartition, int]:
        found = await self._offsets(topics, lambda reader, partitions: reader.beginning_offsets(partitions))
        return {TopicPartition(*tp): offset for tp, offset in found.items()}

    @_answered
    async def end_offsets(self, topics: Sequence[str]) -> Mapping[TopicPartition, int]:
        found = await self._offsets(topics, lambda reader, partitions: reader.end_offsets(partitions))
        return {TopicPartition(*tp): offset for tp, offset in found.items()}

    @_answered
    async def offsets_at(self, topics: Sequence[str], moment: datetime) -> Mapping[TopicPartition, int]:
        moment_ms = int(moment.timestamp() * 1000)
        ends = await self.end_offsets(topics)
        found = await self._offsets(
            topics, lambda reader, partitions: reader.offsets_for_times(dict.fromkeys(partitions, moment_ms))
        )
        return {
            TopicPartition(*tp): ends[TopicPartition(*tp)] if answer is None else answer.offset
            for tp, answer in found.items()
        }

    @_answered
    async def committed(self, group: str) -> Mapping[TopicPartition, int]:
        # The client library takes an answer that is only an error for a group without offsets.
        answer, _ = await self._ask_coordinator(
            group, OffsetFetchRequest(group, None), lambda answer: answer.error_code
        )
        codes = [answer.error_code, *(code for _, found in answer.topics for *_, code in found)]
        for code in filter(None, codes):
            raise kafka_errors.for_code(code)(f"the offsets of group {group!r} cannot be read")
        return {
            TopicPartition(topic, partition): offset
            for topic, found in answer.topics
            for partition, offset, *_ in found
            if offset >= 0
        }

    # ---------------------------------------------------------------------------------------- for the command line

    @_answered
    async def delete(self, topics: Sequence[str]) -> None:
        """Delete topics. Raises `ConfigurationError` with the broker's reason."""
        response = await self._client.delete_topics(list(topics))
        for name, code in response.topic_error_codes:
            refused(code, f"topic {name!r} cannot be deleted")

    @_answered
    async def add_partitions(self, topic: str, count: int) -> None:
        """Raise a topic's partition count; keys move. Raises `ConfigurationError`."""
        response = await self._client.create_partitions({topic: NewPartitions(count)})
        for _name, code, message in response.topic_errors:
            refused(code, f"topic {topic!r} cannot get {count} partitions", message)

    @_answered
    async def configs(self, kind: ConfigKind, name: str) -> list[ConfigEntry]:
        """Configuration of a topic, broker or group."""
        request = admin_requests.describe_configs(CONFIG_KINDS[kind], name)
        found = []
        for code, message, _type, _name, entries, _ in (await self.ask(request, _broker(kind, name))).results:
            refused(code, f"the configuration of {kind} {name!r} cannot be read", message)
            for key, value, is_read_only, source, is_sensitive, *_rest in entries:
                found.append(
                    ConfigEntry(
                        name=key,
                        value=None if is_sensitive else value,
                        is_default=source not in OWN_SOURCES[kind],
                        is_read_only=bool(is_read_only),
                    )
                )
        return sorted(found, key=lambda entry: entry.name)

    @_answered
    async def set_configs(self, kind: ConfigKind, name: str, add: Mapping[str, str], remove: Sequence[str]) -> None:
        """Change the configuration of a topic, broker or group; what is not named stays."""
        request = admin_requests.incremental_alter_configs(CONFIG_KINDS[kind], name, add, list(remove))
        for code, message, *_ in (await self.ask(request, _broker(kind, name))).resources:
            refused(code, f"the configuration of {kind} {name!r} cannot be changed", message)

    @_answered
    async def describe_group(self, group: str) -> GroupDescription:
        """State and members of a group of either protocol; state `Dead` when there is none."""
        answer, node = await self._ask_coordinator(
            group, admin_requests.describe_groups(group), lambda answer: answer.groups[0][0]
        )
        (found,) = answer.groups
        code, _, state, _, assignor, members, _, tags = found
        if state == "Dead" or code == GROUP_ID_NOT_FOUND:
            with contextlib.suppress(ConfigurationError):  # a broker from before the consumer protocol
                return await self._describe_consumer_group(group, node)
            state = "Dead"
        else:
            refused(code, f"group {group!r} cannot be described")
        return GroupDescription(
            group=group,
            kind="classic",
            state=state,
            coordinator=node,
            assignor=assignor or "",
            members=tuple(
                GroupMember(
                    member_id=member_id,
                    instance_id=instance_id,
                    client_id=client_id,
                    host=host,
                    partitions=_assigned(assignment),
                )
                for member_id, instance_id, client_id, host, _, assignment, _ in members
            ),
            rebalances=_rebalances(tags),
        )

    async def _describe_consumer_group(self, group: str, node: int) -> GroupDescription:
        (found,) = (await self.ask(admin_requests.consumer_group_describe(group), node)).groups
        code, message, _, state, _, _, assignor, members, _, tags = found
        refused(code, f"group {group!r} cannot be described", message)
        return GroupDescription(
            group=group,
            kind="consumer",
            state=state,
            coordinator=node,
            assignor=assignor,
            members=tuple(
                GroupMember(
                    member_id=member[0],
                    instance_id=member[1],
                    client_id=member[4],
                    host=member[5],
                    partitions=tuple(
                        sorted(
                            TopicPartition(topic, index) for _, topic, indexes, _ in member[8][0] for index in indexes
                        )
                    ),
                )
                for member in members
            ),
            rebalances=_rebalances(tags),
        )

    @_answered
    async def list_groups(self, *, states: Sequence[str] = (), kinds: Sequence[str] = ()) -> list[ListedGroup]:
        """All groups, or those in some states or of some kinds."""
        request = admin_requests.list_groups(list(states), list(kinds))
        found = []
        for node in await self.nodes():
            answer = await self.ask(request, node)
            refused(answer.error_code, "groups cannot be listed")
            found += [
                ListedGroup(group=name, kind=kind, protocol_type=protocol_type, state=state)
                for name, protocol_type, state, kind, _ in answer.groups
            ]
        return sorted(found, key=lambda entry: entry.group)

    @_answered
    async def delete_group(self, group: str) -> None:
        """Forget a group without members, and its offsets. Raises `ConfigurationError`."""
        answer, _ = await self._ask_coordinator(
            group, admin_requests.delete_groups(group), lambda answer: answer.results[0][1]
        )
        for name, code, _ in answer.results:
            refused(code, f"group {name!r} cannot be deleted")

    @_answered
    async def delete_offsets(self, group: str, places: Sequence[TopicPartition]) -> None:
        """Forget a group's offsets of partitions that no member reads. Raises `ConfigurationError`."""
        topics: dict[str, list[int]] = {}
        for topic, partition in places:
            topics.setdefault(topic, []).append(partition)
        answer, _ = await self._ask_coordinator(
            group, admin_requests.offset_delete(group, topics), lambda answer: answer.error_code
        )
        refused(answer.error_code, f"offsets of group {group!r} cannot be deleted")
        for topic, results in answer.topics:
            for partition, code in results:
                refused(code, f"the offset of group {group!r} in {topic}-{partition} cannot be deleted")

    # ---------------------------------------------------------------------------------------- requests of our own

    @property
    def address(self) -> str:
        """For errors."""
        return self._bus.address

    async def nodes(self) -> list[int]:
        """Ids of all brokers."""
        return sorted(broker["node_id"] for broker in (await self._client.describe_cluster())["brokers"])

    async def coordinator(self, kind: int, key: str) -> int:
        """Who coordinates a group (kind 0) or a transactional id (kind 1). Raises aiokafka's errors."""
        found: int = await self._client.find_coordinator(key, kind)
        return found

    async def group_coordinator(self, group: str) -> int:
        """Who coordinates a group; its topic is made when somebody asks for the first time, which takes a moment."""
        deadline_s = time.monotonic() + self._bus.request_timeout_ms / 1000
        while True:
            try:
                return await self.coordinator(0, group)
            except kafka_errors.KafkaError as error:
                if not error.retriable or time.monotonic() > deadline_s:
                    raise self._unreachable(error) from error
                await asyncio.sleep(RETRY_BACKOFF_S)

    async def _ask_coordinator(
        self, group: str, request: admin_requests.AdminRequest, code_of: Callable[[Any], int]
    ) -> tuple[Any, int]:
        """A group's coordinator's answer, and who that is; asks again while there is a new one, or it has to load."""
        deadline_s = time.monotonic() + self._bus.request_timeout_ms / 1000
        while True:
            node = await self.group_coordinator(group)
            answer = await self.ask(request, node)
            if code_of(answer) not in COORDINATOR_MOVES or time.monotonic() > deadline_s:
                return answer, node
            await asyncio.sleep(RETRY_BACKOFF_S)

    async def ask(self, request: admin_requests.AdminRequest, node: int | None = None) -> Any:
        """Send a request that the client library does not have to one broker, or to any.

        Raises:
            BrokerUnreachableError: It does not answer.
            ConfigurationError: It does not serve such requests.
        """
        chosen = (await self.nodes())[0] if node is None else node
        try:
            return await self._client._send_request_to_node(chosen, request)  # noqa: SLF001 it has no public way
        except (kafka_errors.KafkaError, TimeoutError) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> BrokerUnreachableError:
        waited_s = self._bus.request_timeout_ms / 1000
        return BrokerUnreachableError(bootstrap=self._bus.address, waited_s=waited_s, reason=repr(error))

    @_answered
    async def set_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets for a group that has no members."""
        state = (await self.describe_group(group)).state
        if state not in {"Empty", "Dead"}:
            message = f"group {group!r} is {state}, its offsets can only be set while no member runs; stop its service"
            raise ConfigurationError(message)
        consumer = aiokafka.AIOKafkaConsumer(
            **self._bus.common(self._client_id), group_id=group, enable_auto_commit=False
        )
        await consumer.start()
        try:
            partitions = {aiokafka.TopicPartition(*tp): offset for tp, offset in offsets.items()}
            consumer.assign(list(partitions))
            await consumer.commit(partitions)
        finally:
            await stop_consumer(consumer)

    @_answered
    async def groups(self) -> Sequence[str]:
        found = await self._client.list_consumer_groups()
        return sorted({group for group, _protocol in found})
