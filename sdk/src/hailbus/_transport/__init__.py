"""The ports: what the SDK needs of a Kafka client. `KafkaBus` and `hailbus.testing.MemoryBus` implement them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, NamedTuple, Protocol

from hailbus.errors import DeliveryError
from hailbus.event import Topic
from hailbus.partitioner import Partitioner

__all__ = [
    "Admin",
    "BrokerDescription",
    "Bus",
    "ClusterDescription",
    "Consumer",
    "Outgoing",
    "Producer",
    "RebalanceListener",
    "Received",
    "Start",
    "TopicDescription",
    "TopicPartition",
    "TransportBrokenError",
    "all_or_raise",
    "partitions_unknown",
    "record_bytes",
]

Start = Literal["earliest", "latest"]
"""Where a group begins that has no committed offset."""

Outgoing = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes]]]
"""Key, value and headers of a record to write."""


class TopicPartition(NamedTuple):
    """One partition. Equal to any other named tuple of the same two values, whatever library it is from."""

    topic: str
    partition: int


class Received(Protocol):
    """A record as it was read."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def timestamp_type(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes]]: ...


class TransportBrokenError(Exception):
    """This consumer or producer has failed for good; a new one may work."""


def partitions_unknown(topic: str) -> DeliveryError:
    """The error for a topic of which no broker has said whether it exists."""
    message = f"the partitions of topic {topic!r} are not known: no broker answers"
    return DeliveryError(message, topic=topic, retriable=True)


def all_or_raise(outcomes: Sequence[int | DeliveryError]) -> Sequence[int]:
    """The offsets that `Producer.send_each` returned.

    Raises:
        DeliveryError: The first record that was refused.
    """
    offsets = []
    for outcome in outcomes:
        if isinstance(outcome, DeliveryError):
            raise outcome
        offsets.append(outcome)
    return offsets


BATCH_HEADER_BYTES = 61
MAX_MESSAGE_BYTES = 1_048_588
"""Kafka's default of `max.message.bytes`."""


def record_bytes(record: Outgoing) -> int:
    """Size of a batch (format v2, uncompressed) that holds this record alone: what `max.message.bytes` limits."""
    key, value, headers = record
    # Attributes, timestamp delta and offset delta take one byte each in the first record of a batch.
    size = 3 + _field_bytes(key) + _field_bytes(value) + _varint_bytes(len(headers))
    for name, content in headers:
        size += _field_bytes(name.encode()) + _field_bytes(content)
    return BATCH_HEADER_BYTES + _varint_bytes(size) + size


def _field_bytes(field: bytes | None) -> int:
    return 1 if field is None else _varint_bytes(len(field)) + len(field)


def _varint_bytes(number: int) -> int:
    """Bytes of a non-negative number as a zigzag varint."""
    return max((2 * number).bit_length() + 6, 7) // 7


class Producer(Protocol):
    """Writes records. Retries what can be retried for as long as it is awaited."""

    @property
    def unreachable_since_s(self) -> float | None:
        """When the producer lost its last broker, on the event loop's clock; None while a broker is connected."""
        ...

    @property
    def retried_count(self) -> int:
        """How often the producer has sent records again."""
        ...

    async def start(self) -> None:
        """Connect. Raises `BrokerUnreachableError` after the bus's connect timeout."""
        ...

    async def stop(self) -> None:
        """Send what is buffered and disconnect."""
        ...

    def known_partition_count(self, topic: str) -> int | None:
        """The topic's partition count if it has been looked up already."""
        ...

    async def partition_count(self, topic: str) -> int:
        """The topic's partition count. Raises `TopicMissingError`."""
        ...

    async def send(self, topic: str, partition: int, records: Sequence[Outgoing]) -> Sequence[int]:
        """Write records in this order and return their offsets, once they are acknowledged.

        Raises:
            DeliveryError: At least one record was refused; the others may have been written.
        """
        ...

    async def send_each(self, topic: str, partition: int, records: Sequence[Outgoing]) -> Sequence[int | DeliveryError]:
        """Write records in this order; the offset of each that was acknowledged, the error of each that was refused.

        A record that is refused for good does not affect its neighbours. After a retriable error the records behind it
        are not written and get the same error, so that sending them again keeps their order.
        """
        ...

    async def begin(self) -> None:
        """Begin a transaction."""
        ...

    async def send_offsets(self, offsets: Mapping[TopicPartition, int], group: str) -> None:
        """Make a group's offsets part of the open transaction."""
        ...

    async def commit(self) -> None:
        """Commit the open transaction. Raises `ProducerFencedError`."""
        ...

    async def abort(self) -> None:
        """Abort the open transaction."""
        ...


