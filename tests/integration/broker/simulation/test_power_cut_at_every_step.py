"""A power cut at each change of the disk: topics, records, transactions, offsets, compaction, a deletion."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from hailbus_broker.testing.simulation import BrokerWorld, World, simulated_broker
from hailbus_broker.testing.simulation.patching import patched

SETTINGS = {"log.segment.bytes": "1048576", "log.cleaner.backoff.ms": "500", "log.cleaner.min.cleanable.ratio": "0.01"}
STRIDE = 5
"""Each test takes one step in so many; together they take all."""


@dataclass
class Promises:
    """What the broker has acknowledged."""

    topics: set[str] = field(default_factory=set)
    records: dict[str, list[bytes]] = field(default_factory=dict)
    aborted: list[bytes] = field(default_factory=list)
    offset: int = 0
    deleted: set[str] = field(default_factory=set)
    is_done: bool = False


async def work(bootstrap: str, promises: Promises) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    compacted = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"}
    for topic, configs in (("rides", {}), ("accounts", compacted), ("old", {})):
        await admin.create_topics([NewTopic(topic, 1, 1, topic_configs=configs)])
        promises.topics.add(topic)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer:
        for number in range(4):
            for topic in ("rides", "accounts", "old"):
                value = b"%s %d" % (topic.encode(), number)
                await producer.send_and_wait(topic, value, key=b"key")
                promises.records.setdefault(topic, []).append(value)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="till") as producer:
        for number in range(4):
            await producer.begin_transaction()
            value = b"transaction %d" % number
            await producer.send_and_wait("rides", value)
            if number % 2:
                promises.aborted.append(value)
                await producer.abort_transaction()
            else:
                await producer.send_offsets_to_transaction({TopicPartition("rides", 0): number + 1}, "readers")
                await producer.commit_transaction()
                promises.records["rides"].append(value)
                promises.offset = number + 1
    await admin.delete_topics(["old"])
    promises.deleted.add("old")
    await asyncio.sleep(2)
    await admin.close()
    promises.is_done = True


async def in_time(awaitable: Awaitable[Any]) -> Any:
    async with asyncio.timeout(60):
        return await awaitable


async def check(simulation: BrokerWorld, promises: Promises) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=simulation.bootstrap)
    await in_time(admin.start())
    topics = set(await admin.list_topics())
    await admin.close()
    assert topics >= promises.topics - {"old"}
    assert not topics & promises.deleted
    consumer = AIOKafkaConsumer(
        bootstrap_servers=simulation.bootstrap,
        group_id="readers",
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await in_time(consumer.start())
    for topic in sorted(promises.records.keys() & topics):
        partition = TopicPartition(topic, 0)
        if topic == "rides":
            assert (await in_time(consumer.committed(partition)) or 0) >= promises.offset
        consumer.assign([partition])
        await in_time(consumer.seek_to_beginning(partition))
        seen: list[bytes] = []
        for _ in range(4):
            for batch in (await consumer.getmany(timeout_ms=500)).values():
                seen.extend(record.value for record in batch)
        promised = promises.records[topic]
        if topic == "accounts":
            assert promised[-1] in seen  # earlier values of the key may be compacted
            assert seen == sorted(seen)
        else:
            assert [value for value in seen if value in promised] == promised
            assert len(seen) == len(set(seen))
        assert not set(seen) & set(promises.aborted)
    await consumer.stop()
    async with AIOKafkaProducer(bootstrap_servers=simulation.bootstrap, transactional_id="till") as producer:
        await producer.begin_transaction()
        await in_time(producer.send_and_wait("new", b"progress"))
        await in_time(producer.commit_transaction())


async def scenario(world: World, crash_at_step: int | None) -> int:
    """Return how many changes the disk has seen, 0 if the crash never came."""
    async with simulated_broker(SETTINGS) as simulation:
        disk = simulation.broker.disk
        disk.crash_at_step = crash_at_step
        promises = Promises()
        client = world.process("client")
        client.start(work(simulation.bootstrap, promises))
        while simulation.broker.process.is_alive and not promises.is_done:
            await simulation.advance(0.1)
        if crash_at_step is None:
            assert promises.is_done
        elif promises.is_done:
            return 0
        step_count = disk.step_count
        client.kill()
        await simulation.restart()
        await check(simulation, promises)
        return step_count


@pytest.mark.parametrize("first", range(STRIDE))
def test_nothing_acknowledged_is_lost(first: int) -> None:
    with patched():
        last = World(first).run(partial(scenario, crash_at_step=None))
        crash_count = 0
        for step in range(first + STRIDE, last, STRIDE):
            world = World(first)
            try:
                crash_count += bool(world.run(partial(scenario, crash_at_step=step)))
            except BaseException as error:
                error.add_note(f"seed {first}, power cut at step {step} of {last}")
                raise
        assert crash_count > 20
