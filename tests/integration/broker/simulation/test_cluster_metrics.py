"""What the nodes of a cluster tell Prometheus about brokers, controllers and replication."""

from __future__ import annotations

from hailbus_broker.metrics import Metrics
from hailbus_broker.testing.simulation import ClusterWorld, SimulatedNode, simulated, simulated_cluster
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.broker.simulation.test_replication import (
    SETTINGS,
    TOPIC,
    create_topic,
    producing,
    until_in_sync,
)


class Watched:
    """The metrics of every node, by node id; a node that starts anew is watched anew."""

    def __init__(self, cluster: ClusterWorld) -> None:
        self.cluster = cluster
        self.metrics = {node_id: self._of(node) for node_id, node in cluster.nodes.items()}

    @staticmethod
    def _of(node: SimulatedNode) -> Metrics:
        assert node.server is not None
        assert node.server.dispatcher is not None
        return Metrics(node.server.dispatcher, max_partitions=10)

    def all(self, name: str) -> dict[int, float]:
        """Return a metric without labels of the nodes that run and have it."""
        found = {}
        for node_id, metrics in self.metrics.items():
            if not self.cluster.nodes[node_id].process.is_alive:
                continue
            for family in text_string_to_metric_families(metrics.text().decode()):
                for sample in family.samples:
                    if sample.name in {f"hailbus_broker_{name}", name}:
                        found[node_id] = sample.value
        return found


@simulated(seeds=range(2))
async def test_replication_is_measured_where_a_partition_is_led() -> None:
    async with simulated_cluster(SETTINGS) as cluster:
        await create_topic(cluster)
        watched = Watched(cluster)
        leader = cluster.state_of(TOPIC).leader
        others = sorted(set(cluster.nodes) - {leader})
        assert watched.all("leader_partitions") == {leader: 1, others[0]: 0, others[1]: 0}
        assert set(watched.all("under_replicated_partitions").values()) == {0}
        async with producing(cluster) as clients:
            await clients.more()
            cluster.kill(others[0])
            await until_in_sync(cluster, *sorted([leader, others[1]]))
            await cluster.until(lambda: watched.all("under_replicated_partitions") == {leader: 1, others[1]: 0})
            assert watched.all("isr_shrinks_total") == {leader: 1, others[1]: 0}
            assert watched.all("under_min_isr_partitions") == {leader: 0, others[1]: 0}
            assert watched.all("kafka_brokers") == {leader: 2, others[1]: 2}
            assert watched.all("fenced_brokers") == {leader: 1, others[1]: 1}
            await cluster.start(others[0])
            await until_in_sync(cluster, 1, 2, 3)
            await cluster.until(lambda: watched.all("isr_expands_total")[leader] == 1)


@simulated(seeds=range(2))
async def test_below_the_minimum_and_behind() -> None:
    async with simulated_cluster({**SETTINGS, "min.insync.replicas": "3"}) as cluster:
        await create_topic(cluster)
        watched = Watched(cluster)
        leader = cluster.state_of(TOPIC).leader
        other = next(node_id for node_id in cluster.nodes if node_id != leader)
        cluster.kill(other)
        await cluster.until(lambda: watched.all("under_min_isr_partitions")[leader] == 1)
        assert watched.all("replica_lag_records_max")[leader] == 0


@simulated(seeds=range(2))
async def test_one_controller_is_active_and_controllers_alone_have_metrics() -> None:
    roles = ["controller", "controller", "controller", "broker"]
    async with simulated_cluster(roles=roles) as cluster:
        watched = Watched(cluster)
        active = cluster.node("active controller").node_id
        assert watched.all("active_controller") == {node_id: int(node_id == active) for node_id in cluster.nodes}
        epoch = watched.all("quorum_epoch")[active]
        await cluster.until(lambda: set(watched.all("metadata_lag_records").values()) == {0})
        assert set(watched.all("sync_rounds_total")) == {4}, "what only brokers have"
        cluster.kill(active)
        await cluster.until(lambda: sum(watched.all("active_controller").values()) == 1)
        assert max(watched.all("quorum_epoch").values()) > epoch
        cluster.kill(4)
        await cluster.until(lambda: max(watched.all("fenced_brokers").values()) == 1)


@simulated()
async def test_partitions_without_a_leader_are_counted_by_the_active_controller() -> None:
    async with simulated_cluster(roles=["controller", "broker"]) as cluster:
        await cluster.until(lambda: cluster.active is not None)
        core = cluster.nodes[1].core

        async def create() -> None:
            decision = core.controller.create_topic("alone", partition_count=3, replication_factor=1)
            await core.metadata.write(decision.records)

        await cluster.nodes[1].run(create())
        watched = Watched(cluster)
        assert watched.all("leaderless_partitions") == {1: 0, 2: 0}
        cluster.kill(2)
        await cluster.until(lambda: watched.all("leaderless_partitions") == {1: 3})
