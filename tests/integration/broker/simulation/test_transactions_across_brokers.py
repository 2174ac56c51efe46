"""Transactions whose coordinator and partitions lie on different brokers, and what happens when one of them dies."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from hailbus_broker.client import RefusedError, UnreachableError
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.describe_groups_request import DescribeGroupsRequest
from hailbus_broker.protocol.definitions.describe_transactions_request import DescribeTransactionsRequest
from hailbus_broker.protocol.definitions.find_coordinator_request import FindCoordinatorRequest
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.runtime.coordinator import partition_for
from hailbus_broker.testing.simulation import ClusterWorld, simulated, simulated_cluster

from tests.integration.broker.simulation.test_requests_across_brokers import ask, ask_until, create, until_all_know
from tests.integration.broker.simulation.transactional_client import TransactionalClient

SETTINGS = {"transaction.state.log.num.partitions": "3"}
PARTITIONS = (0, 1, 2)
ID = "trips"


async def prepared(cluster: ClusterWorld, *, is_v2: bool) -> TransactionalClient:
    """Return a producer with its identity, and a topic whose partitions have three leaders."""
    assert await create(1, "rides") is ErrorCode.NONE
    await until_all_know(cluster, "rides")
    assert {state.leader for state in cluster.image.topics["rides"].partitions} == {1, 2, 3}
    client = TransactionalClient(cluster.bootstrap, ID, is_v2=is_v2)
    await client.init()
    return client


def coordinator_of(cluster: ClusterWorld) -> str:
    count = len(cluster.image.topics["__transaction_state"].partitions)
    return f"leader of __transaction_state-{partition_for(ID, count)}"


async def committed(cluster: ClusterWorld, count: int) -> dict[int, list[bytes]]:
    """Read so many committed records of each partition, and see that no more can be read."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=cluster.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        found: dict[int, list[bytes]] = {index: [] for index in PARTITIONS}
        places = [TopicPartition("rides", index) for index in PARTITIONS]
        consumer.assign(places)
        async with asyncio.timeout(60):
            while any(len(values) < count for values in found.values()):
                for place, records in (await consumer.getmany(timeout_ms=100)).items():
                    found[place.partition] += [record.value for record in records]
        ends = await consumer.end_offsets(places)
        for place in places:
            while await consumer.position(place) < ends[place]:
                for one, records in (await consumer.getmany(timeout_ms=100)).items():
                    found[one.partition] += [record.value for record in records]
    finally:
        await consumer.stop()
    return found


@simulated(seeds=range(2))
@pytest.mark.parametrize("is_v2", [False, True])
async def test_a_transaction_spans_all_brokers(is_v2: bool) -> None:
    async with simulated_cluster(SETTINGS) as cluster:
        client = await prepared(cluster, is_v2=is_v2)
        for number in range(6):
            for index in PARTITIONS:
                await client.produce("rides", index, b"%d" % number)
            await client.end(is_commit=number % 2 == 0)
        assert await committed(cluster, 3) == {index: [b"0", b"2", b"4"] for index in PARTITIONS}
        client.close()


@simulated(seeds=range(2))
async def test_a_partition_that_is_not_part_of_a_transaction_takes_none_of_its_records() -> None:
    async with simulated_cluster(SETTINGS) as cluster:
        client = await prepared(cluster, is_v2=False)
        await client.produce("rides", 0, b"part")
        for index in (1, 2):
            with pytest.raises(RefusedError) as caught:
                await client.produce("rides", index, b"not part", adds=False)
            assert caught.value.code is ErrorCode.TRANSACTION_ABORTABLE
        client.close()


