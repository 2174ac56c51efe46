"""A cluster that goes through kills, cuts and stops; prints the trace's digest and how many lines it has."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hailbus_broker.client import Client
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.create_topics_request import CreatableTopic, CreateTopicsRequest
from hailbus_broker.testing.simulation import World, simulated_cluster

if TYPE_CHECKING:
    from hailbus_broker.testing.simulation import ClusterWorld


async def main(world: World) -> int:
    async with simulated_cluster() as cluster:
        client = Client("node1:9092", "test", timeout_s=30)
        topic = CreatableTopic(name="rides", num_partitions=6, replication_factor=3)
        response = await client.ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic], timeout_ms=20_000))
        assert response.topics[0].error_code == 0, response
        client.close()
        await cluster.until(lambda: "rides" in cluster.image.topics)
        cluster.kill("leader of rides-0")
        await cluster.until(lambda: sum(broker.fenced for broker in cluster.image.brokers.values()) == 1)
        await cluster.start()
        cluster.partition({1}, {2, 3})
        await cluster.advance(12)
        cluster.heal()
        await cluster.until(lambda: _is_whole(cluster))
        await cluster.stop("active controller")
        await cluster.start()
        await cluster.until(lambda: _is_whole(cluster))
    return world.trace.line_count


def _is_whole(cluster: ClusterWorld) -> bool:
    return cluster.active is not None and not any(broker.fenced for broker in cluster.image.brokers.values())


def run(seed: int) -> tuple[str, int]:
    world = World(seed)
    count = world.run(main)
    return world.trace.digest, count


if __name__ == "__main__":
    print(*run(int(sys.argv[1])))
