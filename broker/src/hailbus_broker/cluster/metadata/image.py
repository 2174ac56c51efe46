"""What the cluster consists of right now: the sum of all metadata records."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from hailbus_broker.protocol.definitions.config_record import ConfigRecord
from hailbus_broker.protocol.definitions.feature_level_record import FeatureLevelRecord
from hailbus_broker.protocol.definitions.no_op_record import NoOpRecord
from hailbus_broker.protocol.definitions.partition_change_record import PartitionChangeRecord
from hailbus_broker.protocol.definitions.partition_record import PartitionRecord
from hailbus_broker.protocol.definitions.producer_ids_record import ProducerIdsRecord
from hailbus_broker.protocol.definitions.register_broker_record import RegisterBrokerRecord
from hailbus_broker.protocol.definitions.remove_topic_record import RemoveTopicRecord
from hailbus_broker.protocol.definitions.topic_record import TopicRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hailbus_broker.protocol.schema import Message, Uuid

GROUP_METADATA_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
NO_LEADER_CHANGE: Final = -2
"""In a PartitionChangeRecord: the leader and its epoch stay."""
INTERNAL_TOPICS: Final = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC})


class ResourceType(IntEnum):
    """What a config belongs to, as in ConfigRecord and DescribeConfigs."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """Who has a partition and who leads it; a change makes another one."""

    index: int
    replicas: list[int]
    isr: list[int]
    leader: int
    leader_epoch: int
    partition_epoch: int
    directories: list[Uuid]


@dataclass(slots=True, kw_only=True)
class TopicState:
    """A topic and its partitions, which are numbered from 0 without gaps."""

    name: str
    topic_id: Uuid
    partitions: list[PartitionState] = field(default_factory=list)

    @property
    def is_internal(self) -> bool:
        """Whether the topic is the broker's own."""
        return self.name in INTERNAL_TOPICS


@dataclass(slots=True, kw_only=True)
class BrokerState:
    """A node as it last registered."""

    node_id: int
    broker_epoch: int
    rack: str | None
    incarnation_id: Uuid
    log_dirs: list[Uuid]


@dataclass(slots=True)
class MetadataDelta:
    """What some records have changed in an image, for those who act on it.

    Attributes:
        removed_topics: Topics that are gone, as they were.
        new_partitions: Indexes by topic id, of topics that are there.
        changed_partitions: Likewise, of partitions whose leader or replicas are others than before.
        configs: Resources whose overrides changed.
        has_new_features: Whether a feature has another level.
    """

    removed_topics: list[TopicState] = field(default_factory=list)
    new_partitions: dict[Uuid, list[int]] = field(default_factory=dict)
    changed_partitions: dict[Uuid, list[int]] = field(default_factory=dict)
    configs: dict[tuple[int, str], None] = field(default_factory=dict)
    has_new_features: bool = False


