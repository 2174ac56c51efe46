"""A cluster as the subject of a campaign."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.client import RefusedError, UnreachableError
from hailbus_broker.cluster.replication.read_replica import RACK_AWARE_SELECTOR
from hailbus_broker.testing.campaign.cluster_operator import ClusterOperator
from hailbus_broker.testing.campaign.invariants import ClusterInvariants
from hailbus_broker.testing.campaign.recorder import LOOSE
from hailbus_broker.testing.campaign.segments import overlapping_segments
from hailbus_broker.testing.campaign.subject import SETTINGS
from hailbus_broker.testing.campaign.writers import create_topic
from hailbus_broker.testing.simulation.cluster import ClusterWorld

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hailbus_broker.client import Client
    from hailbus_broker.testing.campaign.recorder import Recorder
    from hailbus_broker.testing.campaign.scenario import Nodes, PlannedFault, Scenario
    from hailbus_broker.testing.campaign.subject import Clients
    from hailbus_broker.testing.simulation.world import World

AGREEMENT_DEADLINE_S: Final = 60.0
"""How long after the last client has ended the nodes may take until all of them have the same."""
CREATION_ATTEMPTS: Final = 20

CLUSTER_SETTINGS: Final = {
    **SETTINGS,
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
    "controlled.shutdown.enable": "true",
    "leader.imbalance.check.interval.seconds": "4",
    "metadata.log.max.record.bytes.between.snapshots": "6000",
    "offsets.topic.num.partitions": "2",
    "replica.lag.time.max.ms": "2000",
    "transaction.state.log.num.partitions": "2",
    "unclean.leader.election.interval.ms": "1000",
}


class Cluster:
    """Several nodes, each broker or controller or both.

    Args:
        world: Where they run.
        scenario: What happens.
        nodes: Who they are.
        recorder: Gets what must not happen.
        clients: Whom faults hit, too.
    """

    def __init__(self, world: World, scenario: Scenario, nodes: Nodes, recorder: Recorder, clients: Clients) -> None:
        self._nodes: Final = nodes
        self._recorder: Final = recorder
        settings = {
            **CLUSTER_SETTINGS,
            "log.segment.bytes": str(scenario.segment_bytes),
            "min.insync.replicas": str(nodes.min_isr),
            "offsets.topic.replication.factor": str(nodes.factor),
            "transaction.state.log.replication.factor": str(nodes.factor),
            "transaction.state.log.min.isr": str(nodes.min_isr),
        }
        if nodes.racks:
            settings["replica.selector.class"] = RACK_AWARE_SELECTOR
        racks = {node_id: rack for node_id, rack in enumerate(nodes.racks, 1) if rack}
        self.world: Final = ClusterWorld(
            world, dict(enumerate(nodes.roles, 1)), settings, racks, has_dynamic_voters=nodes.has_dynamic_voters
        )
        self._invariants: Final = ClusterInvariants(self.world, recorder, min_isr=nodes.min_isr)
        recorder.when_read = self._invariants.read
        recorder.when_returned = self._invariants.returned
        self._operator: Final = ClusterOperator(self.world, recorder, clients, self._invariants)

    @property
    def bootstrap(self) -> str:
        """See `Subject`."""
        return self.world.bootstrap

    async def start(self) -> None:
        """See `Subject`."""
        for node in self.world.nodes.values():
            node.format()
        if self._nodes.has_dynamic_voters:
            self.world.write_voters()
        await self.world.start()
        self.look()

    async def create_topic(self, client: Client, name: str, partition_count: int, configs: Mapping[str, str]) -> None:
        """See `Subject`. An answer may come late, and the metadata reaches the brokers one after the other."""
        if name == LOOSE:
            configs = {**configs, "unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
        for attempts_left in reversed(range(CREATION_ATTEMPTS)):
            try:
                await create_topic(client, name, partition_count, configs, replication_factor=self._nodes.factor)
            except (UnreachableError, RefusedError):
                if not attempts_left:
                    raise
                await asyncio.sleep(0.2)
            else:
                break
        await self.world.until(
            lambda: all(name in node.core.image.topics for node in self.world.nodes.values() if node.is_up)
        )
        self.look()

    async def apply(self, fault: PlannedFault) -> None:
        """See `Subject`."""
        await self._operator.apply(fault)

    async def heal(self) -> None:
        """See `Subject`."""
        await self._operator.heal()

    def heard(self, event: Mapping[str, Any]) -> None:
        """See `Subject`."""
        self._invariants.heard(event)

    def look(self) -> None:
        """See `Subject`."""
        self._invariants.look()

    def acked(self, topic: str, partition: int) -> None:
        """See `Subject`."""
        self._invariants.acked(topic, partition)

    def ended(self, transactional_id: str, producer_id: int, written: Mapping[tuple[str, int], int]) -> None:
        """See `Subject`."""
        self._invariants.ended(transactional_id, producer_id, written)

    async def check(self) -> None:
        """See `Subject`."""
        end_s = self.world.world.loop.now_s + AGREEMENT_DEADLINE_S
        while True:
            found = list(self._invariants.differences())
            if not found:
                break
            if self.world.world.loop.now_s > end_s:
                for line in found:
                    self._recorder.fail(line)
                break
            await asyncio.sleep(0.5)
        self._invariants.look()
        for node in self.world.nodes.values():
            for line in overlapping_segments(node.disk):
                self._recorder.fail(f"{node.name}: {line}")

    async def cut_power(self) -> None:
        """See `Subject`."""
        await self._operator.cut_power()

    def has_topic(self, name: str) -> bool:
        """See `Subject`."""
        return name in self.world.image.topics
