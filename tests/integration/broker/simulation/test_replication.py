"""Three brokers hold the same records: what was acknowledged with acks=all survives whatever happens to one of them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError
from hailbus_broker.log import Isolation
from hailbus_broker.protocol.definitions.alter_partition_reassignments_request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from hailbus_broker.records import iterate_batches, iterate_records
from hailbus_broker.runtime.replica import FollowerReplica, HostedReplica, LeaderReplica, RemoteReplica
from hailbus_broker.testing.simulation import ClusterWorld, simulated, simulated_cluster

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator

    from hailbus_broker.testing.simulation.cluster import SimulatedNode

TOPIC = "rides"
SETTINGS = {"min.insync.replicas": "2", "replica.lag.time.max.ms": "3000"}


async def create_topic(cluster: ClusterWorld, name: str = TOPIC) -> None:
    """Have the active controller decide; the request of a client is another test's."""
    await cluster.until(lambda: cluster.active is not None)
    active = cluster.node("active controller")

    async def create() -> None:
        core = active.core
        decision = core.controller.create_topic(name, partition_count=1, replication_factor=3)
        await core.metadata.write(decision.records)

    await active.run(create())
    running = [node for node in cluster.nodes.values() if node.is_up]
    await cluster.until(lambda: all(name in node.core.image.topics for node in running))


class Producing:
    """Sends numbered values one after another, each until it is acknowledged."""

    def __init__(self, cluster: ClusterWorld) -> None:
        self.cluster = cluster
        self.acknowledged: list[bytes] = []
        self.is_over = False

    async def run(self) -> None:
        while not self.is_over:
            async with AIOKafkaProducer(
                bootstrap_servers=self.cluster.bootstrap,
                enable_idempotence=True,
                request_timeout_ms=5_000,
                retry_backoff_ms=50,
                metadata_max_age_ms=1_000,
            ) as producer:
                with suppress(KafkaError):  # the outcome is unknown: another producer sends the value again
                    await self.send(producer)

    async def send(self, producer: AIOKafkaProducer) -> None:
        while not self.is_over:
            value = str(len(self.acknowledged)).encode()
            await producer.send_and_wait(TOPIC, value)
            self.acknowledged.append(value)
            await asyncio.sleep(0.05)

    async def more(self, count: int = 20) -> None:
        """Wait until more records are acknowledged."""
        wanted = len(self.acknowledged) + count
        await self.cluster.until(lambda: len(self.acknowledged) >= wanted, timeout_s=120)


@asynccontextmanager
async def producing(cluster: ClusterWorld) -> AsyncIterator[Producing]:
    made = Producing(cluster)
    task = asyncio.create_task(made.run())
    yield made
    made.is_over = True
    async with asyncio.timeout(120):
        await task


def replica_of(node: SimulatedNode) -> HostedReplica:
    replica = node.broker.replicas.topics[TOPIC][0]
    assert isinstance(replica, HostedReplica)
    return replica


def values_of(node: SimulatedNode, end_offset: int | None = None) -> list[bytes]:
    """Read what a node has in its log, up to an offset, or to its end."""
    log = replica_of(node).log
    end = log.log_end_offset if end_offset is None else end_offset

    def read() -> list[bytes]:
        found, offset = [], log.log_start_offset
        while offset < end:
            data = log.read(offset, 2**20, isolation=Isolation.LOG_END).to_bytes()
            for batch in iterate_batches(data, whole=False):
                for record in iterate_records(batch):
                    assert record.value is not None
                    found.append(bytes(record.value))
                offset = batch.header.next_offset
        return found[: end - log.log_start_offset]

    return node.process.call(read)


def in_sync(cluster: ClusterWorld) -> list[int]:
    return sorted(cluster.state_of(TOPIC).isr)


async def until_in_sync(cluster: ClusterWorld, *node_ids: int) -> None:
    await cluster.until(lambda: in_sync(cluster) == list(node_ids), timeout_s=120)


async def check_logs(cluster: ClusterWorld, acknowledged: list[bytes]) -> None:
    """All nodes have the same log, with each acknowledged value, in order."""
    nodes = list(cluster.nodes.values())
    await until_in_sync(cluster, *cluster.nodes)
    await cluster.until(lambda: len({replica_of(node).log.log_end_offset for node in nodes}) == 1)
    first, *others = [values_of(node) for node in nodes]
    assert all(other == first for other in others)
    wanted = set(acknowledged)
    assert list(dict.fromkeys(value for value in first if value in wanted)) == acknowledged
    await cluster.until(lambda: len({replica_of(node).log.high_watermark for node in nodes}) == 1)