class RebalanceListener(Protocol):
    """Told about partitions before they go and when they have come."""

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """These partitions are about to go; offsets can still be committed."""
        ...

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """These partitions have come."""
        ...


class Consumer(Protocol):
    """Reads records as a member of a group, or every partition of its topics without one."""

    @property
    def unreachable_since_s(self) -> float | None:
        """When the consumer lost its last broker, on the event loop's clock; None while a broker is connected."""
        ...

    async def start(self) -> None:
        """Connect and join. Raises `BrokerUnreachableError` after the bus's connect timeout."""
        ...

    async def stop(self) -> None:
        """Leave the group and disconnect. Commits nothing."""
        ...

    async def poll(self, *, timeout_s: float, max_records: int) -> Mapping[TopicPartition, Sequence[Received]]:
        """The next records of partitions that are not paused, none after the timeout.

        Raises:
            TransportBrokenError: Stop this consumer and make another.
        """
        ...

    def pause(self, partition: TopicPartition) -> None:
        """Hand out no more records of a partition."""
        ...

    def resume(self, partition: TopicPartition) -> None:
        """Undo `pause`."""
        ...

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this consumer reads."""
        ...

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> bool:
        """Commit the next offset to read per partition; False when a rebalance came first."""
        ...

    async def committed(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Ask the cluster for the group's committed offsets; a partition without one is left out."""
        ...

    async def positions(self) -> Mapping[TopicPartition, int]:
        """The next offset to read of each partition, past the markers of transactions."""
        ...

    async def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Read on from these offsets."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """What a cluster says about a topic."""

    name: str
    partition_count: int
    replication_factor: int
    leaders: Mapping[int, int]
    replicas: Mapping[int, Sequence[int]]
    isr: Mapping[int, Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDescription:
    """One broker, as the cluster describes it.

    Attributes:
        node_id: Its number.
        host: Where clients of the listener that was asked connect.
        port: The port there.
        rack: `broker.rack`, if it is set.
        is_fenced: Whether the broker is registered but does not serve: it has stopped, died, or lost its network.
    """

    node_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """What a cluster says about its nodes.

    Attributes:
        cluster_id: Empty for a bus in memory.
        controller_id: The active controller; None if there is none at the moment, or if the cluster does not say.
        voter_ids: The controllers, sorted; empty if the cluster does not say.
        brokers: By node id. Fenced ones are included by hailbus-broker, and by Apache Kafka from 4.0 on.
    """

    cluster_id: str
    controller_id: int | None
    voter_ids: tuple[int, ...]
    brokers: tuple[BrokerDescription, ...]


class Admin(Protocol):
    """Looks after topics and offsets."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def cluster(self) -> ClusterDescription:
        """The brokers and the active controller."""
        ...

    async def create(self, topics: Sequence[Topic], *, replication_factor: int | None = None) -> frozenset[str]:
        """Create the topics that are missing; the names of those created.

        Without a replication factor there are as many replicas as brokers, at the most three.
        """
        ...

    async def describe(self, topics: Sequence[str] | None = None) -> Mapping[str, TopicDescription]:
        """Existing topics by name; all but internal ones when none are named."""
        ...

    async def start_offsets(self, topics: Sequence[str]) -> Mapping[TopicPartition, int]:
        """First readable offset of each partition."""
        ...

    async def end_offsets(self, topics: Sequence[str]) -> Mapping[TopicPartition, int]:
        """High watermark of each partition."""
        ...

    async def offsets_at(self, topics: Sequence[str], moment: datetime) -> Mapping[TopicPartition, int]:
        """First offset with a timestamp from this moment on; the high watermark where there is none."""
        ...

    async def committed(self, group: str) -> Mapping[TopicPartition, int]:
        """Committed offsets of a group."""
        ...

    async def groups(self) -> Sequence[str]:
        """Group ids, sorted."""
        ...


class Bus(Protocol):
    """A way to a cluster: makes producers, consumers and admins. Immutable; connects nothing itself."""

    @property
    def address(self) -> str:
        """For log lines and errors."""
        ...

    @property
    def partitioner(self) -> Partitioner:
        """The partitioner of all producers of this bus."""
        ...

    @property
    def rebalance_timeout(self) -> timedelta | None:
        """How long a group waits for a member that still settles its records; None: as long as it takes."""
        ...

    def producer(self, *, client_id: str, transactional_id: str | None = None) -> Producer:
        """A new producer, not started."""
        ...

    def consumer(
        self,
        *,
        client_id: str,
        group: str | None,
        topics: Sequence[str],
        start: Start,
        listener: RebalanceListener | None = None,
        read_committed: bool = True,
    ) -> Consumer:
        """A new consumer, not started. Without a group it reads every partition of the topics."""
        ...

    def admin(self, *, client_id: str) -> Admin:
        """A new admin, not started."""
        ...
