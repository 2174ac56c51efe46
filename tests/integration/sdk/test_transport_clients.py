"""What every client library promises behind the ports, on both brokers: what services build on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

import pytest
from hailbus import (
    ClusterAdmin,
    DeliveryError,
    KafkaBus,
    ProducerFencedError,
    RecordTooLargeError,
    Topic,
    TopicMissingError,
)
from hailbus._transport import Consumer, Outgoing, Producer, Received, TopicPartition
from hailbus._transport.cluster import ClientName
from hailbus._transport.record import Record
from hailbus_broker.testing import ApiKey, Fault, running_broker

Until = Callable[..., Awaitable[None]]


class Cluster(Protocol):
    @property
    def bootstrap(self) -> str: ...


class OwnCluster(Cluster, Protocol):
    def start(self) -> None: ...
    def kill(self) -> None: ...


class Listener:
    """Notes what it is told, and does what the test wants in between."""

    def __init__(self) -> None:
        self.held: set[TopicPartition] = set()
        self.revocations = 0
        self.on_revoked: Callable[[frozenset[TopicPartition]], Awaitable[object]] | None = None

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        if self.on_revoked is not None and partitions:
            await self.on_revoked(partitions)
        self.revocations += bool(partitions)
        self.held -= partitions

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.held |= partitions


class Around:
    """A cluster, a topic of the test's own, and clients that are stopped when the test ends."""

    def __init__(self, bus: KafkaBus, topic: Topic, stack: AsyncExitStack) -> None:
        self.bus = bus
        self.topic = topic.name
        self.group = f"group-{topic.name}"
        self._stack = stack

    def at(self, partition: int) -> TopicPartition:
        return TopicPartition(self.topic, partition)

    async def producer(self, transactional_id: str | None = None) -> Producer:
        made = self.bus.producer(client_id="writer", transactional_id=transactional_id)
        await made.start()
        self._stack.push_async_callback(made.stop)
        return made

    async def consumer(
        self, *, listener: Listener | None = None, alone: bool = False, start: Any = "earliest"
    ) -> Consumer:
        made = self.bus.consumer(
            client_id=f"reader-{random.randrange(10**6)}",
            group=None if alone else self.group,
            topics=[self.topic],
            start=start,
            listener=listener,
        )
        await made.start()
        self._stack.push_async_callback(made.stop)
        return made


def numbered(numbers: Sequence[int]) -> list[Outgoing]:
    return [(b"k", str(number).encode(), []) for number in numbers]


@asynccontextmanager
async def around(
    cluster: Cluster,
    client: ClientName,
    *,
    partitions: int = 1,
    config: Mapping[str, str] | None = None,
    **settings: Any,
) -> AsyncIterator[Around]:
    topic = Topic(f"transport-{random.randrange(10**9)}", partitions=partitions, config=config or {})
    async with ClusterAdmin(cluster.bootstrap) as admin:
        await admin.provision([topic])
    common: dict[str, Any] = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 500, "rebalance_timeout_ms": 8000}
    async with AsyncExitStack() as stack:
        yield Around(KafkaBus(bootstrap_servers=cluster.bootstrap, client=client, **common, **settings), topic, stack)


async def read(consumer: Consumer, count: int, *, most: int = 100, seconds: float = 30.0) -> list[Received]:
    found: list[Received] = []
    async with asyncio.timeout(seconds):
        while len(found) < count:
            for records in (await consumer.poll(timeout_s=0.2, max_records=most)).values():
                found += records
    return found


async def nothing_comes(consumer: Consumer) -> None:
    for _ in range(4):
        assert await consumer.poll(timeout_s=0.2, max_records=10) == {}


