"""What consumers are answered: by the follower in their rack (KIP-392), and by a broker that has lost the lead."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from hailbus_broker.client import Client
from hailbus_broker.cluster.replication.read_replica import RACK_AWARE_SELECTOR
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.create_topics_request import CreatableTopic, CreateTopicsRequest
from hailbus_broker.protocol.definitions.fetch_request import FetchPartition, FetchRequest, FetchTopic
from hailbus_broker.protocol.definitions.produce_request import PartitionProduceData, ProduceRequest, TopicProduceData
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.records import RecordToWrite, build_batch, iterate_batches, iterate_records
from hailbus_broker.runtime.replica import LeaderReplica
from hailbus_broker.testing.simulation import ClusterWorld, simulated, simulated_cluster

if TYPE_CHECKING:
    from hailbus_broker.protocol.schema import Message

TOPIC = "rides"
SELECTOR = {"replica.selector.class": RACK_AWARE_SELECTOR}
RACKS = ("north", "south", "west")
FETCH_VERSION = 12
LONG_MS = 20_000


async def ask(node_id: int, key: ApiKey, version: int, message: Message) -> Any:
    client = Client(f"node{node_id}:9092", "test", timeout_s=40)
    try:
        return await client.ask(key, version, message)
    finally:
        client.close()


async def create(cluster: ClusterWorld) -> int:
    """Create the topic, and return its leader."""
    topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=3)
    answer = await ask(1, ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic], timeout_ms=20_000))
    assert answer.topics[0].error_code == ErrorCode.NONE
    await cluster.until(lambda: all(TOPIC in node.core.image.topics for node in cluster.nodes.values()))
    return cluster.node(f"leader of {TOPIC}-0").node_id


async def produce(leader_id: int, *values: bytes) -> None:
    batch = bytes(build_batch([RecordToWrite(key=None, value=value, timestamp=1) for value in values]))
    data = TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=batch)])
    request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data])
    answer = await ask(leader_id, ApiKey.PRODUCE, 9, request)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE


async def fetch(
    node_id: int, offset: int, *, rack: str = "", version: int = FETCH_VERSION, max_wait_ms: int = 0, epoch: int = -1
) -> Any:
    """Fetch as a consumer, and return what the broker says of the partition."""
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=2**20, current_leader_epoch=epoch)
    request = FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=2**20,
        rack_id=rack,
        topics=[FetchTopic(topic=TOPIC, partitions=[wanted])],
    )
    return (await ask(node_id, ApiKey.FETCH, version, request)).responses[0].partitions[0]


def values_of(answer: Any) -> list[bytes]:
    batches = iterate_batches(memoryview(bytes(answer.records or b"")))
    return [bytes(record.value or b"") for batch in batches for record in iterate_records(batch)]


@simulated(seeds=range(2))
async def test_the_leader_names_the_follower_in_the_consumers_rack() -> None:
    async with simulated_cluster(SELECTOR, racks=RACKS) as cluster:
        leader_id = await create(cluster)
        await produce(leader_id, b"one", b"two")
        for node_id, rack in enumerate(RACKS, 1):
            answer = await fetch(leader_id, 0, rack=rack, max_wait_ms=LONG_MS)
            if node_id == leader_id:
                assert (answer.preferred_read_replica, values_of(answer)) == (-1, [b"one", b"two"])
            else:
                assert (answer.preferred_read_replica, values_of(answer)) == (node_id, [])
                assert (answer.error_code, answer.high_watermark) == (ErrorCode.NONE, 2)
                found = await fetch(node_id, 0, rack=rack, max_wait_ms=LONG_MS)
                assert (found.preferred_read_replica, values_of(found)) == (-1, [b"one", b"two"])
        for rack in ("", "elsewhere"):
            answer = await fetch(leader_id, 0, rack=rack)
            assert (answer.preferred_read_replica, values_of(answer)) == (-1, [b"one", b"two"])


@simulated(seeds=range(2))
async def test_a_reader_of_a_follower_gets_what_is_committed_while_it_waits() -> None:
    async with simulated_cluster(SELECTOR, racks=RACKS) as cluster:
        leader_id = await create(cluster)
        follower_id = leader_id % 3 + 1
        waiting = asyncio.create_task(fetch(follower_id, 0, max_wait_ms=LONG_MS))
        await cluster.advance(seconds=1)
        assert not waiting.done()
        started_s = asyncio.get_running_loop().time()
        await produce(leader_id, b"one")
        assert values_of(await waiting) == [b"one"]
        # The follower does not wait for its next records, or for the end of its fetch, to hear what is committed.
        assert asyncio.get_running_loop().time() - started_s < 0.3


@simulated(seeds=range(2))
async def test_a_fetch_that_waits_at_a_follower_ends_when_it_leads() -> None:
    async with simulated_cluster(SELECTOR, racks=RACKS) as cluster:
        leader_id = await create(cluster)
        others = [node_id for node_id in (1, 2, 3) if node_id != leader_id]
        waiting = [asyncio.create_task(fetch(node_id, 0, max_wait_ms=LONG_MS)) for node_id in others]
        await cluster.advance(seconds=1)
        started_s = asyncio.get_running_loop().time()
        cluster.kill(leader_id)
        answers = await asyncio.gather(*waiting)
        assert asyncio.get_running_loop().time() - started_s < LONG_MS / 2_000
        assert [answer.error_code for answer in answers] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2


@simulated(seeds=range(2))
async def test_without_a_selector_the_leader_serves_every_rack() -> None:
    async with simulated_cluster(racks=RACKS) as cluster:
        leader_id = await create(cluster)
        follower_id = leader_id % 3 + 1
        await produce(leader_id, b"one")
        answer = await fetch(leader_id, 0, rack=RACKS[follower_id - 1])
        assert (answer.preferred_read_replica, values_of(answer)) == (-1, [b"one"])
        # Clients from before KIP-392 do not read from followers, and a stale epoch has an error of its own.
        assert (await fetch(follower_id, 0, version=10)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await fetch(follower_id, 0, epoch=99)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert (await fetch(follower_id, 99)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@simulated(seeds=range(2))
async def test_a_follower_that_is_fenced_is_not_named() -> None:
    async with simulated_cluster(SELECTOR, racks=RACKS) as cluster:
        leader_id = await create(cluster)
        follower_id = leader_id % 3 + 1
        await produce(leader_id, b"one")
        cluster.kill(follower_id)
        await cluster.until(lambda: not cluster.image.brokers[follower_id].is_active)
        await produce(leader_id, b"two")
        answer = await fetch(leader_id, 0, rack=RACKS[follower_id - 1])
        assert (answer.preferred_read_replica, values_of(answer)) == (-1, [b"one", b"two"])


@simulated(seeds=range(3))
async def test_a_consumer_that_is_ahead_of_a_deposed_leader_is_sent_to_the_next_one() -> None:
    async with simulated_cluster() as cluster:
        deposed_id = await create(cluster)
        others = {1, 2, 3} - {deposed_id}
        await produce(deposed_id, b"one")
        # As long as the broker leads for all that it knows, nothing has been read that it does not have.
        assert (await fetch(deposed_id, 2)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        cluster.partition({deposed_id}, others)
        remaining = cluster.nodes[min(others)]
        await cluster.until(lambda: remaining.core.image.topics[TOPIC].partitions[0].leader not in {deposed_id, -1})
        await produce(remaining.core.image.topics[TOPIC].partitions[0].leader, b"two", b"three")
        assert isinstance(cluster.nodes[deposed_id].broker.replicas.topics[TOPIC][0], LeaderReplica), "it was told"
        assert (await fetch(deposed_id, 3)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await fetch(deposed_id, -5)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        cluster.heal()
        await cluster.until(lambda: not remaining.core.image.brokers[deposed_id].fenced)
        leader_id = remaining.core.image.topics[TOPIC].partitions[0].leader
        assert (await fetch(leader_id, 3)).error_code == ErrorCode.NONE
        assert (await fetch(leader_id, 4)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
