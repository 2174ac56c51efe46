"""A node whose disk was replaced: its replicas are in another directory than the metadata says (KIP-858)."""

from __future__ import annotations

from uuid import UUID

from hailbus_broker.log import LogDirectory, MetaProperties
from hailbus_broker.testing.simulation import ClusterWorld, simulated, simulated_cluster
from hailbus_broker.testing.simulation.cluster import CLUSTER_ID

from tests.integration.broker.simulation.test_replication import (
    TOPIC,
    create_topic,
    producing,
    until_in_sync,
    values_of,
)

DATA = "/data"
NEW_DIRECTORY = UUID(int=7 << 64 | 2 << 62, version=4)


def replace_disk(cluster: ClusterWorld, node_id: int) -> None:
    """Give a node that does not run an empty directory with an id of its own."""
    node = cluster.nodes[node_id]
    node.process = cluster.world.process(node.name)

    def format_again() -> None:
        node.disk.remove_tree(DATA)
        meta = MetaProperties(cluster_id=CLUSTER_ID, node_id=node_id, directory_id=NEW_DIRECTORY)
        LogDirectory.open(node.disk, DATA, new_meta=meta)

    node.process.call(format_again)


@simulated(seeds=range(2))
async def test_a_broker_with_a_replaced_disk_joins_the_isr_and_can_lead() -> None:
    async with simulated_cluster({"min.insync.replicas": "2"}) as cluster:
        await create_topic(cluster)
        async with producing(cluster) as clients:
            await clients.more()
            cluster.kill(3)
            replace_disk(cluster, 3)
            await cluster.start(3)
            await until_in_sync(cluster, 1, 2, 3)
            assert cluster.state_of(TOPIC).directory(3) == NEW_DIRECTORY.bytes
            await clients.more()
        # Node 3 can lead: its directory is the one that the metadata names.
        await cluster.stop(1)
        await until_in_sync(cluster, 2, 3)
        await cluster.stop(2)
        assert cluster.state_of(TOPIC).leader == 3
        assert values_of(cluster.nodes[3])[: len(clients.acknowledged)] == clients.acknowledged