async def test_a_record_comes_back_as_it_was_written(cluster: Cluster, client: ClientName) -> None:
    records: list[Outgoing] = [
        (b"k", b"v", [("ce_id", b"1"), ("binary", b"\xff\x00"), ("empty", b""), ("ce_id", b"twice")]),
        (None, None, []),
        (b"", b"", []),
        (b"\xff", "é".encode(), [("é", b"x")]),
    ]
    async with around(cluster, client) as here:
        producer = await here.producer()
        assert list(await producer.send(here.topic, 0, records)) == [0, 1, 2, 3]
        found = await read(await here.consumer(), 4)
    assert [(r.key, r.value, list(r.headers)) for r in found] == [(key, value, list(h)) for key, value, h in records]
    assert [(r.topic, r.partition, r.offset, r.timestamp_type) for r in found] == [
        (here.topic, 0, offset, 0) for offset in range(4)
    ]
    assert all(record.timestamp > 1_600_000_000_000 for record in found)
    assert {type(record) for record in found} == {Record}


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
async def test_a_seek_into_a_compressed_batch_reads_on_from_that_record(
    cluster: Cluster, client: ClientName, compression: str
) -> None:
    records: list[Outgoing] = [(b"k", b"%d" % number + b"v" * 500, [("n", b"%d" % number)]) for number in range(100)]
    async with around(cluster, client, compression=compression) as here:
        await (await here.producer()).send(here.topic, 0, records)
        consumer = await here.consumer()
        assert [record.offset for record in await read(consumer, 100)] == list(range(100))
        await consumer.seek({here.at(0): 77})
        found = await read(consumer, 23)
        assert (await consumer.positions())[here.at(0)] == 100
    assert [(r.offset, r.key, r.value, list(r.headers)) for r in found] == [
        (offset, *records[offset]) for offset in range(77, 100)
    ]


async def test_each_record_has_an_outcome_of_its_own(cluster: Cluster, client: ClientName) -> None:
    async with around(cluster, client, max_record_bytes=10_000) as here:
        producer = await here.producer()
        records = numbered(range(3))
        records.insert(1, (None, b"x" * 20_000, []))
        first, second, third, fourth = await producer.send_each(here.topic, 0, records)
        assert [first, third, fourth] == [0, 1, 2]
        assert isinstance(second, RecordTooLargeError)
        assert second.size_bytes > 20_000
        with pytest.raises(RecordTooLargeError):
            await producer.send(here.topic, 0, [(None, b"x" * 20_000, [])])
        assert await producer.send_each(here.topic, 0, []) in ((), [])


@pytest.mark.parametrize("client", ["aiokafka"])  # librdkafka wants the whole transaction aborted
async def test_a_transaction_continues_after_the_broker_has_refused_a_batch(
    cluster: Cluster, client: ClientName
) -> None:
    """The topic takes a few of the records in one batch, and the producer does not know how many."""
    records: list[Outgoing] = [(b"k", b"%03d" % number + b"v" * 250, []) for number in range(30)]
    async with around(cluster, client, config={"max.message.bytes": "2000"}) as here:
        producer = await here.producer(f"refused-{here.topic}")
        for part in (records[:10], records[10:]):
            await producer.begin()
            await producer.send(here.topic, 0, part)
            await producer.commit()
        await producer.begin()
        with pytest.raises(RecordTooLargeError):
            await producer.send(here.topic, 0, [(b"k", b"v" * 3_000, [])])
        await producer.abort()
        await producer.begin()
        await producer.send(here.topic, 0, [(b"k", b"last", [])])
        await producer.commit()
        found = await read(await here.consumer(), 31)
    assert [record.value for record in found] == [*(value for _, value, _ in records), b"last"]


async def test_a_paused_partition_waits_and_loses_nothing(cluster: Cluster, client: ClientName) -> None:
    async with around(cluster, client, partitions=2) as here:
        producer = await here.producer()
        for partition in (0, 1):
            await producer.send(here.topic, partition, numbered(range(300)))
        consumer = await here.consumer()
        found = await read(consumer, 10, most=10)
        consumer.pause(here.at(0))
        others: list[Received] = []
        async with asyncio.timeout(30):
            while len([r for r in (*found, *others) if r.partition == 1]) < 300:
                for records in (await consumer.poll(timeout_s=0.2, max_records=50)).values():
                    others += records
        await nothing_comes(consumer)
        assert {record.partition for record in others} == {1}
        consumer.resume(here.at(0))
        found += others
        found += await read(consumer, 600 - len(found))
    for partition in (0, 1):
        assert [record.offset for record in found if record.partition == partition] == list(range(300))


