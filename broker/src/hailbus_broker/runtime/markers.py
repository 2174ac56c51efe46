"""Markers: the control batches that end a producer's transaction in a partition."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from hailbus_broker.log import InvalidProducerEpochError, LogError, Origin
from hailbus_broker.logging import get_logger
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.records import ControlType, RecordsError, build_control_batch
from hailbus_broker.runtime.replica import LeaderReplica

if TYPE_CHECKING:
    from collections.abc import Callable

    from hailbus_broker.coordinators.transaction.outcome import MarkersToWrite
    from hailbus_broker.coordinators.transaction.state import TopicPartition
    from hailbus_broker.runtime.clock import Clock
    from hailbus_broker.runtime.replica_manager import ReplicaManager

log: Any = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """The end of a producer's transaction in one partition; `must_be_newer` as in `MarkersToWrite`."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    must_be_newer: bool


def append_marker(partition: LeaderReplica, marker: Marker, *, now_ms: int) -> None:
    """Append a marker, and notify the coordinator that has records of the transaction in this partition.

    Raises:
        LogError: The log refused it, or the machine failed.
    """
    batch = build_control_batch(
        ControlType.COMMIT if marker.is_commit else ControlType.ABORT,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        coordinator_epoch=marker.coordinator_epoch,
        timestamp=now_ms,
    )
    partition.append(batch, now_ms=now_ms, origin=Origin.COORDINATOR, must_marker_be_newer=marker.must_be_newer)
    if partition.on_marker is not None:
        partition.on_marker(marker.producer_id, marker.is_commit)


class MarkerSender(Protocol):
    """Brings a transaction's markers to the leaders of its partitions."""

    def send(self, markers: MarkersToWrite, done: Callable[[list[TopicPartition]], None]) -> None:
        """Have the markers written, and call `done` once they are durable.

        The record that completes the transaction must not be durable before its markers: after a power cut nobody
        would write them again, and the transaction's records would stay hidden.

        Args:
            markers: Of one transaction.
            done: Gets the partitions where it failed and is worth another try.
        """
        ...


class LocalMarkers:
    """Writes the markers to the partitions that this node leads.

    Args:
        replicas: Of this node.
        clock: For timestamps.
        exists: Whether the committed metadata has a partition: the replicas follow it a little later.
    """

    def __init__(self, replicas: ReplicaManager, clock: Clock, exists: Callable[[str, int], bool]) -> None:
        self._replicas: Final = replicas
        self._clock: Final = clock
        self._exists: Final = exists

    def send(self, markers: MarkersToWrite, done: Callable[[list[TopicPartition]], None]) -> None:
        """See `MarkerSender`."""
        marker = Marker(
            producer_id=markers.producer_id,
            producer_epoch=markers.producer_epoch,
            coordinator_epoch=markers.coordinator_epoch,
            is_commit=markers.is_commit,
            must_be_newer=markers.must_be_newer,
        )
        failed: list[TopicPartition] = []
        written: list[LeaderReplica] = []
        for topic, index in markers.partitions:
            partition = self._replicas.leader(topic, index)
            if partition is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not self._exists(topic, index):
                continue  # deleted meanwhile, and the transaction's records with it
            if not isinstance(partition, LeaderReplica) or not partition.has_min_isr:
                failed.append((topic, index))
                continue
            try:
                if not markers.is_resumed or partition.log.needs_marker(markers.producer_id, markers.producer_epoch):
                    append_marker(partition, marker, now_ms=self._clock.wall_ms())
            except InvalidProducerEpochError:
                pass  # a newer one was appended: this one was, too, and the producer has begun another transaction
            except (LogError, RecordsError) as error:
                log.error("transaction_marker_failed", partition=partition.name, error=str(error))
                failed.append((topic, index))
                continue
            written.append(partition)
        waiting = len(written) + 1

        def durable(where: TopicPartition | None, error: Exception | None) -> None:
            nonlocal waiting
            waiting -= 1
            if where is not None and error is not None and self._exists(*where):
                failed.append(where)
            if not waiting:
                done(failed)

        for partition in written:
            partition.when_committed(partition.log.log_end_offset, partial(durable, (partition.topic, partition.index)))
        durable(None, None)
