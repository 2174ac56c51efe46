"""The transaction coordinator: the shards of `__transaction_state` that this node serves."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from hailbus_broker.cluster.metadata.image import TRANSACTION_STATE_TOPIC
from hailbus_broker.coordinators.transaction.outcome import TransactionOutcome
from hailbus_broker.coordinators.transaction.shard import TransactionConfig, TransactionShard
from hailbus_broker.runtime.coordinator import Coordinator
from hailbus_broker.runtime.shard_driver import DriverState, ShardDriver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hailbus_broker.cluster.options import BrokerConfig
    from hailbus_broker.coordinators.outcome import Outcome
    from hailbus_broker.coordinators.transaction.outcome import MarkersToWrite
    from hailbus_broker.coordinators.transaction.state import TopicPartition
    from hailbus_broker.records import BatchView, Record
    from hailbus_broker.runtime.clock import Clock
    from hailbus_broker.runtime.coordinator import CoordinatorPorts
    from hailbus_broker.runtime.markers import MarkerSender
    from hailbus_broker.runtime.replica import LeaderReplica


class TransactionDriver(ShardDriver[TransactionShard]):
    """One transaction shard."""

    def __init__(
        self, partition: LeaderReplica, shard: TransactionShard, *, clock: Clock, marker_sender: MarkerSender
    ) -> None:
        super().__init__(partition, shard, clock=clock)
        self._marker_sender: Final = marker_sender

    def now_ms(self) -> int:
        """Deadlines must not depend on what people do to the clock."""
        return self.clock.now_ms()

    def wall_ms(self) -> int:
        """Return the time that records hold, which means the same after a restart: milliseconds since 1970 UTC."""
        return self.clock.wall_ms()

    def tick(self) -> Iterator[TransactionOutcome]:
        """See `ShardDriver`."""
        return self.shard.tick(self.now_ms(), wall_ms=self.wall_ms())

    def replay_record(self, record: Record, batch: BatchView) -> None:
        """See `Replayed`."""
        del batch
        assert record.key is not None
        self.shard.replay(record.key, record.value, now_ms=self.now_ms(), wall_ms=self.wall_ms())

    def replay_marker(self, batch: BatchView) -> None:
        """See `Replayed`: nothing in this topic is part of a transaction."""

    def activated(self) -> None:
        """See `ShardDriver`."""
        self.run(self.shard.resume())

    def renew(self, leader_epoch: int) -> None:
        """See `ShardDriver`."""
        super().renew(leader_epoch)
        self.shard.coordinator_epoch = leader_epoch

    @staticmethod
    def _has_to_wait(outcome: Outcome) -> bool:
        return bool(outcome.replies) or (isinstance(outcome, TransactionOutcome) and bool(outcome.markers))

    def _send(self, outcome: Outcome, error: Exception | None) -> None:
        is_over = error is not None or self.state is not DriverState.ACTIVE
        if is_over or not isinstance(outcome, TransactionOutcome) or not outcome.markers:
            super()._send(outcome, error)
            return
        waiting = len(outcome.markers)

        def written(markers: MarkersToWrite, failed: list[TopicPartition]) -> None:
            nonlocal waiting
            times = {"now_ms": self.now_ms(), "wall_ms": self.wall_ms()}
            self.run(self.shard.markers_written(markers, failed=failed, **times))
            waiting -= 1
            if not waiting:
                super(TransactionDriver, self)._send(outcome, None)

        for markers in outcome.markers:
            self._marker_sender.send(markers, partial(written, markers))


class TransactionCoordinator(Coordinator[TransactionDriver]):
    """All transaction shards of the node.

    Args:
        config: The broker's settings.
        marker_sender: Brings markers to the partitions of transactions.
        ports: Of the node.
    """

    def __init__(
        self,
        *,
        config: BrokerConfig,
        marker_sender: MarkerSender,
        ports: CoordinatorPorts,
    ) -> None:
        super().__init__(TRANSACTION_STATE_TOPIC, self._driver_of, ports)
        self._config: Final = config
        self._marker_sender: Final = marker_sender

    def _driver_of(self, partition: LeaderReplica) -> TransactionDriver:
        config = TransactionConfig(
            max_timeout_ms=self._config["transaction.max.timeout.ms"],
            id_expiration_ms=self._config["transactional.id.expiration.ms"],
        )
        shard = TransactionShard(config, coordinator_epoch=partition.leader_epoch)
        return TransactionDriver(partition, shard, clock=self._clock, marker_sender=self._marker_sender)

    def shards(self) -> Iterator[TransactionShard]:
        """All shards that are loaded."""
        return (driver.shard for driver in self.active())
