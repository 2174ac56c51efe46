"""Everything that hailbus uses of aiokafka beside its public interface, in one place.

aiokafka may rename these attributes in any release. `missing` says which ones it has renamed; a test calls it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import chain
from operator import length_hint
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.cluster import ClusterMetadata
from aiokafka.conn import create_conn
from aiokafka.consumer.fetcher import READ_COMMITTED, Fetcher, FetchResult, PartitionRecords
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import CorruptRecordException
from aiokafka.producer.sender import Sender
from aiokafka.producer.transaction_manager import TransactionManager
from aiokafka.protocol.metadata import MetadataRequest

from hailbus._transport.record import Record, new_record

__all__ = [
    "PRIVATE",
    "close_connections",
    "close_producer",
    "cluster_metadata",
    "has_connections",
    "is_connected",
    "membership_ended",
    "metadata_answered_ms",
    "missing",
    "partitions_when_known",
    "read_into_records",
    "request_metadata",
    "return_sequence_numbers",
    "send_to_node",
    "sender_ended",
    "try_connection",
]

_FETCHED = "to read fetched batches into records of hailbus"
_FETCHING: Sequence[tuple[type[Any], str, str]] = (  # Any: aiokafka is untyped
    (AIOKafkaConsumer, "_fetcher", _FETCHED),
    (Fetcher, "_records", _FETCHED),
    (FetchResult, "_partition_records", _FETCHED),
    (PartitionRecords, "_aborted_producers", _FETCHED),
    (PartitionRecords, "_check_crcs", _FETCHED),
    (PartitionRecords, "_consume_aborted_up_to", _FETCHED),
    (PartitionRecords, "_contains_abort_marker", _FETCHED),
    (PartitionRecords, "_isolation_level", _FETCHED),
    (PartitionRecords, "_records", _FETCHED),
    (PartitionRecords, "_records_iterator", _FETCHED),
    (PartitionRecords, "_tp", _FETCHED),
    (PartitionRecords, "next_fetch_offset", _FETCHED),
)
PRIVATE: Sequence[tuple[type[Any], str, str]] = (  # Any: aiokafka is untyped
    (AIOKafkaProducer, "client", "to close a producer's connections"),
    (AIOKafkaProducer, "_sender", "to see whether a producer still sends"),
    (Sender, "sender_task", "to see whether a producer still sends"),
    (AIOKafkaProducer, "_txn_manager", "to use the sequence numbers of a refused batch again"),
    (TransactionManager, "_sequence_numbers", "to use the sequence numbers of a refused batch again"),
    (Sender, "close", "to close a producer that waits for a dead broker"),
    (AIOKafkaConsumer, "_client", "to close a consumer's connections"),
    (AIOKafkaConsumer, "_coordinator", "to see whether a consumer is still a member of its group"),
    (GroupCoordinator, "_coordination_task", "to see whether a consumer is still a member of its group"),
    (GroupCoordinator, "_heartbeat_task", "to see whether a consumer is still a member of its group"),
    (AIOKafkaAdminClient, "_client", "to ask for metadata"),
    (AIOKafkaAdminClient, "_get_cluster_metadata", "to list topics without creating them"),
    (AIOKafkaAdminClient, "_send_request_to_node", "to send requests that aiokafka does not have"),
    (AIOKafkaClient, "_conns", "to see whether a broker is connected"),
    (AIOKafkaClient, "_wait_on_metadata", "to wait for a topic's partitions"),
    (AIOKafkaClient, "close", "to close connections"),
    (AIOKafkaClient, "force_metadata_update", "to ask for metadata that was lost with a broker"),
    (ClusterMetadata, "_last_successful_refresh_ms", "to tell a missing topic from a silent broker"),
    *_FETCHING,
)


def missing(private: Sequence[tuple[type[Any], str, str]] = PRIVATE) -> list[str]:  # Any: as above
    """One sentence for each attribute that the installed aiokafka no longer has."""
    return [
        f"aiokafka {version('aiokafka')} has no {owner.__module__}.{owner.__name__}.{name}, which "
        f"hailbus._transport.aiokafka_private needs {use}"
        for owner, name, use in private
        # An attribute of the class, or one that its constructor sets.
        if not hasattr(owner, name) and name not in owner.__init__.__code__.co_names
    ]


# Arguments and results below are aiokafka's, which is untyped: its classes stand for Any.


async def try_connection(host: str, port: int, arguments: Mapping[str, Any]) -> None:  # Any: as above
    """Connect, authenticate and ask for metadata, as a client does first; raise whatever fails, and disconnect."""
    wanted = {
        name: value for name, value in arguments.items() if name not in {"bootstrap_servers", "metadata_max_age_ms"}
    }
    connection = await create_conn(host, port, **wanted)
    try:
        await connection.send(MetadataRequest([]))
    finally:
        connection.close()


def sender_ended(producer: AIOKafkaProducer) -> bool:
    """Whether the task that sends a producer's records has died."""
    task = producer._sender.sender_task
    return task is not None and bool(task.done())


