"""What some records have changed in an image, for everything that acts on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hailbus_broker.cluster.metadata.brokers import BrokerState, ControllerState
    from hailbus_broker.cluster.metadata.topics import PartitionState, TopicState
    from hailbus_broker.protocol.schema import Uuid


@dataclass(slots=True)
class MetadataDelta:
    """The difference between an image and what it was before.

    Attributes:
        removed_topics: Topics that are gone, as they were.
        new_partitions: Indexes by topic id, of topics that are there.
        changed_partitions: Indexes by topic id, of partitions that were there before and have another state.
        partitions_before: States before the change, by topic id and index; None for new partitions.
        configs: Resources whose overrides changed.
        has_new_features: Whether a feature has another level.
        brokers_before: States before the change, of the brokers that changed; None for new ones.
        controllers_before: States before the change, of the controllers that changed; None for new ones.
    """

    removed_topics: list[TopicState] = field(default_factory=list)
    new_partitions: dict[Uuid, list[int]] = field(default_factory=dict)
    changed_partitions: dict[Uuid, list[int]] = field(default_factory=dict)
    partitions_before: dict[tuple[Uuid, int], PartitionState | None] = field(default_factory=dict)
    configs: dict[tuple[int, str], None] = field(default_factory=dict)
    has_new_features: bool = False
    brokers_before: dict[int, BrokerState | None] = field(default_factory=dict)
    controllers_before: dict[int, ControllerState | None] = field(default_factory=dict)

    def note_new_partition(self, topic_id: Uuid, index: int) -> None:
        """Note a partition that did not exist before."""
        self.new_partitions.setdefault(topic_id, []).append(index)
        self.partitions_before[topic_id, index] = None

    def note_change(self, topic_id: Uuid, before: PartitionState) -> None:
        """Note a change of a partition. A partition that is new to this delta stays new."""
        key = (topic_id, before.index)
        if key not in self.partitions_before:
            self.partitions_before[key] = before
            self.changed_partitions.setdefault(topic_id, []).append(before.index)

    def note_removed_topic(self, topic: TopicState) -> None:
        """Note a topic that is gone. One that this delta has created was never there."""
        new = self.new_partitions.pop(topic.topic_id, [])
        changed = self.changed_partitions.pop(topic.topic_id, [])
        for index in (*new, *changed):
            del self.partitions_before[topic.topic_id, index]
        self.removed_topics.append(topic)
