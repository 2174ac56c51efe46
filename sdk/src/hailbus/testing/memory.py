"""A cluster in memory: topics, partitions, offsets, groups with rebalances, committed offsets, transactions, faults.

It keeps Kafka's rules where a service can notice them: order and offsets per partition, eager rebalances with a
generation, commits refused to members that lost the partition, read_committed up to the first open transaction, the
fencing of older transactional producers. There is no network, no replication, no retention and no compaction.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from hailbus._transport import (
    MAX_MESSAGE_BYTES,
    BrokerDescription,
    ClusterDescription,
    Outgoing,
    RebalanceListener,
    Received,
    Start,
    TopicDescription,
    TopicPartition,
    TransportBrokenError,
    all_or_raise,
    record_bytes,
)
from hailbus.clock import Clock, utc_now
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

if TYPE_CHECKING:
    from hailbus.service import Service
    from hailbus.testing.harness import Harness

__all__ = ["MemoryBus", "MemoryRecord"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRecord:
    """A record in memory. `transaction` is the number of the transaction that wrote it."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int = 0
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    transaction: int | None = None


@dataclass(slots=True, eq=False)
class _Group:
    """Members in the order of joining; each learns of a new generation at its next poll."""

    members: list[MemoryConsumer] = field(default_factory=list)
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    generation: int = 0


