"""When a process without HTTP counts as back: not while only its predecessor is in the group."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from aiokafka import AIOKafkaConsumer
from hailbus import ClusterAdmin, KafkaBus, Topic
from hailbus_broker.testing.broker import running_broker
from hailbus_demo.services import GroupProbe

TOPIC = Topic("rides", partitions=2)


async def until(asked: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + 30
    while not await asked():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def member(bootstrap: str, instance: str) -> AIOKafkaConsumer:
    """A member that, like one that is killed, does not leave its group when it stops, because it is static."""
    consumer = AIOKafkaConsumer(
        TOPIC.name, bootstrap_servers=bootstrap, group_id="surge", group_instance_id=instance, session_timeout_ms=60_000
    )
    await consumer.start()
    return consumer


async def test_a_killed_process_is_not_back_before_its_successor_consumes() -> None:
    async with running_broker() as broker:
        bus = KafkaBus(bootstrap_servers=broker.bootstrap)
        async with ClusterAdmin(bus) as admin:
            await admin.provision([TOPIC])
        probe = GroupProbe(bus, "surge")
        assert not await probe.ready()
        first = await member(broker.bootstrap, "surge")
        await until(probe.ready)
        await first.stop()
        await probe.before_restart()
        assert not await probe.ready()
        second = await member(broker.bootstrap, "surge")
        await until(probe.ready)
        await second.stop()


@pytest.mark.parametrize("kills", [1, 2])
async def test_nor_if_the_broker_was_away_when_it_was_started_again(kills: int) -> None:
    async with running_broker() as broker:
        bus = KafkaBus(bootstrap_servers=broker.bootstrap, connect_timeout_s=0.1)
        away = KafkaBus(bootstrap_servers="127.0.0.1:9", connect_timeout_s=0.1)
        async with ClusterAdmin(bus) as admin:
            await admin.provision([TOPIC])
        probe = GroupProbe(bus, "surge")
        for _ in range(kills):
            process = await member(broker.bootstrap, "surge")
            await until(probe.ready)
            await process.stop()
            probe._bus = away
            await probe.before_restart()
            assert not await probe.ready()
            probe._bus = bus
            assert not await probe.ready()