@simulated(seeds=range(6))
@pytest.mark.parametrize("is_v2", [False, True])
async def test_the_coordinator_dies_while_a_transaction_ends(is_v2: bool) -> None:
    async with simulated_cluster(SETTINGS) as cluster:
        client = await prepared(cluster, is_v2=is_v2)
        for number in range(2):
            for index in PARTITIONS:
                await client.produce("rides", index, b"%d" % number)
            ending = asyncio.create_task(client.end(is_commit=True))
            if number == 0:
                await cluster.advance(0.001 + cluster.world.seed * 0.003)
                victim = cluster.kill(coordinator_of(cluster)).node_id
            await ending
        assert await committed(cluster, 2) == {index: [b"0", b"1"] for index in PARTITIONS}
        await cluster.start(victim)
        assert await committed(cluster, 2) == {index: [b"0", b"1"] for index in PARTITIONS}
        client.close()


@simulated(seeds=range(3))
async def test_the_coordinator_dies_between_the_decision_and_the_markers() -> None:
    async with simulated_cluster(SETTINGS) as cluster:
        client = await prepared(cluster, is_v2=True)
        for index in PARTITIONS:
            await client.produce("rides", index, b"0")
        coordinator = cluster.node(coordinator_of(cluster))
        sender = coordinator.broker.transactions
        sent = asyncio.Event()
        # The markers go nowhere: as if the coordinator died just before they are sent.
        for driver in sender.drivers.values():
            driver._marker_sender = Nowhere(sent)  # type: ignore[misc]  # a fault, put in by hand
        ending = asyncio.create_task(client.end(is_commit=True))
        await sent.wait()
        coordinator.kill()
        await ending
        assert await committed(cluster, 1) == {index: [b"0"] for index in PARTITIONS}
        client.close()


class Nowhere:
    """Sends no markers."""

    def __init__(self, sent: asyncio.Event) -> None:
        self._sent = sent

    def send(self, *_: object) -> None:
        self._sent.set()


@simulated(seeds=range(4))
@pytest.mark.parametrize("is_v2", [False, True])
async def test_a_leader_dies_before_its_marker_comes(is_v2: bool) -> None:
    async with simulated_cluster(SETTINGS) as cluster:
        client = await prepared(cluster, is_v2=is_v2)
        for index in PARTITIONS:
            await client.produce("rides", index, b"0")
        ending = asyncio.create_task(client.end(is_commit=True))
        await cluster.advance(cluster.world.seed * 0.002)
        cluster.kill("leader of rides-1")
        await ending
        for index in PARTITIONS:
            await client.produce("rides", index, b"1")
        await client.end(is_commit=False)
        for index in PARTITIONS:
            await client.produce("rides", index, b"2")
        await client.end(is_commit=True)
        assert await committed(cluster, 2) == {index: [b"0", b"2"] for index in PARTITIONS}
        client.close()


@simulated(seeds=range(2))
async def test_an_end_that_comes_late_does_not_end_the_next_transaction() -> None:
    async with simulated_cluster(SETTINGS) as cluster:
        client = await prepared(cluster, is_v2=True)
        await client.produce("rides", 0, b"0")
        late = client.end_request(is_commit=False)
        await client.end(is_commit=True)
        await client.produce("rides", 0, b"1")
        try:
            answer = await client.send_end(late)
        except UnreachableError:
            answer = None
        assert answer is None or answer.error_code in {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE}
        for index in (1, 2):
            for value in (b"0", b"1"):
                await client.produce("rides", index, value)
        await client.end(is_commit=True)
        assert await committed(cluster, 2) == {index: [b"0", b"1"] for index in PARTITIONS}
        client.close()


async def groups_elsewhere(client: TransactionalClient) -> list[str]:
    """Return a group for each broker that is not the coordinator of the transactional id."""
    own = await client.coordinator()
    found: dict[str, str] = {}
    async with asyncio.timeout(60):
        while len(found) < 2:
            for name in (f"group{number}" for number in range(20)):
                try:
                    address = await client.coordinator(name)
                except UnreachableError:
                    await asyncio.sleep(0.1)  # the topic of the groups is being created
                    continue
                if address != own:
                    found.setdefault(address, name)
    return list(found.values())