class MemoryBus:
    """A cluster in memory. Each instance is a cluster of its own.

    Args:
        clock: Gives record timestamps.
        partitioner: As for `KafkaBus`.
        seed: Of everything that is left to chance: sticky partitions, the order in which partitions are read.
    """

    def __init__(self, *, clock: Clock = utc_now, partitioner: Partitioner | None = None, seed: int = 0) -> None:
        self.clock = clock
        self.chance = random.Random(seed)
        self.logs: dict[TopicPartition, list[MemoryRecord]] = {}
        self.declared: dict[str, Topic] = {}
        self.groups: dict[str, _Group] = {}
        self.is_down = False
        self.down_since_s: float | None = None
        self._partitioner: Partitioner = partitioner if partitioner is not None else Murmur2(seed=seed)
        self._changed = asyncio.Event()
        self._send_failures: deque[DeliveryError | None] = deque()
        self._commit_failures = 0
        self._epochs: dict[str, int] = {}
        self._transactions = 0
        self._open: dict[int, dict[TopicPartition, int]] = {}
        self._aborted: set[int] = set()

    # ---------------------------------------------------------------------------------------- the bus

    @property
    def address(self) -> str:
        """For log lines."""
        return "memory"

    @property
    def partitioner(self) -> Partitioner:
        """See `Bus`."""
        return self._partitioner

    @property
    def rebalance_timeout(self) -> None:
        """The others wait as long as it takes."""

    def producer(self, *, client_id: str, transactional_id: str | None = None) -> MemoryProducer:  # noqa: ARG002 nobody looks at it
        """See `Bus`."""
        return MemoryProducer(self, transactional_id)

    def consumer(
        self,
        *,
        client_id: str,  # noqa: ARG002 nobody looks at it
        group: str | None,
        topics: Sequence[str],
        start: Start,
        listener: RebalanceListener | None = None,
        read_committed: bool = True,
    ) -> MemoryConsumer:
        """See `Bus`."""
        return MemoryConsumer(
            self, group=group, topics=topics, start=start, listener=listener, read_committed=read_committed
        )

    def admin(self, *, client_id: str) -> MemoryAdmin:  # noqa: ARG002 nobody looks at it
        """See `Bus`."""
        return MemoryAdmin(self)

    # ---------------------------------------------------------------------------------------- for tests: looking

    def records(self, topic: str | Topic) -> list[MemoryRecord]:
        """Every record of a topic, partition by partition, those of open and aborted transactions included."""
        name = topic if isinstance(topic, str) else topic.name
        return [record for tp, log in sorted(self.logs.items()) if tp.topic == name for record in log]

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """Committed offsets of a group."""
        found = self.groups.get(group)
        return dict(found.committed) if found is not None else {}

    def end(self, topic: str | Topic) -> dict[TopicPartition, int]:
        """The offset that the next record of each partition gets."""
        name = topic if isinstance(topic, str) else topic.name
        return {tp: len(log) for tp, log in sorted(self.logs.items()) if tp.topic == name}

    def lag(self, group: str) -> int:
        """Records that members of a group still have to settle, over the topics they subscribe to."""
        found = self.groups.get(group)
        if found is None:
            return 0
        topics = {topic for member in found.members for topic in member.topics} | {tp.topic for tp in found.committed}
        return sum(end - found.committed.get(tp, 0) for topic in topics for tp, end in self.end(topic).items())

    def run(self, *services: Service) -> AbstractAsyncContextManager[Harness]:
        """Run services, with helpers to feed and watch them: `async with bus.run(svc) as t`."""
        from hailbus.testing.harness import harness

        return harness(self, services)

    # ---------------------------------------------------------------------------------------- for tests: faults

    def fail_sends(self, *outcomes: DeliveryError | None) -> None:
        """Script the next sends: each error is raised once, None lets one pass."""
        self._send_failures.extend(outcomes)

    def refuse_commits(self, count: int) -> None:
        """Refuse the next commits, as a coordinator does that has just rebalanced."""
        self._commit_failures += count

    def go_down(self) -> None:
        """Sends wait, reads give nothing, commits fail, until `come_up`."""
        self.is_down = True
        self.down_since_s = asyncio.get_running_loop().time()

    def come_up(self) -> None:
        """End `go_down`."""
        self.is_down = False
        self.down_since_s = None
        self._changed.set()

    def rebalance(self, group: str) -> None:
        """Make a group's members give up and take their partitions again, in another order."""
        found = self.group(group)
        self.chance.shuffle(found.members)
        found.generation += 1
        self._changed.set()

    def break_consumers(self, group: str) -> None:
        """Throw a group's members out, as a broker does whose session ran out: their next poll fails."""
        for member in tuple(self.group(group).members):
            member.broken = True
            self.leave(self.group(group), member)

    def rewind(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set committed offsets and rebalance, so that records are delivered again."""
        self.group(group).committed.update(offsets)
        self.rebalance(group)

    # ---------------------------------------------------------------------------------------- inside

    def create(self, topic: Topic) -> bool:
        """Create a topic; False when it exists."""
        if topic.name in self.declared:
            return False
        self.declared[topic.name] = topic
        for partition in range(topic.partitions):
            self.logs[TopicPartition(topic.name, partition)] = []
        self._changed.set()
        return True

    def append(
        self, topic: str, partition: int, records: Sequence[Outgoing], *, transaction: int | None = None
    ) -> list[int]:
        """Write raw records; their offsets.

        Raises:
            RecordTooLargeError: One is larger than the topic's `max.message.bytes`; none is written.
        """
        log = self.logs.get(TopicPartition(topic, partition))
        if log is None:
            raise TopicMissingError(topic=topic)
        limit = int(self.declared[topic].config.get("max.message.bytes", MAX_MESSAGE_BYTES))
        for record in records:
            size_bytes = record_bytes(record)
            if size_bytes > limit:
                raise RecordTooLargeError(topic=topic, size_bytes=size_bytes, limit_bytes=limit)
        now_ms = int(self.clock().timestamp() * 1000)
        first = len(log)
        if transaction is not None:
            self._open[transaction].setdefault(TopicPartition(topic, partition), first)
        for key, value, headers in records:
            log.append(
                MemoryRecord(
                    topic=topic,
                    partition=partition,
                    offset=len(log),
                    timestamp=now_ms,
                    key=key,
                    value=value,
                    headers=tuple(headers),
                    transaction=transaction,
                )
            )
        self._changed.set()
        return list(range(first, len(log)))

    def readable(
        self, tp: TopicPartition, start: int, count: int, *, committed_only: bool
    ) -> tuple[list[Received], int]:
        """Records from an offset on, and the offset after them; without those of open and aborted transactions."""
        log = self.logs[tp]
        end = len(log)
        if committed_only and self._open:
            end = min([end, *(firsts[tp] for firsts in self._open.values() if tp in firsts)])
        chunk = log[start : min(start + count, end)]
        found: list[Received] = [
            record
            for record in chunk
            if not committed_only or record.transaction is None or record.transaction not in self._aborted
        ]
        return found, start + len(chunk)

    def partition_count(self, topic: str) -> int:
        """Partitions of a topic. Raises `TopicMissingError`."""
        found = self.declared.get(topic)
        if found is None:
            raise TopicMissingError(topic=topic)
        return found.partitions

    def group(self, name: str) -> _Group:
        """State of a group."""
        return self.groups.setdefault(name, _Group())

    def leave(self, group: _Group, member: MemoryConsumer) -> None:
        """Take a member out; the others rebalance."""
        if member in group.members:
            group.members.remove(member)
            group.generation += 1
            self._changed.set()

    async def until_changed(self, timeout_s: float) -> None:
        """Wait for a new record, topic or assignment."""
        self._changed.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def until_up(self) -> None:
        """Wait for the end of `go_down`."""
        while self.is_down:
            await self.until_changed(0.1)

    def notify(self) -> None:
        """Let waiting consumers look again."""
        self._changed.set()

    def next_send_failure(self) -> DeliveryError | None:
        """The scripted outcome of this send."""
        return self._send_failures.popleft() if self._send_failures else None

    def commit(self, group: _Group, offsets: Mapping[TopicPartition, int]) -> bool:
        """Set committed offsets, unless a fault is scripted."""
        if self.is_down:
            return False
        if self._commit_failures:
            self._commit_failures -= 1
            return False
        group.committed.update(offsets)
        return True

    def register(self, transactional_id: str) -> int:
        """A new epoch for a transactional id: older producers are fenced, their open transactions aborted."""
        self._epochs[transactional_id] = self._epochs.get(transactional_id, -1) + 1
        return self._epochs[transactional_id]

    def is_fenced(self, transactional_id: str, epoch: int) -> bool:
        """Whether a newer producer has the id."""
        return self._epochs[transactional_id] != epoch

    def begin(self) -> int:
        """Number of a new transaction."""
        self._transactions += 1
        self._open[self._transactions] = {}
        return self._transactions

    def end_transaction(self, transaction: int, *, committed: bool) -> None:
        """Let read_committed consumers pass, over the records or past them."""
        del self._open[transaction]
        if not committed:
            self._aborted.add(transaction)
        self._changed.set()


class MemoryProducer:
    """See `Producer`."""

    retried_count = 0

    def __init__(self, bus: MemoryBus, transactional_id: str | None) -> None:
        self._bus = bus
        self._transactional_id = transactional_id
        self._epoch = 0
        self._transaction: int | None = None
        self._offsets: list[tuple[str, dict[TopicPartition, int]]] = []

    async def start(self) -> None:
        if self._bus.is_down:
            raise BrokerUnreachableError(bootstrap="memory", waited_s=0.0)
        if self._transactional_id is not None:
            self._epoch = self._bus.register(self._transactional_id)

    async def stop(self) -> None:
        if self._transaction is not None:
            await self.abort()

    @property
    def unreachable_since_s(self) -> float | None:
        return self._bus.down_since_s

    def known_partition_count(self, topic: str) -> int | None:
        return self._bus.partition_count(topic)

    async def partition_count(self, topic: str) -> int:
        return self._bus.partition_count(topic)

    async def send(self, topic: str, partition: int, records: Sequence[Outgoing]) -> Sequence[int]:
        return all_or_raise(await self.send_each(topic, partition, records))

    async def send_each(self, topic: str, partition: int, records: Sequence[Outgoing]) -> Sequence[int | DeliveryError]:
        if self._bus.is_down:
            await self._bus.until_up()
        outcomes: list[int | DeliveryError] = []
        failure = self._bus.next_send_failure()
        if failure is not None:
            if failure.retriable:
                return [failure] * len(records)
            outcomes.append(failure)  # the first record's; its neighbours are written
        self._check()
        for record in records[len(outcomes) :]:
            try:
                outcomes += self._bus.append(topic, partition, [record], transaction=self._transaction)
            except RecordTooLargeError as error:
                outcomes.append(error)
        await asyncio.sleep(0)  # as on a network, the acknowledgement never comes within the same turn
        return outcomes

    def _check(self) -> None:
        if self._transactional_id is not None and self._bus.is_fenced(self._transactional_id, self._epoch):
            raise ProducerFencedError(transactional_id=self._transactional_id)

    async def begin(self) -> None:
        assert self._transactional_id is not None
        self._check()
        self._transaction = self._bus.begin()
        self._offsets = []

    async def send_offsets(self, offsets: Mapping[TopicPartition, int], group: str) -> None:
        self._check()
        self._offsets.append((group, dict(offsets)))

    async def commit(self) -> None:
        self._check()
        assert self._transaction is not None
        transaction, self._transaction = self._transaction, None
        for group, offsets in self._offsets:
            self._bus.group(group).committed.update(offsets)
        self._bus.end_transaction(transaction, committed=True)
        await asyncio.sleep(0)

    async def abort(self) -> None:
        assert self._transaction is not None
        transaction, self._transaction = self._transaction, None
        self._bus.end_transaction(transaction, committed=False)
        await asyncio.sleep(0)


class MemoryConsumer:
    """See `Consumer`."""

    def __init__(
        self,
        bus: MemoryBus,
        *,
        group: str | None,
        topics: Sequence[str],
        start: Start,
        listener: RebalanceListener | None,
        read_committed: bool,
    ) -> None:
        self._bus = bus
        self._group = bus.group(group) if group is not None else None
        self.topics = tuple(topics)
        self._start = start
        self._listener = listener
        self._read_committed = read_committed
        self._positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self.generation = 0
        self.broken = False
        self._assigning: asyncio.Task[None] | None = None

    @property
    def unreachable_since_s(self) -> float | None:
        return self._bus.down_since_s

    async def start(self) -> None:
        if self._bus.is_down:
            raise BrokerUnreachableError(bootstrap="memory", waited_s=0.0)
        for topic in self.topics:
            self._bus.partition_count(topic)
        if self._group is None:
            self._positions = {tp: self._first(tp) for topic in self.topics for tp in self._bus.end(topic)}
            return
        self._group.members.append(self)
        self._group.generation += 1
        self._bus.notify()

    async def stop(self) -> None:
        if self._assigning is not None:
            await asyncio.gather(self._assigning, return_exceptions=True)
        if self._group is not None:
            self._bus.leave(self._group, self)
        self._positions = {}

    def _first(self, tp: TopicPartition) -> int:
        if self._group is not None and tp in self._group.committed:
            return self._group.committed[tp]
        return 0 if self._start == "earliest" else self._bus.end(tp.topic)[tp]

    def _share(self) -> frozenset[TopicPartition]:
        """Round robin over the members that want the topic."""
        assert self._group is not None
        share: set[TopicPartition] = set()
        for topic in sorted({topic for member in self._group.members for topic in member.topics}):
            members = [member for member in self._group.members if topic in member.topics]
            share.update(tp for index, tp in enumerate(self._bus.end(topic)) if members[index % len(members)] is self)
        return frozenset(share)

    async def _rebalance(self) -> None:
        """Eager, as aiokafka does: give everything up, then take the new share when all others have given up theirs."""
        assert self._group is not None
        if self._assigning is not None:
            await self._assigning
        generation = self._group.generation
        if self._listener is not None:
            await self._listener.revoked(frozenset(self._positions))
        self._positions = {}
        self.generation = generation
        self._bus.notify()
        while any(member.generation != generation for member in self._group.members):
            if self._group.generation != generation or self.broken:
                return
            await self._bus.until_changed(0.05)
        self._positions = {tp: self._first(tp) for tp in self._share()}
        if self._listener is not None:
            # As with aiokafka, records may be handed out while the listener is still at it.
            self._assigning = asyncio.get_running_loop().create_task(
                self._told(self._listener, frozenset(self._positions))
            )
            await asyncio.sleep(0)

    async def _told(self, listener: RebalanceListener, partitions: frozenset[TopicPartition]) -> None:
        await listener.assigned(partitions)

    async def poll(self, *, timeout_s: float, max_records: int) -> Mapping[TopicPartition, Sequence[Received]]:
        self._check()
        if self._bus.is_down:
            await self._bus.until_changed(timeout_s)
            return {}
        if self._group is not None and self.generation != self._group.generation:
            await self._rebalance()
            self._check()
        found = self._read(max_records)
        if not found:
            await self._bus.until_changed(timeout_s)
            self._check()
            if not self._bus.is_down and (self._group is None or self.generation == self._group.generation):
                found = self._read(max_records)
        return found

    def _check(self) -> None:
        if self.broken:
            raise TransportBrokenError("thrown out of the group")

    def _read(self, max_records: int) -> dict[TopicPartition, Sequence[Received]]:
        found: dict[TopicPartition, Sequence[Received]] = {}
        left = max_records
        for tp, position in list(self._positions.items()):
            if tp in self._paused or left <= 0:
                continue
            records, after = self._bus.readable(tp, position, left, committed_only=self._read_committed)
            if after > position:
                # What was read goes to the end, so that a busy partition does not starve the others.
                del self._positions[tp]
                self._positions[tp] = after
            if records:
                found[tp] = records
                left -= len(records)
        return found

    def pause(self, partition: TopicPartition) -> None:
        self._paused.add(partition)

    def resume(self, partition: TopicPartition) -> None:
        self._paused.discard(partition)
        self._bus.notify()

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._positions)

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> bool:
        assert self._group is not None
        if self not in self._group.members or any(tp not in self._positions for tp in offsets):
            return False
        done = self._bus.commit(self._group, offsets)
        await asyncio.sleep(0)
        return done

    async def committed(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        assert self._group is not None
        await asyncio.sleep(0)
        return {tp: self._group.committed[tp] for tp in partitions if tp in self._group.committed}

    async def positions(self) -> Mapping[TopicPartition, int]:
        return dict(self._positions)

    async def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._positions.update({tp: offset for tp, offset in offsets.items() if tp in self._positions})
        self._bus.notify()


class MemoryAdmin:
    """See `Admin`."""

    def __init__(self, bus: MemoryBus) -> None:
        self._bus = bus

    async def start(self) -> None: ...
    async def stop(self) -> None: ...

    async def cluster(self) -> ClusterDescription:
        broker = BrokerDescription(node_id=0, host="memory", port=0, rack=None, is_fenced=False)
        return ClusterDescription(cluster_id="", controller_id=0, voter_ids=(0,), brokers=(broker,))

    async def create(self, topics: Sequence[Topic], *, replication_factor: int | None = None) -> frozenset[str]:
        if replication_factor not in {None, 1}:
            message = f"a replication factor of {replication_factor} cannot be had: the memory bus is one broker"
            raise ConfigurationError(message)
        return frozenset(topic.name for topic in topics if self._bus.create(topic))

    async def describe(self, topics: Sequence[str] | None = None) -> Mapping[str, TopicDescription]:
        return {
            name: TopicDescription(
                name=name,
                partition_count=topic.partitions,
                replication_factor=1,
                leaders=dict.fromkeys(range(topic.partitions), 0),
                replicas=dict.fromkeys(range(topic.partitions), (0,)),
                isr=dict.fromkeys(range(topic.partitions), (0,)),
            )
            for name, topic in sorted(self._bus.declared.items())
            if topics is None or name in topics
        }

    async def start_offsets(self, topics: Sequence[str]) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(await self.end_offsets(topics), 0)

    async def end_offsets(self, topics: Sequence[str]) -> Mapping[TopicPartition, int]:
        for topic in topics:
            self._bus.partition_count(topic)
        return {tp: end for topic in topics for tp, end in self._bus.end(topic).items()}

    async def offsets_at(self, topics: Sequence[str], moment: datetime) -> Mapping[TopicPartition, int]:
        moment_ms = int(moment.timestamp() * 1000)
        return {
            tp: next((record.offset for record in self._bus.logs[tp] if record.timestamp >= moment_ms), end)
            for tp, end in (await self.end_offsets(topics)).items()
        }

    async def committed(self, group: str) -> Mapping[TopicPartition, int]:
        return self._bus.committed(group)

    async def groups(self) -> Sequence[str]:
        return sorted(self._bus.groups)
