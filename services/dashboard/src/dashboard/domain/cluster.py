"""The cluster as the page shows it: brokers, leaders of each topic, and replicas that are not in sync."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

NO_LEADER: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """One broker.

    Attributes:
        address: HOST:PORT; empty for a broker that only lists of replicas name.
        is_up: Whether it serves: registered and not fenced.
        is_controller: Whether it is the active controller.
        leads: Partitions that it leads.
        replicas: Partitions that are assigned to it.
        in_sync: Partitions among them whose in-sync replicas include it.
    """

    node_id: int
    address: str
    rack: str | None
    is_up: bool
    is_controller: bool
    leads: int
    replicas: int
    in_sync: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One partition: its leader (`NO_LEADER` without one), its assigned and its in-sync replicas."""

    topic: str
    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]

    @property
    def is_offline(self) -> bool:
        """Whether nobody can write or read it."""
        return self.leader == NO_LEADER

    @property
    def is_under_replicated(self) -> bool:
        """Whether a replica is not in sync."""
        return len(self.isr) < len(self.replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster at one moment.

    Attributes:
        controller_id: None if there is no active controller, or if the cluster does not name it.
        brokers: By node id.
        partitions: By topic and number.
    """

    cluster_id: str
    controller_id: int | None
    brokers: tuple[Broker, ...]
    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """A broker as the cluster lists it."""

    node_id: int
    address: str
    rack: str | None
    is_fenced: bool


def cluster_of(
    *, cluster_id: str, controller_id: int | None, registered: Iterable[Registered], partitions: Iterable[Partition]
) -> Cluster:
    """Return the cluster. A broker that is not listed but has replicas counts as one that is down."""
    ordered = sorted(partitions, key=lambda found: (found.topic, found.partition))
    listed = {broker.node_id: broker for broker in registered}
    named = {node_id for found in ordered for node_id in found.replicas}
    brokers = []
    for node_id in sorted(named | set(listed)):
        known = listed.get(node_id)
        brokers.append(
            Broker(
                node_id=node_id,
                address="" if known is None else known.address,
                rack=None if known is None else known.rack,
                is_up=known is not None and not known.is_fenced,
                is_controller=node_id == controller_id,
                leads=sum(found.leader == node_id for found in ordered),
                replicas=sum(node_id in found.replicas for found in ordered),
                in_sync=sum(node_id in found.isr for found in ordered),
            )
        )
    return Cluster(
        cluster_id=cluster_id, controller_id=controller_id, brokers=tuple(brokers), partitions=tuple(ordered)
    )


def topics_of(cluster: Cluster) -> Mapping[str, Sequence[Partition]]:
    """Return the partitions of each topic."""
    found: dict[str, list[Partition]] = {}
    for partition in cluster.partitions:
        found.setdefault(partition.topic, []).append(partition)
    return found


__all__ = ["NO_LEADER", "Broker", "Cluster", "Partition", "Registered", "cluster_of", "topics_of"]