async def test_a_seek_back_reads_again_and_a_seek_ahead_passes_over(cluster: Cluster, client: ClientName) -> None:
    async with around(cluster, client) as here:
        producer = await here.producer()
        await producer.send(here.topic, 0, numbered(range(100)))
        for consumer in (await here.consumer(), await here.consumer(alone=True)):
            await read(consumer, 10, most=10)
            await consumer.seek({here.at(0): 3})
            found = await read(consumer, 97)
            assert [record.offset for record in found] == list(range(3, 100))
            await consumer.seek({here.at(0): 95})
            assert [record.offset for record in await read(consumer, 5)] == list(range(95, 100))


async def test_offsets_are_committed_for_partitions_that_are_held(cluster: Cluster, client: ClientName) -> None:
    async with around(cluster, client, partitions=2) as here:
        producer = await here.producer()
        await producer.send(here.topic, 0, numbered(range(10)))
        consumer = await here.consumer()
        assert not await consumer.commit({here.at(0): 4})  # it holds nothing yet
        await read(consumer, 10)
        assert consumer.assignment() == {here.at(0), here.at(1)}
        assert await consumer.committed([here.at(0), here.at(1)]) == {}
        assert await consumer.commit({here.at(0): 4})
        assert await consumer.committed([here.at(0), here.at(1)]) == {here.at(0): 4}
        assert not await consumer.commit({TopicPartition("other", 0): 1})
        await consumer.stop()
        assert [record.offset for record in await read(await here.consumer(), 6)] == list(range(4, 10))


async def test_a_group_shares_its_partitions_while_a_member_reads_nothing(
    cluster: Cluster, client: ClientName, until: Until
) -> None:
    """A member whose handlers are busy asks for no records; the others must not wait for it."""
    async with around(cluster, client, partitions=4) as here:
        producer = await here.producer()
        for partition in range(4):
            await producer.send(here.topic, partition, numbered(range(5)))
        first, second = Listener(), Listener()
        one = await here.consumer(listener=first)
        await read(one, 20)
        committed: list[bool] = []

        async def commit(partitions: frozenset[TopicPartition]) -> None:
            committed.append(await one.commit(dict.fromkeys(partitions, 5)))

        first.on_revoked = commit
        two = await here.consumer(listener=second)  # nobody polls `one` from here on

        async def is_shared() -> bool:
            await two.poll(timeout_s=0.1, max_records=1)
            return len(first.held) == 2 and len(second.held) == 2

        await until(is_shared)
        assert first.held | second.held == {here.at(partition) for partition in range(4)}
        assert committed == [True]  # while they were about to go
        await nothing_comes(two)  # all was committed before


async def test_cooperative_members_keep_what_stays_with_them(cluster: Cluster, until: Until) -> None:
    async with around(cluster, "librdkafka", partitions=4, assignor="cooperative-sticky") as here:
        producer = await here.producer()
        first, second = Listener(), Listener()
        one = await here.consumer(listener=first)
        await until(lambda: len(first.held) == 4)
        revoked: list[frozenset[TopicPartition]] = []

        async def note(partitions: frozenset[TopicPartition]) -> None:
            revoked.append(partitions)

        first.on_revoked = note
        two = await here.consumer(listener=second)
        await until(lambda: len(first.held) == 2 and len(second.held) == 2)
        assert revoked == [frozenset(second.held)]  # the others were never given up
        for partition in range(4):
            await producer.send(here.topic, partition, numbered(range(5)))
        found = await asyncio.gather(read(one, 10), read(two, 10))
        assert [{TopicPartition(r.topic, r.partition) for r in records} for records in found] == [
            first.held,
            second.held,
        ]


async def test_a_reader_alone_gets_past_the_markers_of_transactions(
    cluster: Cluster, client: ClientName, until: Until
) -> None:
    async with around(cluster, client) as here:
        writer = await here.producer(f"writer-{here.topic}")
        for number, ends in enumerate((writer.commit, writer.abort, writer.commit)):
            await writer.begin()
            await writer.send(here.topic, 0, numbered([number]))
            await ends()
        consumer = await here.consumer(alone=True)
        assert [record.value for record in await read(consumer, 2)] == [b"0", b"2"]

        async def is_at_the_end() -> bool:
            await consumer.poll(timeout_s=0.1, max_records=10)
            return dict(await consumer.positions()) == {here.at(0): 6}

        await until(is_at_the_end)
        latest = await here.consumer(alone=True, start="latest")
        producer = await here.producer()
        await producer.send(here.topic, 0, numbered([7]))
        assert [record.value for record in await read(latest, 1)] == [b"7"]