async def offset_of(cluster: ClusterWorld, group: str) -> int | None:
    consumer = AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap, group_id=group, enable_auto_commit=False)
    await consumer.start()
    try:
        found: int | None = await consumer.committed(TopicPartition("rides", 0))
        return found
    finally:
        await consumer.stop()


@simulated(seeds=range(3))
@pytest.mark.parametrize("is_v2", [False, True])
async def test_offsets_are_part_of_a_transaction_whose_coordinator_is_elsewhere(is_v2: bool) -> None:
    async with simulated_cluster({**SETTINGS, "offsets.topic.num.partitions": "6"}) as cluster:
        client = await prepared(cluster, is_v2=is_v2)
        groups = await groups_elsewhere(client)
        for offset, is_commit in ((1, True), (2, False), (3, True)):
            for group in groups:
                await client.commit_offset(group, "rides", offset)
            if offset == 3:
                ending = asyncio.create_task(client.end(is_commit=is_commit))
                await cluster.advance(cluster.world.seed * 0.004)
                cluster.kill(coordinator_of(cluster))
                await ending
            else:
                await client.end(is_commit=is_commit)
            expected = 1 if offset < 3 else 3
            assert [await offset_of(cluster, group) for group in groups] == [expected] * 2
        client.close()


@simulated(seeds=range(2))
async def test_offsets_of_no_transaction_are_refused() -> None:
    async with simulated_cluster({**SETTINGS, "offsets.topic.num.partitions": "6"}) as cluster:
        client = await prepared(cluster, is_v2=False)
        for group in await groups_elsewhere(client):
            with pytest.raises(RefusedError) as caught:
                await client.commit_offset(group, "rides", 1, adds=False)
            assert caught.value.code is ErrorCode.INVALID_TXN_STATE
        client.close()


@simulated(seeds=range(3))
async def test_a_broker_that_has_not_heard_of_the_coordinators_refuses_nothing_for_good() -> None:
    """It leads a partition of the transaction, and its metadata is older than the topic of the coordinators."""
    settings = {"transaction.state.log.replication.factor": "1", "transaction.state.log.min.isr": "1"}
    async with simulated_cluster({**SETTINGS, **settings}) as cluster:
        assert await create(1, "rides") is ErrorCode.NONE
        await until_all_know(cluster, "rides")
        active = cluster.node("active controller").node_id
        behind, index = next(
            (one.leader, one.index) for one in cluster.image.topics["rides"].partitions if one.leader != active
        )
        others = [node_id for node_id in cluster.nodes if node_id != behind]
        cluster.partition({behind}, others)
        await ask_until(
            active,
            ApiKey.FIND_COORDINATOR,
            6,
            FindCoordinatorRequest(key_type=1, coordinator_keys=[ID]),
            has_coordinator,
        )
        bootstrap = ",".join(f"node{node_id}:9092" for node_id in others)
        for number in range(50):
            client = TransactionalClient(bootstrap, f"{ID}-{number}", is_v2=False)
            if not (await client.coordinator()).startswith(f"node{behind}:"):
                break
        await client.init()
        assert "__transaction_state" not in cluster.node(behind).core.image.topics
        described = await ask(
            behind,
            ApiKey.DESCRIBE_TRANSACTIONS,
            0,
            DescribeTransactionsRequest(transactional_ids=[client.transactional_id]),
        )
        assert described.transaction_states[0].error_code == ErrorCode.NOT_COORDINATOR
        described = await ask(behind, ApiKey.DESCRIBE_GROUPS, 6, DescribeGroupsRequest(groups=["g"]))
        assert described.groups[0].error_code == ErrorCode.NOT_COORDINATOR
        producing = asyncio.create_task(client.produce("rides", index, b"v"))
        await cluster.until(lambda: ErrorCode.NOT_ENOUGH_REPLICAS in client.refusals)
        cluster.heal()
        await producing
        await client.end(is_commit=True)
        client.close()


def has_coordinator(answer: Any) -> bool:
    return not answer.coordinators[0].error_code
