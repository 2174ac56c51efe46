"""Exactly once from Kafka to Kafka: what a handler publishes and the offsets it consumed are committed together.

Each input partition has a producer of its own with the transactional id `<group>-<topic>-<partition>`. The member that
is assigned the partition next registers the same id and thereby fences the former owner: a zombie can commit neither
events nor offsets. Consumers of the output must read committed, as hailbus consumers do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from hailbus._consuming.member import Member, Surroundings
from hailbus._consuming.path import FailurePath
from hailbus._consuming.progress import Heads
from hailbus._consuming.transactions import Line, TransactionOutlet
from hailbus._transport import Producer, Received, TopicPartition
from hailbus.delivery import ExactlyOnce
from hailbus.subscription import Subscription

if TYPE_CHECKING:
    pass

__all__ = ["TransactionalSubscriber"]


class TransactionalSubscriber(Member):
    """All `ExactlyOnce` subscriptions of one group in one process."""

    def __init__(self, group: str, subscriptions: Sequence[Subscription], around: Surroundings) -> None:
        super().__init__(group, subscriptions, around)
        for subscription in subscriptions:
            self._route(subscription)
        self._most = max(s.delivery.max_items for s in subscriptions if isinstance(s.delivery, ExactlyOnce))
        self._lines: dict[TopicPartition, Line] = {}
        self._progress = Heads()

    async def _prepare(self) -> None:
        pass

    def _tasks(self) -> Sequence[tuple[str, Callable[[], Awaitable[None]]]]:
        return [("look", self._look_regularly)]

    async def _look_regularly(self) -> None:
        """Note the progress of each partition, also while nobody asks."""
        while True:
            await asyncio.sleep(self._settings.commit_interval.total_seconds())
            for line in self._lines.values():
                line.look()

    async def stop(self) -> None:
        """Finish the transactions in progress within the drain timeout, leave the group."""
        lines = [line.task for line in self._lines.values()]
        await self._supervisor.stop(but=lines)
        await self._end(tuple(self._lines), self._settings.drain_timeout.total_seconds())
        await self._supervisor.stop()
        await self._reader.stop()
        await self._caller.stop()

    # -------------------------------------------------------------------------------------------- rebalance

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """New partitions: each gets a line, which registers its producer before it handles anything."""
        self.stats.rebalances += 1
        for partition in partitions:
            line = self._lines[partition] = Line(
                self.group,
                partition,
                most=self._most,
                make_producer=partial(self._make_producer, partition),
                committed=self._committed,
                router=self._router,
                caller=self._caller,
                outages=self._outages,
                stats=self.stats,
                heads=self._progress,
                make_path=self._make_path,
                room=lambda partition: self._reader.resume(partition, "full"),
            )
            line.task = self._supervisor.run(f"line-{partition.topic}-{partition.partition}", line.run)

    def _make_producer(self, partition: TopicPartition) -> Producer:
        place = f"{partition.topic}-{partition.partition}"
        return self._bus.producer(client_id=f"{self._client_id}-{place}", transactional_id=f"{self.group}-{place}")

    async def _committed(self, partition: TopicPartition) -> int | None:
        consumer = self._reader.joining
        assert consumer is not None
        return (await consumer.committed([partition])).get(partition)

    def _make_path(self, outlet: TransactionOutlet) -> FailurePath:
        return FailurePath(
            self.group,
            stats=self.stats,
            clock=self._clock,
            rng=self._rng,
            outages=self._outages,
            outlet=outlet,
            retries={},
            parked={},
            heads=self._progress,
        )

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Let the transactions in progress finish within the grace, abort them after it."""
        await self._end(partitions, self._settings.revoke_grace.total_seconds())

    async def _end(self, partitions: Collection[TopicPartition], grace_s: float) -> None:
        lines = [line for partition in partitions if (line := self._lines.pop(partition, None)) is not None]
        await asyncio.gather(*(line.stop(grace_s) for line in lines))
        self._outages.forget(partitions)
        for partition in partitions:
            self._progress.forget(partition)
            self._reader.forget(partition)

    async def let_go(self) -> None:
        """See `Reading`."""
        await self._end(tuple(self._lines), self._settings.revoke_grace.total_seconds())

    def _hold(self, partition: TopicPartition) -> None:
        self._reader.pause(partition, "held")

    def _release(self, partition: TopicPartition) -> None:
        self._reader.resume(partition, "held")

    # -------------------------------------------------------------------------------------------- reading

    async def room(self) -> int:
        """See `Reading`."""
        if self.failure is not None:
            await asyncio.get_running_loop().create_future()  # for good: this member reads no more
        return self._settings.poll_records

    async def take(self, polled: Mapping[TopicPartition, Sequence[Received]]) -> None:
        """See `Reading`."""
        for raw_partition, records in polled.items():
            if not records:
                continue
            partition = TopicPartition(*raw_partition)
            line = self._lines.get(partition)
            if line is None:
                # Assigned so lately that its line is not ready: the records must come again, or the next commit would
                # pass them.
                await self._reader.seek_back({partition: records[0].offset})
            elif line.push(records):
                self._reader.pause(partition, "full")
        await asyncio.sleep(0)  # handlers first

    async def commit(self) -> None:
        """Do nothing: each transaction commits its offsets itself."""

    # -------------------------------------------------------------------------------------------- health

    @property
    def _heads(self) -> Heads:
        for line in self._lines.values():
            line.look()
        return self._progress

    @property
    def unsettled_count(self) -> int:
        """Records read and not committed."""
        return sum(line.waiting_count for line in self._lines.values())

    @property
    def lag_s(self) -> float:
        """Age of the oldest record that was read and is not committed, in seconds; 0 when there is none."""
        oldest = [line.oldest_ms for line in self._lines.values() if line.oldest_ms is not None]
        return max(self._clock().timestamp() - min(oldest) / 1000, 0.0) if oldest else 0.0

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this member holds."""
        return frozenset(self._lines)