async def test_a_transaction_takes_offsets_along_and_an_older_producer_is_fenced(
    cluster: Cluster, client: ClientName
) -> None:
    async with around(cluster, client) as here:
        consumer, alone = await here.consumer(), await here.consumer(alone=True)
        old = await here.producer(f"mover-{here.topic}")
        await old.begin()
        await old.send(here.topic, 0, numbered([1]))
        await old.send_offsets({here.at(0): 1}, here.group)
        await old.commit()
        await old.begin()
        await old.send(here.topic, 0, numbered([2]))
        await old.send_offsets({here.at(0): 3}, here.group)
        await old.abort()
        assert [record.value for record in await read(alone, 1)] == [b"1"]
        assert await consumer.committed([here.at(0)]) == {here.at(0): 1}
        await old.begin()
        await old.send(here.topic, 0, numbered([3]))
        new = await here.producer(f"mover-{here.topic}")
        with pytest.raises(ProducerFencedError, match=f"mover-{here.topic}"):
            await old.commit()
        await new.begin()
        await new.send(here.topic, 0, numbered([4]))
        await new.commit()
        assert [record.value for record in await read(alone, 1)] == [b"4"]


@pytest.mark.slow_with("apache")
async def test_a_client_says_since_when_no_broker_is_there(
    own_cluster: OwnCluster, client: ClientName, until: Until
) -> None:
    loop = asyncio.get_running_loop()
    async with around(own_cluster, client) as here:
        producer, consumer = await here.producer(), await here.consumer()
        await producer.send(here.topic, 0, numbered([1]))
        await read(consumer, 1)
        assert (producer.unreachable_since_s, consumer.unreachable_since_s) == (None, None)
        before = loop.time()
        await asyncio.to_thread(own_cluster.kill)
        sending = asyncio.ensure_future(producer.send(here.topic, 0, numbered([2])))

        async def both_say(*, is_away: bool) -> bool:
            await consumer.poll(timeout_s=0.1, max_records=10)
            moments = [producer.unreachable_since_s, consumer.unreachable_since_s]
            return all((moment is not None) is is_away for moment in moments)

        await until(lambda: both_say(is_away=True))
        assert all(
            moment is not None and before <= moment <= loop.time()
            for moment in (producer.unreachable_since_s, consumer.unreachable_since_s)
        )
        await asyncio.to_thread(own_cluster.start)
        await until(lambda: both_say(is_away=False), seconds=60)
        assert list(await sending) == [1]


async def test_a_topic_that_does_not_exist_is_named(cluster: Cluster, client: ClientName) -> None:
    async with around(cluster, client, request_timeout_ms=3000) as here:
        producer = await here.producer()
        assert await producer.partition_count(here.topic) == 1
        assert producer.known_partition_count(here.topic) == 1
        outcomes = await producer.send_each(here.topic, 0, numbered([1]))
        assert not any(isinstance(outcome, DeliveryError) for outcome in outcomes)


async def test_a_topic_is_not_called_missing_while_the_broker_does_not_answer(client: ClientName) -> None:
    async with running_broker() as broker, around(broker, client, request_timeout_ms=1500) as here:
        producer = await here.producer()
        assert await producer.partition_count(here.topic) == 1
        new = f"{here.topic}-new"
        async with ClusterAdmin(broker.bootstrap) as admin:
            await admin.provision([Topic(new, partitions=1)])
        silence = broker.fail(Fault(api=ApiKey.METADATA, delay_s=60.0, times=1_000))
        # The connection stands, so nothing but the missing answer tells a silent broker from a missing topic.
        with pytest.raises(DeliveryError) as raised:
            await producer.partition_count(new)
        assert silence.hit_count > 0
        assert not isinstance(raised.value, TopicMissingError)
        assert raised.value.retriable
        assert await producer.partition_count(here.topic) == 1  # what was known counts while nobody answers
