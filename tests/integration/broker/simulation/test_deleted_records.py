"""DeleteRecords on three brokers: records that were reported as deleted stay deleted under every later leader."""

from __future__ import annotations

import asyncio
from typing import Any

from hailbus_broker.client import Client
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.delete_records_request import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from hailbus_broker.protocol.definitions.delete_topics_request import DeleteTopicsRequest
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.testing.simulation import ClusterWorld, simulated, simulated_cluster

from tests.integration.broker.simulation.test_replication import (
    SETTINGS,
    TOPIC,
    create_topic,
    producing,
    replica_of,
    until_in_sync,
)

LONG_LAG = {**SETTINGS, "replica.lag.time.max.ms": "30000"}


async def delete(cluster: ClusterWorld, before_offset: int, *, timeout_s: float) -> Any:
    """Have the leader delete records, and return its result."""
    partition = DeleteRecordsPartition(partition_index=0, offset=before_offset)
    topic = DeleteRecordsTopic(name=TOPIC, partitions=[partition])
    client = Client(f"{cluster.node(f'leader of {TOPIC}-0').name}:9092", "test", timeout_s=60)
    try:
        request = DeleteRecordsRequest(topics=[topic], timeout_ms=int(timeout_s * 1_000))
        response = await client.ask(ApiKey.DELETE_RECORDS, 2, request)
    finally:
        client.close()
    return response.topics[0].partitions[0]


def log_starts(cluster: ClusterWorld) -> dict[int, int]:
    return {node_id: replica_of(node).log.log_start_offset for node_id, node in cluster.nodes.items()}


async def write(cluster: ClusterWorld) -> None:
    await create_topic(cluster)
    async with producing(cluster) as clients:
        await clients.more(10)
    await until_in_sync(cluster, 1, 2, 3)


@simulated(seeds=range(3))
async def test_deleted_records_do_not_come_back_with_another_leader() -> None:
    async with simulated_cluster(SETTINGS) as cluster:
        await write(cluster)
        result = await delete(cluster, 7, timeout_s=30)
        assert (result.error_code, result.low_watermark) == (ErrorCode.NONE, 7)
        assert log_starts(cluster) == {1: 7, 2: 7, 3: 7}
        for node_id in cluster.nodes:
            cluster.kill(node_id, power_cut=True)
        cluster.heal()
        await asyncio.gather(*(node.start() for node in cluster.nodes.values()))
        await until_in_sync(cluster, 1, 2, 3)
        assert log_starts(cluster) == {1: 7, 2: 7, 3: 7}


@simulated(seeds=range(2))
async def test_a_follower_that_is_cut_off_is_waited_for_until_its_broker_is_fenced() -> None:
    async with simulated_cluster(LONG_LAG) as cluster:
        await write(cluster)
        leader = cluster.state_of(TOPIC).leader
        others = [node_id for node_id in cluster.nodes if node_id != leader]
        cluster.partition({others[0]}, {leader, others[1]})
        result = await delete(cluster, 4, timeout_s=3)
        assert result.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert result.low_watermark < 4
        result = await delete(cluster, 5, timeout_s=40)
        assert (result.error_code, result.low_watermark) == (ErrorCode.NONE, 5)
        assert cluster.image.brokers[others[0]].fenced
        cluster.heal()
        await until_in_sync(cluster, 1, 2, 3)
        await cluster.until(lambda: log_starts(cluster) == {1: 5, 2: 5, 3: 5})


@simulated()
async def test_a_leader_that_loses_its_place_does_not_answer_for_the_next_one() -> None:
    async with simulated_cluster(LONG_LAG) as cluster:
        await write(cluster)
        leader = cluster.state_of(TOPIC).leader
        others = [node_id for node_id in cluster.nodes if node_id != leader]
        cluster.partition({leader}, set(others))
        task = asyncio.create_task(delete(cluster, 4, timeout_s=60))
        await cluster.until(lambda: cluster.state_of(TOPIC).leader in others)
        cluster.heal()
        result = await task
        assert (result.error_code, result.low_watermark) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


@simulated(seeds=range(2))
async def test_a_topic_has_none_of_the_offsets_of_a_deleted_one_that_had_its_name() -> None:
    """A node that is killed before it has written another checkpoint."""
    async with simulated_cluster(SETTINGS) as cluster:
        await write(cluster)
        assert (await delete(cluster, 7, timeout_s=30)).error_code == ErrorCode.NONE
        client = Client(f"{cluster.node(f'leader of {TOPIC}-0').name}:9092", "test", timeout_s=60)
        await client.ask(ApiKey.DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=[TOPIC], timeout_ms=10_000))
        client.close()
        await cluster.until(lambda: all(TOPIC not in node.core.image.topics for node in cluster.nodes.values()))
        await write(cluster)
        for node_id in cluster.nodes:
            cluster.kill(node_id)
        await asyncio.gather(*(node.start() for node in cluster.nodes.values()))
        await until_in_sync(cluster, 1, 2, 3)
        assert log_starts(cluster) == {1: 0, 2: 0, 3: 0}