class MetadataImage:
    """Changes only in `replay`. `version` counts the records, so that what was computed from an image can be cached.

    `partition_count` is that of all topics.
    """

    def __init__(self) -> None:
        self.version = 0
        self.topics: dict[str, TopicState] = {}
        self.topics_by_id: dict[Uuid, TopicState] = {}
        self.partition_count = 0
        self.brokers: dict[int, BrokerState] = {}
        self.features: dict[str, int] = {}
        self.next_producer_id = 0
        self._configs: dict[tuple[int, str], dict[str, str]] = {}

    def configs(self, resource_type: ResourceType, name: str) -> Mapping[str, str]:
        """Overrides of a resource, as text."""
        return self._configs.get((resource_type, name), {})

    def config_resources(self, resource_type: ResourceType) -> list[str]:
        """Names of the resources of a type that have overrides."""
        return sorted(name for kind, name in self._configs if kind == resource_type)

    def all_configs(self) -> list[tuple[ResourceType, str, Mapping[str, str]]]:
        """All overrides: type and name of the resource, and its values."""
        return [(ResourceType(kind), name, values) for (kind, name), values in sorted(self._configs.items())]

    def to_records(self) -> list[Message]:
        """Records that make the same image from nothing, apart from its version."""
        records: list[Message] = [
            FeatureLevelRecord(name=name, feature_level=level) for name, level in sorted(self.features.items())
        ]
        records += [
            RegisterBrokerRecord(
                broker_id=broker.node_id,
                incarnation_id=broker.incarnation_id,
                broker_epoch=broker.broker_epoch,
                fenced=False,
                rack=broker.rack,
                log_dirs=broker.log_dirs,
            )
            for _, broker in sorted(self.brokers.items())
        ]
        for _, topic in sorted(self.topics.items()):
            records.append(TopicRecord(name=topic.name, topic_id=topic.topic_id))
            records += [
                PartitionRecord(
                    partition_id=state.index,
                    topic_id=topic.topic_id,
                    replicas=state.replicas,
                    isr=state.isr,
                    leader=state.leader,
                    leader_epoch=state.leader_epoch,
                    partition_epoch=state.partition_epoch,
                    directories=state.directories,
                )
                for state in topic.partitions
            ]
        records += [
            ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)
            for kind, name, values in self.all_configs()
            for key, value in sorted(values.items())
        ]
        records.append(ProducerIdsRecord(broker_id=-1, next_producer_id=self.next_producer_id))
        return records

    def copy(self) -> MetadataImage:
        """Another image of the same content, which changes by itself."""
        other = MetadataImage()
        other.version = self.version
        other.topics = {
            name: TopicState(name=name, topic_id=topic.topic_id, partitions=list(topic.partitions))
            for name, topic in self.topics.items()
        }
        other.partition_count = self.partition_count
        other.topics_by_id = {topic.topic_id: topic for topic in other.topics.values()}
        other.brokers = dict(self.brokers)
        other.features = dict(self.features)
        other.next_producer_id = self.next_producer_id
        other._configs = {resource: dict(values) for resource, values in self._configs.items()}
        return other

    def apply(self, records: Iterable[Message]) -> MetadataDelta:
        """Take records in, and say what they have changed."""
        delta = MetadataDelta()
        for record in records:
            match record:
                case PartitionRecord():
                    delta.new_partitions.setdefault(record.topic_id, []).append(record.partition_id)
                case PartitionChangeRecord():
                    changed = delta.changed_partitions.setdefault(record.topic_id, [])
                    if record.partition_id not in changed:
                        changed.append(record.partition_id)
                case RemoveTopicRecord():
                    delta.new_partitions.pop(record.topic_id, None)
                    delta.changed_partitions.pop(record.topic_id, None)
                    delta.removed_topics.append(self.topics_by_id[record.topic_id])
                case ConfigRecord():
                    delta.configs[record.resource_type, record.resource_name] = None
                case FeatureLevelRecord():
                    delta.has_new_features = True
                case _:
                    pass
            self.replay(record)
        return delta

    def replay(self, record: Message) -> None:
        """Take one record in."""
        self.version += 1
        match record:
            case TopicRecord():
                topic = TopicState(name=record.name, topic_id=record.topic_id)
                self.topics[record.name] = topic
                self.topics_by_id[record.topic_id] = topic
            case PartitionRecord():
                topic = self.topics_by_id[record.topic_id]
                assert record.partition_id == len(topic.partitions), (record.partition_id, len(topic.partitions))
                self.partition_count += 1
                topic.partitions.append(
                    PartitionState(
                        index=record.partition_id,
                        replicas=record.replicas,
                        isr=record.isr,
                        leader=record.leader,
                        leader_epoch=record.leader_epoch,
                        partition_epoch=record.partition_epoch,
                        directories=record.directories,
                    )
                )
            case PartitionChangeRecord():
                partitions = self.topics_by_id[record.topic_id].partitions
                partition = partitions[record.partition_id]
                has_election = record.leader != NO_LEADER_CHANGE
                partitions[record.partition_id] = replace(
                    partition,
                    partition_epoch=partition.partition_epoch + 1,
                    isr=partition.isr if record.isr is None else record.isr,
                    replicas=partition.replicas if record.replicas is None else record.replicas,
                    leader=record.leader if has_election else partition.leader,
                    leader_epoch=partition.leader_epoch + has_election,
                )
            case RemoveTopicRecord():
                topic = self.topics_by_id.pop(record.topic_id)
                self.partition_count -= len(topic.partitions)
                del self.topics[topic.name]
                self._configs.pop((ResourceType.TOPIC, topic.name), None)
            case ConfigRecord():
                values = self._configs.setdefault((record.resource_type, record.resource_name), {})
                if record.value is None:
                    values.pop(record.name, None)
                else:
                    values[record.name] = record.value
                if not values:
                    del self._configs[record.resource_type, record.resource_name]
            case FeatureLevelRecord():
                if record.feature_level:
                    self.features[record.name] = record.feature_level
                else:
                    self.features.pop(record.name, None)
            case ProducerIdsRecord():
                self.next_producer_id = record.next_producer_id
            case RegisterBrokerRecord():
                self.brokers[record.broker_id] = BrokerState(
                    node_id=record.broker_id,
                    broker_epoch=record.broker_epoch,
                    rack=record.rack,
                    incarnation_id=record.incarnation_id,
                    log_dirs=record.log_dirs,
                )
            case NoOpRecord():
                pass
            case _:
                raise AssertionError(f"no meaning for {type(record).__name__}")
