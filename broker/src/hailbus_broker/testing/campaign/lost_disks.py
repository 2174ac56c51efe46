"""Decides when a broker may lose its disk without any record that was promised to survive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hailbus_broker.runtime.replica import LeaderReplica
from hailbus_broker.testing.campaign.recorder import LOOSE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hailbus_broker.cluster.metadata.image import PartitionState
    from hailbus_broker.testing.campaign.invariants import ClusterInvariants
    from hailbus_broker.testing.simulation.cluster import ClusterWorld, SimulatedNode


class DiskLosses:
    """Answers for which brokers others have everything that is committed.

    Every other fault keeps what was synced, and each in-sync replica has synced what is committed. So a record is safe
    from one lost disk while another replica is in sync, and as long as nobody believes that the lost replica still is.
    A static voter never loses its disk: it would forget its vote, and metadata that a majority needs it for.

    Args:
        cluster: The nodes.
        invariants: Know the committed metadata.
    """

    def __init__(self, cluster: ClusterWorld, invariants: ClusterInvariants) -> None:
        self._cluster: Final = cluster
        self._invariants: Final = invariants

    def candidates(self) -> list[SimulatedNode]:
        """Return the brokers that are no voters."""
        return [node for node in self._cluster.nodes.values() if not node.is_controller]

    def may_strike(self, node: SimulatedNode) -> bool:
        """Whether a broker that serves may lose its disk now, if nothing else happens until it has left the ISRs.

        Until then the controller may elect it, or let the last of the others leave an ISR.
        """
        if not self._knows_all() or not all(other.is_up for other in self._cluster.nodes.values()):
            return False
        if any(broker.fenced for broker in self._invariants.image.brokers.values()):
            return False
        for state in self._hosted(node):
            if len(state.isr) == 1 or set(state.isr) != set(state.replicas) or state.is_reassigning:
                return False
        leaders = (replica for replica in node.broker.replicas.hosted() if isinstance(replica, LeaderReplica))
        return not any(leader.followers is not None and leader.followers.in_sync.has_proposal for leader in leaders)

    def may_strike_outside(self, node: SimulatedNode) -> bool:
        """Whether a broker that is down may lose its disk now: it is fenced, so it joins no ISR before it is back."""
        image = self._invariants.image
        return (
            not node.process.is_alive and self._knows_all() and image.brokers[node.node_id].fenced and self.is_out(node)
        )

    def is_out(self, node: SimulatedNode) -> bool:
        """Whether a broker has left the ISRs of all partitions, and each of them has others."""
        self._invariants.look()
        return all(state.isr and node.node_id not in state.isr for state in self._hosted(node))

    def _knows_all(self) -> bool:
        """Take in what is committed; without an active controller more may be committed than any node knows."""
        self._invariants.look()
        return self._cluster.active is not None

    def _hosted(self, node: SimulatedNode) -> Iterator[PartitionState]:
        for topic in self._invariants.image.topics_by_id.values():
            if topic.name != LOOSE:
                yield from (state for state in topic.partitions if node.node_id in state.replicas)
