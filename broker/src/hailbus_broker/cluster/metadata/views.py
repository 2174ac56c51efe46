"""What a broker asks of the image: which replicas it has, who leads, and where others are reached."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hailbus_broker.cluster.metadata.names import NO_LEADER
from hailbus_broker.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hailbus_broker.cluster.metadata.brokers import BrokerState, ListenerEndpoint
    from hailbus_broker.cluster.metadata.delta import MetadataDelta
    from hailbus_broker.cluster.metadata.image import MetadataImage
    from hailbus_broker.cluster.metadata.topics import PartitionState, TopicState


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalReplica:
    """A partition of which a node has a replica.

    Attributes:
        state: What the partition is now.
        before: What it was; None for a partition that is new, or if the node had no replica of it.
    """

    topic: TopicState
    state: PartitionState
    before: PartitionState | None

    @property
    def is_new(self) -> bool:
        """Whether the node has to make a log."""
        return self.before is None

    @property
    def begins_epoch(self) -> bool:
        """Whether the partition has another leader epoch: a leader begins it, a follower truncates and fetches anew."""
        return self.before is None or self.before.leader_epoch != self.state.leader_epoch


@dataclass(frozen=True, slots=True)
class LocalChanges:
    """What a change of the metadata means for one node. Topics that are gone are in the delta.

    Attributes:
        leads: Partitions that it leads, and that are new to it or have changed.
        follows: Partitions that another node leads, or nobody, and that are new to it or have changed.
        leaves: Partitions of which it is no replica any more.
    """

    leads: list[LocalReplica] = field(default_factory=list)
    follows: list[LocalReplica] = field(default_factory=list)
    leaves: list[tuple[TopicState, PartitionState]] = field(default_factory=list)


def local_changes(delta: MetadataDelta, image: MetadataImage, node_id: int) -> LocalChanges:
    """Return what a delta means for a node; the image has the delta already."""
    changes = LocalChanges()
    for by_topic in (delta.new_partitions, delta.changed_partitions):
        for topic_id, indexes in by_topic.items():
            topic = image.topics_by_id[topic_id]
            for index in indexes:
                state, before = topic.partitions[index], delta.partitions_before[topic_id, index]
                if before is not None and node_id not in before.replicas:
                    before = None
                if node_id in state.replicas:
                    found = LocalReplica(topic=topic, state=state, before=before)
                    (changes.leads if state.leader == node_id else changes.follows).append(found)
                elif before is not None:
                    changes.leaves.append((topic, state))
    return changes


def replicas_of(image: MetadataImage, node_id: int) -> Iterator[tuple[TopicState, PartitionState]]:
    """Return all partitions of which a node has a replica."""
    for topic in image.topics.values():
        for state in topic.partitions:
            if node_id in state.replicas:
                yield topic, state


def alive_brokers(image: MetadataImage, listener: str) -> list[tuple[BrokerState, ListenerEndpoint]]:
    """Return the brokers that are not fenced and have a listener of that name, each with its address, by id."""
    return [
        (broker, endpoint)
        for _, broker in sorted(image.brokers.items())
        if not broker.fenced and (endpoint := broker.endpoint(listener)) is not None
    ]


def leader_of(image: MetadataImage, state: PartitionState, listener: str) -> tuple[int, ErrorCode]:
    """Return the leader as a client of a listener sees it, or -1 and why there is none."""
    broker = image.brokers.get(state.leader)
    if state.leader == NO_LEADER or broker is None or broker.fenced:
        return NO_LEADER, ErrorCode.LEADER_NOT_AVAILABLE
    if broker.endpoint(listener) is None:
        return NO_LEADER, ErrorCode.LISTENER_NOT_FOUND
    return state.leader, ErrorCode.NONE


def offline_replicas(image: MetadataImage, state: PartitionState, listener: str) -> list[int]:
    """Return the replicas that a client of a listener cannot reach, or whose log directory is offline."""
    found = []
    for broker_id in state.replicas:
        broker = image.brokers.get(broker_id)
        if (
            broker is None
            or broker.fenced
            or broker.endpoint(listener) is None
            or not broker.has_online_directory(state.directory(broker_id))
        ):
            found.append(broker_id)
    return found