@simulated(seeds=range(2))
async def test_followers_have_what_was_acknowledged() -> None:
    async with simulated_cluster(SETTINGS) as cluster:
        await create_topic(cluster)
        led = replica_of(cluster.node("leader of rides-0")).log.leader_epochs
        assert led.latest == cluster.state_of(TOPIC).leader_epoch, "before the first record"
        async with producing(cluster) as work:
            await work.more(50)
            for node in cluster.nodes.values():
                assert replica_of(node).log.synced_end_offset >= 50
            roles = sorted(type(replica_of(node)).__name__ for node in cluster.nodes.values())
            assert roles == [FollowerReplica.__name__, FollowerReplica.__name__, LeaderReplica.__name__]
        await check_logs(cluster, work.acknowledged)
        async with AIOKafkaConsumer(
            TOPIC, bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest"
        ) as consumer:
            read = [(await consumer.getone()).value for _ in work.acknowledged]
        assert read == work.acknowledged


@simulated(seeds=range(2))
async def test_a_new_partition_does_not_wait_for_the_fetch_that_is_under_way() -> None:
    async with simulated_cluster({**SETTINGS, "replica.fetch.wait.max.ms": "20000"}) as cluster:
        await create_topic(cluster)
        await cluster.advance(5)
        leader = cluster.state_of(TOPIC).leader
        names = [f"other{number}" for number in range(3)]
        for name in names:
            await create_topic(cluster, name)
        assert leader in {cluster.state_of(name).leader for name in names}
        began_s = cluster.world.loop.now_s
        async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all") as producer:
            for name in names:
                await producer.send_and_wait(name, b"value")
        assert cluster.world.loop.now_s - began_s < 2


@simulated(seeds=range(2))
async def test_nothing_is_lost_when_the_leader_is_killed() -> None:
    async with simulated_cluster(SETTINGS) as cluster:
        await create_topic(cluster)
        async with producing(cluster) as work:
            await work.more()
            victim = cluster.kill("leader of rides-0")
            await work.more()
            assert cluster.state_of(TOPIC).leader != victim.node_id
            assert victim.node_id not in in_sync(cluster)
            await cluster.start(victim.node_id)
            await until_in_sync(cluster, 1, 2, 3)
            await work.more()
        await check_logs(cluster, work.acknowledged)


@simulated(seeds=range(2))
async def test_nothing_is_lost_when_the_leader_loses_power() -> None:
    async with simulated_cluster(SETTINGS) as cluster:
        await create_topic(cluster)
        async with producing(cluster) as work:
            await work.more()
            victim = cluster.kill("leader of rides-0", power_cut=True)
            await work.more()
            await cluster.start(victim.node_id)
            await work.more()
        await check_logs(cluster, work.acknowledged)


@simulated(seeds=range(2))
async def test_the_isr_shrinks_and_grows_with_a_follower_that_is_cut_off() -> None:
    async with simulated_cluster(SETTINGS) as cluster:
        await create_topic(cluster)
        async with producing(cluster) as work:
            await work.more()
            leader = cluster.state_of(TOPIC).leader
            follower = next(node_id for node_id in (1, 2, 3) if node_id != leader)
            rest = sorted({1, 2, 3} - {follower})
            cluster.partition({follower}, {*rest, "main"})
            await until_in_sync(cluster, *rest)
            await work.more()
            cluster.heal()
            await until_in_sync(cluster, 1, 2, 3)
            await work.more()
        await check_logs(cluster, work.acknowledged)


@simulated(seeds=range(2))
async def test_a_leader_that_is_cut_off_acknowledges_nothing_and_truncates_when_it_returns() -> None:
    async with simulated_cluster(SETTINGS) as cluster:
        await create_topic(cluster)
        async with producing(cluster) as work:
            await work.more()
            old = cluster.node("leader of rides-0")
            others = {1, 2, 3} - {old.node_id}
            cluster.partition({old.node_id}, others)  # clients reach all
            replica = replica_of(old)
            assert isinstance(replica, LeaderReplica)
            committed = replica.log.high_watermark
            await cluster.until(lambda: cluster.state_of(TOPIC).leader in others, timeout_s=60)
            await work.more()
            assert replica.log.high_watermark <= committed + 1, "what was sent when the cut came may be committed"
            cluster.heal()
            await until_in_sync(cluster, 1, 2, 3)
            await work.more()
        await check_logs(cluster, work.acknowledged)


