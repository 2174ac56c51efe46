"""What the cluster consists of right now: the sum of all metadata records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hailbus_broker.cluster.metadata.brokers import Brokers, BrokerState, ControllerState, ListenerEndpoint
from hailbus_broker.cluster.metadata.configs import Configs
from hailbus_broker.cluster.metadata.delta import MetadataDelta
from hailbus_broker.cluster.metadata.features import FeatureLevels
from hailbus_broker.cluster.metadata.names import (
    CLUSTER_METADATA_TOPIC,
    GROUP_METADATA_TOPIC,
    INTERNAL_TOPICS,
    NO_LEADER,
    NO_LEADER_CHANGE,
    TRANSACTION_STATE_TOPIC,
    ResourceType,
)
from hailbus_broker.cluster.metadata.producer_ids import ProducerIds
from hailbus_broker.cluster.metadata.quotas import ClientQuotas
from hailbus_broker.cluster.metadata.security import Security
from hailbus_broker.cluster.metadata.topics import LeaderRecovery, PartitionState, Topics, TopicState
from hailbus_broker.protocol.definitions.access_control_entry_record import AccessControlEntryRecord
from hailbus_broker.protocol.definitions.broker_registration_change_record import BrokerRegistrationChangeRecord
from hailbus_broker.protocol.definitions.clear_elr_record import ClearElrRecord
from hailbus_broker.protocol.definitions.client_quota_record import ClientQuotaRecord
from hailbus_broker.protocol.definitions.config_record import ConfigRecord
from hailbus_broker.protocol.definitions.delegation_token_record import DelegationTokenRecord
from hailbus_broker.protocol.definitions.feature_level_record import FeatureLevelRecord
from hailbus_broker.protocol.definitions.fence_broker_record import FenceBrokerRecord
from hailbus_broker.protocol.definitions.no_op_record import NoOpRecord
from hailbus_broker.protocol.definitions.partition_change_record import PartitionChangeRecord
from hailbus_broker.protocol.definitions.partition_record import PartitionRecord
from hailbus_broker.protocol.definitions.producer_ids_record import ProducerIdsRecord
from hailbus_broker.protocol.definitions.register_broker_record import RegisterBrokerRecord
from hailbus_broker.protocol.definitions.register_controller_record import RegisterControllerRecord
from hailbus_broker.protocol.definitions.remove_access_control_entry_record import RemoveAccessControlEntryRecord
from hailbus_broker.protocol.definitions.remove_delegation_token_record import RemoveDelegationTokenRecord
from hailbus_broker.protocol.definitions.remove_topic_record import RemoveTopicRecord
from hailbus_broker.protocol.definitions.remove_user_scram_credential_record import RemoveUserScramCredentialRecord
from hailbus_broker.protocol.definitions.topic_record import TopicRecord
from hailbus_broker.protocol.definitions.unfence_broker_record import UnfenceBrokerRecord
from hailbus_broker.protocol.definitions.unregister_broker_record import UnregisterBrokerRecord
from hailbus_broker.protocol.definitions.user_scram_credential_record import UserScramCredentialRecord
from hailbus_broker.protocol.definitions.zk_migration_state_record import ZkMigrationStateRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hailbus_broker.protocol.schema import Message, Uuid

__all__ = [
    "CLUSTER_METADATA_TOPIC",
    "GROUP_METADATA_TOPIC",
    "INTERNAL_TOPICS",
    "NO_LEADER",
    "NO_LEADER_CHANGE",
    "TRANSACTION_STATE_TOPIC",
    "BrokerState",
    "ControllerState",
    "LeaderRecovery",
    "ListenerEndpoint",
    "MetadataDelta",
    "MetadataImage",
    "PartitionState",
    "ResourceType",
    "TopicState",
]


class MetadataImage:
    """All metadata. It changes only by records.

    A copy costs a reference per topic, broker and resource: partitions are shared until one of the two changes them.

    Attributes:
        version: Counts the records, so that what was computed from an image can be cached.
        nodes: Registered brokers and controllers.
        quotas: Of clients.
        security: Credentials, access rules and tokens.
        producer_ids: Which were given out.
    """

    def __init__(self) -> None:
        self.version = 0
        self._topics = Topics()
        self.nodes = Brokers()
        self._configs = Configs()
        self._features = FeatureLevels()
        self.quotas = ClientQuotas()
        self.security = Security()
        self.producer_ids = ProducerIds()

    # ------------------------------------------------------------------ questions

    @property
    def topics(self) -> Mapping[str, TopicState]:
        """All topics by name."""
        return self._topics.by_name

    @property
    def topics_by_id(self) -> Mapping[Uuid, TopicState]:
        """All topics by id."""
        return self._topics.by_id

    @property
    def partition_count(self) -> int:
        """Number of partitions of all topics."""
        return self._topics.partition_count

    @property
    def brokers(self) -> Mapping[int, BrokerState]:
        """All registered brokers, those that are fenced included."""
        return self.nodes.brokers

    @property
    def controllers(self) -> Mapping[int, ControllerState]:
        """All registered controllers."""
        return self.nodes.controllers

    @property
    def features(self) -> Mapping[str, int]:
        """Finalised level by feature."""
        return self._features.levels

    @property
    def next_producer_id(self) -> int:
        """First id of the next block."""
        return self.producer_ids.next_id

    def has_partition(self, topic: str, index: int) -> bool:
        """Whether there is a partition, by the topic's name."""
        found = self._topics.by_name.get(topic)
        return found is not None and 0 <= index < len(found.partitions)

    def partition(self, topic_id: Uuid, index: int) -> PartitionState | None:
        """Return a partition's state; None if there is no such partition."""
        return self._topics.get(topic_id, index)

    def configs(self, resource_type: ResourceType, name: str) -> Mapping[str, str]:
        """Return the overrides of a resource, as text."""
        return self._configs.get(resource_type, name)

    def config_resources(self, resource_type: ResourceType) -> list[str]:
        """Return the names of the resources of a type that have overrides."""
        return self._configs.names(resource_type)

    def all_configs(self) -> list[tuple[ResourceType, str, Mapping[str, str]]]:
        """Return all overrides: type and name of the resource, and its values."""
        return [(ResourceType(kind), name, values) for kind, name, values in self._configs.all()]

    # ------------------------------------------------------------------ snapshots and copies

    def to_records(self) -> list[Message]:
        """Return records that make the same image from nothing, apart from its version."""
        return [
            *self._features.to_records(),
            *self.nodes.to_records(),
            *self._topics.to_records(),
            *self._configs.to_records(),
            *self.quotas.to_records(),
            *self.producer_ids.to_records(),
            *self.security.to_records(),
        ]

    def copy(self) -> MetadataImage:
        """Return another image of the same content, which changes by itself."""
        other = MetadataImage()
        other.version = self.version
        other._topics = self._topics.copy()
        other.nodes = self.nodes.copy()
        other._configs = self._configs.copy()
        other._features = self._features.copy()
        other.quotas = self.quotas.copy()
        other.security = self.security.copy()
        other.producer_ids = self.producer_ids.copy()
        return other

    # ------------------------------------------------------------------ changes

    def apply(self, records: Iterable[Message]) -> MetadataDelta:
        """Apply records, and return what they have changed.

        Raises:
            InconsistentRecordError: A record changes something that does not exist. The node must stop.
        """
        delta = MetadataDelta()
        for record in records:
            self._replay(record, delta)
        return delta

    def replay(self, record: Message) -> None:
        """Apply one record.

        Raises:
            InconsistentRecordError: The record changes something that does not exist. The node must stop.
        """
        self._replay(record, MetadataDelta())

    def _replay(self, record: Message, delta: MetadataDelta) -> None:
        self.version += 1
        match record:
            case TopicRecord():
                self._topics.add(record)
            case PartitionRecord():
                self._topics.add_partition(record)
                delta.note_new_partition(bytes(record.topic_id), record.partition_id)
            case PartitionChangeRecord():
                self._change_partition(record, delta)
            case ClearElrRecord():
                for topic_id, index in list(self._topics.partitions_with_elr(record)):
                    cleared = PartitionChangeRecord(
                        topic_id=topic_id, partition_id=index, eligible_leader_replicas=[], last_known_elr=[]
                    )
                    self._change_partition(cleared, delta)
            case RemoveTopicRecord():
                topic = self._topics.remove(record)
                self._configs.remove(ResourceType.TOPIC, topic.name)
                delta.note_removed_topic(topic)
            case ConfigRecord():
                self._configs.change(record)
                delta.configs[record.resource_type, record.resource_name] = None
            case FeatureLevelRecord():
                self._features.change(record)
                delta.has_new_features = True
            case ZkMigrationStateRecord():
                self._features.zk_migration_state = record.zk_migration_state
            case ProducerIdsRecord():
                self.producer_ids.change(record)
            case NoOpRecord():
                pass
            case _ if not self._replay_node(record, delta) and not self._replay_client(record):
                raise AssertionError(f"no meaning for {type(record).__name__}")

    def _change_partition(self, record: PartitionChangeRecord, delta: MetadataDelta) -> None:
        before = self._topics.get(record.topic_id, record.partition_id)
        self._topics.change_partition(record)
        assert before is not None, "an unknown partition was changed"
        delta.note_change(bytes(record.topic_id), before)

    def _replay_node(self, record: Message, delta: MetadataDelta) -> bool:
        match record:
            case RegisterBrokerRecord() | UnregisterBrokerRecord() | BrokerRegistrationChangeRecord():
                node_id = record.broker_id
            case FenceBrokerRecord() | UnfenceBrokerRecord():
                node_id = record.id
            case RegisterControllerRecord():
                controller_id = record.controller_id
                delta.controllers_before.setdefault(controller_id, self.nodes.controllers.get(controller_id))
                self.nodes.register_controller(record)
                return True
            case _:
                return False
        delta.brokers_before.setdefault(node_id, self.nodes.brokers.get(node_id))
        match record:
            case RegisterBrokerRecord():
                self.nodes.register(record)
            case UnregisterBrokerRecord():
                self.nodes.unregister(record)
            case BrokerRegistrationChangeRecord():
                self.nodes.change(record)
            case FenceBrokerRecord():
                self.nodes.fence(record)
            case _:
                self.nodes.unfence(record)
        return True

    def _replay_client(self, record: Message) -> bool:
        match record:
            case ClientQuotaRecord():
                self.quotas.change(record)
            case UserScramCredentialRecord():
                self.security.set_scram(record)
            case RemoveUserScramCredentialRecord():
                self.security.remove_scram(record)
            case AccessControlEntryRecord():
                self.security.add_acl(record)
            case RemoveAccessControlEntryRecord():
                self.security.remove_acl(record)
            case DelegationTokenRecord():
                self.security.set_token(record)
            case RemoveDelegationTokenRecord():
                self.security.remove_token(record)
            case _:
                return False
        return True