def return_sequence_numbers(producer: AIOKafkaProducer, topic: str, partition: int, count: int) -> None:
    """Let the next batch have the sequence numbers of one that the broker has refused, while none is in flight.

    aiokafka counts on, so the broker would refuse all further batches of this producer as out of order.
    """
    producer._txn_manager._sequence_numbers[TopicPartition(topic, partition)] -= count


async def close_producer(producer: AIOKafkaProducer) -> None:
    """Close a producer without waiting for records that no broker takes."""
    await producer._sender.close()
    await producer.client.close()


async def close_connections(consumer: AIOKafkaConsumer) -> None:
    """Close a consumer's connections, which ends the wait for answers on them."""
    await consumer._client.close()


def membership_ended(consumer: AIOKafkaConsumer) -> bool:
    """Whether a task that keeps a consumer in its group has died: no poll would bring records any more.

    An error that the heartbeat task does not know ends that task alone, and each poll then raises it again.
    """
    coordinator = consumer._coordinator
    task = getattr(coordinator, "_coordination_task", None)  # a reader without a group has no such task
    if task is None:
        return False
    heartbeat = coordinator._heartbeat_task
    has_failed = heartbeat is not None and heartbeat.done() and not heartbeat.cancelled() and heartbeat.exception()
    return bool(task.done() or has_failed)


async def partitions_when_known(consumer: AIOKafkaConsumer, topic: str) -> Collection[int]:
    """A topic's partitions; waits for the first metadata."""
    found: Collection[int] = await consumer._client._wait_on_metadata(topic)
    return found


def request_metadata(consumer: AIOKafkaConsumer) -> None:
    """Ask for metadata now, at most once at a time; nobody waits for the answer."""
    consumer._client.force_metadata_update()


async def cluster_metadata(admin: AIOKafkaAdminClient, node: int | None = None) -> Any:  # Any: as above
    """Metadata of every topic, as one broker or any knows it; by name, a request would create missing topics."""
    if node is None:
        return await admin._get_cluster_metadata()
    return await send_to_node(admin, node, MetadataRequest(None))


async def send_to_node(admin: AIOKafkaAdminClient, node: int, request: object) -> Any:  # Any: as above
    """Send a request to one broker and return its answer."""
    return await admin._send_request_to_node(node, request)


def _connections(client: AIOKafkaProducer | AIOKafkaConsumer) -> Collection[Any]:  # Any: as above
    network = client.client if isinstance(client, AIOKafkaProducer) else client._client
    found: Collection[Any] = network._conns.values()
    return found


def has_connections(client: AIOKafkaProducer | AIOKafkaConsumer) -> bool:
    """Whether a client holds connections, be they alive or broken."""
    return bool(_connections(client))


def is_connected(client: AIOKafkaProducer | AIOKafkaConsumer) -> bool:
    """Whether a client is connected to at least one broker."""
    return any(connection.connected() for connection in _connections(client))