@simulated(seeds=range(2))
async def test_below_the_minimum_nothing_is_acknowledged_until_a_follower_is_back() -> None:
    async with simulated_cluster(SETTINGS) as cluster:
        await create_topic(cluster)
        async with producing(cluster) as work:
            await work.more()
            leader = cluster.state_of(TOPIC).leader
            followers = sorted({1, 2, 3} - {leader})
            cluster.kill(followers[0])
            await work.more()
            before = len(work.acknowledged)
            cluster.kill(followers[1])
            await cluster.advance(20)
            assert len(work.acknowledged) <= before + 1, "two of three have to store a record"
            await cluster.start()
            await work.more()
        await check_logs(cluster, work.acknowledged)


@simulated(seeds=range(2))
async def test_all_brokers_lose_power_at_once() -> None:
    async with simulated_cluster(SETTINGS) as cluster:
        await create_topic(cluster)
        async with producing(cluster) as work:
            await work.more()
            for node_id in (1, 2, 3):
                cluster.kill(node_id, power_cut=True)
            await cluster.advance(1)
            await cluster.start()
            await work.more()
        await check_logs(cluster, work.acknowledged)


async def reassign(cluster: ClusterWorld, *node_ids: int) -> None:
    """Move the partition to other brokers, and wait until they have it."""
    active = cluster.node("active controller")
    change = ReassignablePartition(partition_index=0, replicas=list(node_ids))
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=TOPIC, partitions=[change])])

    async def decide() -> None:
        await active.core.metadata.write(active.core.controller.alter_reassignments(request).records)

    await active.run(decide())
    await cluster.until(lambda: cluster.state_of(TOPIC).replicas == node_ids, timeout_s=120)


@simulated(seeds=range(2))
async def test_a_partition_moves_to_another_broker_while_records_are_written() -> None:
    async with simulated_cluster(SETTINGS, nodes=4) as cluster:
        await create_topic(cluster)
        before = cluster.state_of(TOPIC).replicas
        (spare,) = {1, 2, 3, 4} - set(before)
        async with producing(cluster) as work:
            await work.more()
            await reassign(cluster, spare, *before[1:])
            assert set(in_sync(cluster)) == {spare, *before[1:]}
            left = cluster.nodes[before[0]].broker.replicas
            await cluster.until(lambda: isinstance(left.topics[TOPIC][0], RemoteReplica))
            await work.more()
            await reassign(cluster, *before)
            await work.more()
            await cluster.until(lambda: set(in_sync(cluster)) == set(before))
        del cluster.nodes[spare]
        await check_logs(cluster, work.acknowledged)


@simulated(seeds=range(2))
async def test_nothing_is_lost_under_random_faults() -> None:
    async with simulated_cluster(SETTINGS) as cluster:
        rng = cluster.world.rng("faults")
        await create_topic(cluster)
        async with producing(cluster) as work:
            await work.more(5)
            for _ in range(8):
                await _disturb(cluster, rng)
                await cluster.advance(rng.choice([0.2, 1, 4, 12]))
            cluster.heal()
            await cluster.start()
            await work.more(5)
        await check_logs(cluster, work.acknowledged)


async def _disturb(cluster: ClusterWorld, rng: random.Random) -> None:
    """Let one thing happen to the cluster, or to the network between its nodes."""
    node_id = rng.choice([1, 2, 3])
    match rng.choice(["kill", "power cut", "start", "start", "cut", "cut from one", "heal", "stop"]):
        case "kill":
            cluster.kill(node_id)
        case "power cut":
            cluster.kill(node_id, power_cut=True)
        case "stop" if cluster.nodes[node_id].is_up:
            await cluster.stop(node_id)
        case "start":
            cluster.heal()  # a node that starts waits for a controller
            await cluster.start()
        case "cut":
            cluster.partition({node_id}, {1, 2, 3} - {node_id})
        case "cut from one":
            cluster.partition({node_id}, {rng.choice(sorted({1, 2, 3} - {node_id}))})
        case "heal":
            cluster.heal()
