"""Groups whose coordinator moves to another broker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError
from hailbus_broker.client import Client, RefusedError
from hailbus_broker.cluster.metadata.names import NO_LEADER
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.find_coordinator_request import FindCoordinatorRequest
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.runtime.coordinator import partition_for
from hailbus_broker.testing.campaign.groups import commit_offsets, committed_offsets
from hailbus_broker.testing.simulation import ClusterWorld, DiskFault, simulated, simulated_cluster

from tests.integration.broker.simulation.test_requests_across_brokers import (
    PORT,
    ask_until,
    create,
    until_all_know,
)

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
@pytest.mark.parametrize("power_cut", [False, True])
async def test_the_coordinator_dies_while_members_heartbeat(power_cut: bool) -> None:
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
        victim = cluster.kill(coordinator_of(cluster), power_cut=power_cut).node_id
        await write(range(RECORDS, 2 * RECORDS))
        await until(lambda: set(seen) >= set(range(2 * RECORDS)))
        await cluster.start(victim)
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


async def commit(node_id: int, offset: int) -> ErrorCode:
    """Commit an offset at a broker, and return the error code of the response."""
    client = Client(f"node{node_id}:{PORT}", "test", timeout_s=40)
    try:
        await commit_offsets(client, GROUP, {0: offset})
    except RefusedError as error:
        return error.code
    else:
        return ErrorCode.NONE
    finally:
        client.close()


async def commit_when_loaded(node_id: int, offset: int) -> None:
    """Commit an offset at a broker as soon as it coordinates the group."""
    async with asyncio.timeout(60):
        while True:
            if not await commit(node_id, offset):
                return
            await asyncio.sleep(0.1)


async def committed(node_id: int) -> int | ErrorCode:
    """Return the group's committed offset as a broker says, or why it does not."""
    client = Client(f"node{node_id}:{PORT}", "test", timeout_s=40)
    try:
        return (await committed_offsets(client, GROUP, [0]))[0]
    except RefusedError as error:
        return error.code
    finally:
        client.close()


async def fail_disk_of_coordinator(cluster: ClusterWorld) -> int:
    """Commit offset 1, fail the disk of the group's coordinator at offset 2, and return its node id."""
    assert await create(1, "rides") is ErrorCode.NONE
    await until_all_know(cluster, "rides")
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP])
    await ask_until(1, ApiKey.FIND_COORDINATOR, 6, request, lambda answer: not answer.coordinators[0].error_code)
    failed = cluster.node(f"coordinator of group {GROUP}")
    await commit_when_loaded(failed.node_id, 1)
    failed.disk.faults.append(DiskFault(operation="append", path="__consumer_offsets"))
    assert await commit(failed.node_id, 2)
    assert failed.core.failure is not None
    return failed.node_id


@simulated(seeds=range(3))
async def test_a_coordinator_whose_disk_failed_does_not_return_offsets_that_another_broker_has_replaced() -> None:
    """The failed broker stays reachable, and does not learn that another broker leads."""
    async with simulated_cluster() as cluster:
        failed = await fail_disk_of_coordinator(cluster)
        await cluster.until(lambda: cluster.state_of("__consumer_offsets").leader not in {failed, NO_LEADER})
        other = cluster.state_of("__consumer_offsets").leader
        await commit_when_loaded(other, 3)
        assert await committed(other) == 3
        assert await committed(failed) is ErrorCode.NOT_COORDINATOR


@simulated(seeds=range(2))
async def test_committed_offsets_that_no_other_broker_has_stay_readable_when_the_disk_fails() -> None:
    async with simulated_cluster({"offsets.topic.replication.factor": "1"}) as cluster:
        assert await committed(await fail_disk_of_coordinator(cluster)) == 1