def metadata_answered_ms(producer: AIOKafkaProducer) -> float:
    """When a broker answered a request for metadata last, in ms since 1970; 0 if none ever did."""
    return float(producer.client.cluster._last_successful_refresh_ms)


# ------------------------------------------------------------------------------------------------ fetched records


def read_into_records(consumer: AIOKafkaConsumer) -> None:
    """Let a started consumer hand over `Record` where aiokafka makes a `ConsumerRecord`, which costs a dataclass each.

    With an aiokafka whose fetcher has other attributes the consumer keeps handing over `ConsumerRecord`, which has the
    same fields.
    """
    if not missing(_FETCHING):
        fetcher = consumer._fetcher
        fetched = _Fetched()
        for partition, result in fetcher._records.items():
            fetched[partition] = result
        fetcher._records = fetched


class _Fetched(OrderedDict[Any, Any]):  # Any: as above
    """The results that a fetcher keeps until they are read, each with a `_Batches` in place of aiokafka's reader."""

    def __setitem__(self, partition: Any, result: Any) -> None:  # Any: as above
        if type(result) is FetchResult:
            result._partition_records = _Batches(result._partition_records)
        super().__setitem__(partition, result)


class _Batches(PartitionRecords):  # type: ignore[misc]  # aiokafka is untyped
    """Reads the batches of one fetched partition, by the same rules as its base class.

    Control batches and the batches of aborted transactions are passed over, and `next_fetch_offset` moves past them.
    A batch is read as a whole: going back and forth between two generators would cost as much as a record.

    Args:
        fetched: What has been fetched; nothing of it has been read.
    """

    def __init__(self, fetched: PartitionRecords) -> None:
        self.__dict__.update(vars(fetched))
        self._read: list[Record] = []
        self._left: Iterator[Record] = iter(())
        self._behind_offset: int = self.__dict__.pop("next_fetch_offset")
        """The offset behind the last batch that has been read."""
        self._records_iterator: Iterator[Record] | None = chain.from_iterable(self._unpack_batches())

    def __iter__(self) -> Iterator[Record]:
        # The iterator itself: calling `__next__` of this object would cost more than a record.
        return iter(self._records_iterator or ())

    @property
    def next_fetch_offset(self) -> int:
        """The offset behind the last record that was handed over, or behind the last batch once the next is wanted."""
        handed_over = len(self._read) - length_hint(self._left)
        return self._read[handed_over - 1].offset + 1 if handed_over else self._behind_offset

    def _unpack_batches(self) -> Iterator[Iterator[Record]]:
        topic, partition = self._tp
        batches, is_committed = self._records, self._isolation_level == READ_COMMITTED
        while batches.has_next():
            batch = batches.next_batch()
            if self._check_crcs and not batch.validate_crc():
                # Nothing behind it is read. What was read before is fetched again, as the position has not moved.
                raise CorruptRecordException(f"Invalid CRC - {self._tp}")
            is_aborted = False
            producer_id = batch.producer_id
            if is_committed and producer_id is not None:
                self._consume_aborted_up_to(batch.base_offset)
                if batch.is_control_batch and self._contains_abort_marker(batch):
                    self._aborted_producers.discard(producer_id)
                is_aborted = batch.is_transactional and producer_id in self._aborted_producers
            if not is_aborted and not batch.is_control_batch:
                read = [
                    new_record(
                        Record,
                        (
                            topic,
                            partition,
                            record.offset,
                            record.timestamp,
                            record.timestamp_type,
                            record.key,
                            record.value,
                            record.headers,
                        ),
                    )
                    for record in batch
                ]
                if batch.base_offset < self._behind_offset:  # a seek into the middle of the batch
                    read = [record for record in read if record.offset >= self._behind_offset]
                self._read, self._left = read, iter(read)
                yield self._left
                self._read = []
            # Past what compaction has taken from the end of the batch.
            self._behind_offset = batch.next_offset
