"""Groups whose coordinator moves to another broker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.runtime.coordinator import partition_for
from hailbus_broker.testing.simulation import ClusterWorld, DiskFault, simulated, simulated_cluster

from tests.integration.broker.simulation.test_requests_across_brokers import create, until_all_know

if TYPE_CHECKING:
    from collections.abc import Callable

SETTINGS = {"offsets.topic.num.partitions": "3"}
GROUP = "surge"
RECORDS = 30


def coordinator_of(cluster: ClusterWorld) -> str:
    count = len(cluster.image.topics["__consumer_offsets"].partitions)
    return f"leader of __consumer_offsets-{partition_for(GROUP, count)}"


class Member:
    """Reads the records of its partitions and commits after each."""

    def __init__(self, cluster: ClusterWorld, seen: list[int]) -> None:
        self.seen = seen
        self.consumer = AIOKafkaConsumer(
            "rides",
            bootstrap_servers=cluster.bootstrap,
            group_id=GROUP,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=10_000,
            heartbeat_interval_ms=500,
        )

    async def run(self) -> None:
        await self.consumer.start()
        try:
            async for record in self.consumer:
                self.seen.append(int(record.value or b""))
                await self._commit()
        finally:
            await self.consumer.stop()

    async def _commit(self) -> None:
        try:
            await self.consumer.commit()
        except KafkaError:
            return  # a rebalance took the partition: another member reads on from the last commit


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110 looks at other processes
            await asyncio.sleep(0.05)


@simulated(seeds=range(3))
@pytest.mark.parametrize("fault", ["kill", "power cut", "failing disk"])
async def test_the_coordinator_dies_while_members_heartbeat(fault: str) -> None:
    async with simulated_cluster(SETTINGS) as cluster:
        assert await create(1, "rides") is ErrorCode.NONE
        await until_all_know(cluster, "rides")
        seen: list[int] = []
        members = [Member(cluster, seen) for _ in range(2)]
        tasks = [asyncio.create_task(member.run()) for member in members]
        producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all", request_timeout_ms=5_000)
        await producer.start()

        async def write(numbers: range) -> None:
            for number in numbers:
                while True:  # a record may be written twice: members note numbers
                    try:
                        await producer.send_and_wait("rides", b"%d" % number, partition=number % 3)
                    except KafkaError:
                        continue
                    break

        await write(range(RECORDS))
        await until(lambda: set(seen) >= set(range(RECORDS)))
        await until(lambda: all(member.consumer.assignment() for member in members))
        if fault == "failing disk":
            # The broker stops by itself. It would not learn who leads its partitions, and its consumers would wait.
            victim = cluster.node(coordinator_of(cluster))
            victim.disk.faults.append(DiskFault(operation="append", path=""))
        else:
            victim = cluster.kill(coordinator_of(cluster), power_cut=fault == "power cut")
        await write(range(RECORDS, 2 * RECORDS))
        await until(lambda: set(seen) >= set(range(2 * RECORDS)))
        assert not victim.is_up
        victim.disk.faults.clear()
        await cluster.start(victim.node_id)
        await write(range(2 * RECORDS, 3 * RECORDS))
        await until(lambda: set(seen) >= set(range(3 * RECORDS)))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await producer.stop()
        reader = AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap, group_id=GROUP, enable_auto_commit=False)
        await reader.start()
        # Every record that was seen has an offset that outlived the coordinator.
        offsets = [await reader.committed(TopicPartition("rides", index)) for index in range(3)]
        await reader.stop()
        assert sum(offset or 0 for offset in offsets) >= 3 * RECORDS - 3
