"""Drives the transaction shards: their records, and the markers that end transactions in all partitions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from hailbus_broker.cluster.metadata.image import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from hailbus_broker.coordinators.transaction.outcome import TransactionOutcome
from hailbus_broker.coordinators.transaction.shard import TransactionConfig, TransactionShard
from hailbus_broker.log import InvalidProducerEpochError, LogError, Origin
from hailbus_broker.logging import get_logger
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.records import ControlType, RecordsError, build_control_batch
from hailbus_broker.runtime.group_coordinator import partition_for
from hailbus_broker.runtime.replay import replay_coordinator
from hailbus_broker.runtime.replica import LeaderReplica
from hailbus_broker.runtime.shard_driver import ShardDriver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hailbus_broker.cluster.metadata.image import MetadataDelta, MetadataImage
    from hailbus_broker.coordinators.outcome import Outcome
    from hailbus_broker.coordinators.transaction.outcome import MarkersToWrite
    from hailbus_broker.records import BatchView, Record
    from hailbus_broker.runtime.node import Node

log: Any = get_logger()


class TransactionDriver(ShardDriver):
    """One transaction shard."""

    shard: TransactionShard

    def now_ms(self) -> int:
        """Transactions remember when they began beyond a restart: they go by the wall clock."""
        return self.node.clock.wall_ms()

    def tick(self) -> Iterator[TransactionOutcome]:
        """See `ShardDriver`."""
        return self.shard.tick(self.now_ms())

    @staticmethod
    def _has_to_wait(outcome: Outcome) -> bool:
        return bool(outcome.replies) or (isinstance(outcome, TransactionOutcome) and bool(outcome.markers))

    def _send(self, outcome: Outcome, error: Exception | None) -> None:
        if error is not None or not isinstance(outcome, TransactionOutcome) or not outcome.markers:
            super()._send(outcome, error)
            return
        waiting = len(outcome.markers)

        def written(markers: MarkersToWrite, failed: list[tuple[str, int]]) -> None:
            nonlocal waiting
            self.run(self.shard.markers_written(markers, failed=failed, now_ms=self.now_ms()))
            waiting -= 1
            if not waiting:
                super(TransactionDriver, self)._send(outcome, None)

        for markers in outcome.markers:
            self._write_markers(markers, partial(written, markers))

    def _write_markers(self, markers: MarkersToWrite, done: Callable[[list[tuple[str, int]]], None]) -> None:
        """Append a transaction's markers, and call `done` once they are durable.

        The record that completes the transaction must not be durable before its markers: after a power cut nobody
        would write them again, and the transaction's records would stay hidden.

        Args:
            markers: Of one transaction.
            done: Gets the partitions where it failed and is worth another try.
        """
        marker = Marker(
            producer_id=markers.producer_id,
            producer_epoch=markers.producer_epoch,
            coordinator_epoch=markers.coordinator_epoch,
            is_commit=markers.is_commit,
            must_be_newer=markers.must_be_newer,
        )
        failed: list[tuple[str, int]] = []
        written: list[LeaderReplica] = []
        for topic, index in markers.partitions:
            partition = self.node.replicas.leader(topic, index)
            if partition is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                continue  # deleted meanwhile, and the transaction's records with it
            if not isinstance(partition, LeaderReplica):
                failed.append((topic, index))
                continue
            try:
                if not markers.is_resumed or partition.log.needs_marker(markers.producer_id, markers.producer_epoch):
                    self.node.transactions.write_marker(partition, marker)
            except InvalidProducerEpochError:
                pass  # a newer one stands there: this one was written, and the producer went on
            except (LogError, RecordsError) as error:
                log.error("transaction_marker_failed", partition=partition.name, error=str(error))
                failed.append((topic, index))
                continue
            written.append(partition)
        waiting = len(written) + 1

        def durable(where: tuple[str, int] | None, error: Exception | None) -> None:
            nonlocal waiting
            waiting -= 1
            if where is not None and error is not None and self.node.replicas.has(*where):
                failed.append(where)
            if not waiting:
                done(failed)

        for partition in written:
            partition.when_committed(partition.log.log_end_offset, partial(durable, (partition.topic, partition.index)))
        durable(None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """The end of a producer's transaction in one partition; `must_be_newer` as in `MarkersToWrite`."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    must_be_newer: bool


class TransactionCoordinator:
    """All transaction shards of the node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.drivers: list[TransactionDriver] = []

    async def apply(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """See `metadata_publisher.Subscriber`."""
        topic = image.topics.get(TRANSACTION_STATE_TOPIC)
        if topic is not None and topic.topic_id in delta.new_partitions:
            self.load()

    def load(self) -> None:
        """Replay the partitions of `__transaction_state`, if they exist, and resume interrupted transactions."""
        config = TransactionConfig(
            max_timeout_ms=self.node.config["transaction.max.timeout.ms"],
            id_expiration_ms=self.node.config["transactional.id.expiration.ms"],
        )
        now_ms = self.node.clock.wall_ms()
        for partition in self.node.replicas.topics.get(TRANSACTION_STATE_TOPIC, [])[len(self.drivers) :]:
            if not isinstance(partition, LeaderReplica):
                return  # those behind it are loaded when it can be
            shard = TransactionShard(config, coordinator_epoch=partition.leader_epoch)
            driver = TransactionDriver(self.node, partition, shard)
            self.drivers.append(driver)
            driver.is_loaded = replay_transactions(shard, partition, now_ms=now_ms)
            if driver.is_loaded:
                driver.run(shard.resume(now_ms=now_ms))

    def write_marker(self, partition: LeaderReplica, marker: Marker) -> None:
        """Append a marker, and let the group coordinator know where it holds offsets of the transaction.

        Raises:
            LogError: The log refused it, or the machine failed.
        """
        now_ms = self.node.clock.wall_ms()
        batch = build_control_batch(
            ControlType.COMMIT if marker.is_commit else ControlType.ABORT,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            timestamp=now_ms,
        )
        partition.append(batch, now_ms=now_ms, origin=Origin.COORDINATOR, must_marker_be_newer=marker.must_be_newer)
        if partition.topic == GROUP_METADATA_TOPIC:
            self.node.groups.transaction_ended(partition.index, marker.producer_id, is_commit=marker.is_commit)

    def driver(self, transactional_id: str) -> TransactionDriver | None:
        """Who is responsible for a transactional id.

        None before `__transaction_state` exists, or when the partition is damaged.
        """
        if not self.drivers:
            return None
        driver = self.drivers[partition_for(transactional_id, len(self.drivers))]
        return driver if driver.is_loaded else None

    def shards(self) -> Iterator[TransactionShard]:
        """All shards."""
        return (driver.shard for driver in self.drivers if driver.is_loaded)

    def ring(self) -> None:
        """Let all shards do what is due."""
        for driver in self.drivers:
            if driver.is_loaded:
                driver.ring()

    def close(self) -> None:
        """Stop all timers."""
        for driver in self.drivers:
            driver.close()


def replay_transactions(shard: TransactionShard, partition: LeaderReplica, *, now_ms: int) -> bool:
    """Take all records of a partition into its shard, at the start; False if the partition is damaged."""

    def take_record(record: Record, _: BatchView) -> None:
        assert record.key is not None
        shard.replay(record.key, record.value, now_ms=now_ms)

    def take_marker(_: BatchView) -> None:
        pass  # nothing in this topic is part of a transaction

    return replay_coordinator(partition, take_record, take_marker)
