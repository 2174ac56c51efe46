"""Decides about topics, configs and producer ids: a request in, metadata records out. Changes nothing itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hailbus_broker.cluster.features import SUPPORTED, FeatureUpdate, check_update
from hailbus_broker.cluster.metadata.image import (
    CLUSTER_METADATA_TOPIC,
    GROUP_METADATA_TOPIC,
    INTERNAL_TOPICS,
    MetadataImage,
    ResourceType,
    TopicState,
)
from hailbus_broker.cluster.options import BROKER_OPTIONS, GROUP_OPTIONS, BrokerConfig, check_topic_configs
from hailbus_broker.protocol.definitions.config_record import ConfigRecord
from hailbus_broker.protocol.definitions.feature_level_record import FeatureLevelRecord
from hailbus_broker.protocol.definitions.partition_change_record import PartitionChangeRecord
from hailbus_broker.protocol.definitions.partition_record import PartitionRecord
from hailbus_broker.protocol.definitions.producer_ids_record import ProducerIdsRecord
from hailbus_broker.protocol.definitions.register_broker_record import RegisterBrokerRecord
from hailbus_broker.protocol.definitions.remove_topic_record import RemoveTopicRecord
from hailbus_broker.protocol.definitions.topic_record import TopicRecord
from hailbus_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence

    from hailbus_broker.protocol.schema import Message, Uuid

MAX_NAME_LENGTH: Final = 249
"""The longest directory name is 255, and `-` and the partition number follow the topic's name."""

MAX_PARTITIONS_PER_REQUEST: Final = 10_000
"""Apache Kafka's own bound."""
MAX_PARTITIONS: Final = 100_000
"""Of the whole cluster; the limit of open files is a bound besides."""
PRODUCER_ID_BLOCK: Final = 1_000
TRANSACTION_STATE_SEGMENT_BYTES: Final = 104_857_600
_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """What a creation decided."""

    topic_id: Uuid
    partition_count: int
    replication_factor: int
    configs: Mapping[str, str]
    records: list[Message]


class Controller:
    """The cluster's decisions, for the node that leads `__cluster_metadata`.

    Args:
        image: What the decisions are about, those included that are not committed yet; the writer of the records
            replays them into it.
        config: The broker's settings.
        node_id: The only broker there is.
        directory_id: Of its log directory.
        chance: For topic ids.
    """

    def __init__(
        self, image: MetadataImage, config: BrokerConfig, *, node_id: int, directory_id: Uuid, chance: random.Random
    ) -> None:
        self.image = image
        self._config = config
        self._node_id = node_id
        self._directory_id = directory_id
        self._chance = chance

    def create_topic(
        self,
        name: str,
        *,
        partition_count: int = -1,
        replication_factor: int = -1,
        assignments: Mapping[int, Sequence[int]] | None = None,
        configs: Mapping[str, str | None] | None = None,
        is_internal: bool = False,
    ) -> NewTopic:
        """Decide about a new topic.

        A coordinator's topic is compacted unless the client that creates it explicitly asks for something else:
        retention would take committed offsets and open transactions away.

        Args:
            name: Of the topic.
            partition_count: -1 takes `num.partitions`.
            replication_factor: -1 takes `default.replication.factor`.
            assignments: Broker ids by partition; then the two numbers above must be -1.
            configs: Overrides; a value of None is refused.
            is_internal: Whether the broker itself asks.

        Raises:
            ApiError: With the code and sentence for the response.
        """
        if name == CLUSTER_METADATA_TOPIC:
            # Its partition would share the folder of the metadata log.
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")
        if name in self.image.topics:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        check_topic_name(name)
        if not is_internal:
            self._check_collision(name)
        if assignments:
            if partition_count != -1 or replication_factor != -1:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    "A manual partition assignment was specified, but the partition count and replication factor were "
                    "not -1.",
                )
            partition_count, replication_factor = len(assignments), self._check_assignments(assignments, first=0)
        else:
            if partition_count == -1:
                partition_count = self._config["num.partitions"]
            if replication_factor == -1:
                replication_factor = self._config["default.replication.factor"]
            if partition_count <= 0:
                raise ApiError(
                    ErrorCode.INVALID_PARTITIONS,
                    "Number of partitions was set to an invalid non-positive value.",
                )
            self._check_replication_factor(replication_factor)
        if partition_count > MAX_PARTITIONS_PER_REQUEST:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"Unable to create {partition_count} partitions: {MAX_PARTITIONS_PER_REQUEST} at a time is the most.",
            )
        self._check_total(partition_count)
        values = self._internal_configs(name) | _without_nulls(configs or {})
        check_topic_configs(values)
        topic_id = self._new_topic_id()
        records: list[Message] = [TopicRecord(name=name, topic_id=topic_id)]
        records += [self._partition(topic_id, index) for index in range(partition_count)]
        records += [
            ConfigRecord(resource_type=ResourceType.TOPIC, resource_name=name, name=key, value=value)
            for key, value in sorted(values.items())
        ]
        return NewTopic(
            topic_id=topic_id,
            partition_count=partition_count,
            replication_factor=replication_factor,
            configs=values,
            records=records,
        )

    def _check_total(self, new_count: int) -> None:
        total = self.image.partition_count
        if total + new_count > MAX_PARTITIONS:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"The cluster has {total} partitions: with {new_count} more it would have more than {MAX_PARTITIONS}.",
            )

    def _internal_configs(self, name: str) -> dict[str, str]:
        if name not in INTERNAL_TOPICS:
            return {}
        is_for_groups = name == GROUP_METADATA_TOPIC
        segment_bytes = (
            self._config["offsets.topic.segment.bytes"] if is_for_groups else TRANSACTION_STATE_SEGMENT_BYTES
        )
        return {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": str(segment_bytes)}

    def delete_topic(self, topic: TopicState) -> list[Message]:
        """Decide about the end of a topic.

        Raises:
            ApiError: Deletion is switched off, or the topic is the broker's own.
        """
        if not self._config["delete.topic.enable"]:
            raise ApiError(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false.")
        return [RemoveTopicRecord(topic_id=topic.topic_id)]

    def create_partitions(
        self, name: str, count: int, *, assignments: Sequence[Sequence[int]] | None = None
    ) -> list[Message]:
        """Decide about more partitions for a topic.

        Args:
            name: Of the topic.
            count: How many there shall be in all.
            assignments: Broker ids of each new partition.

        Raises:
            ApiError: There is no such topic, or it would not get more partitions.
        """
        topic = self.image.topics.get(name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{name}'.")
        current = len(topic.partitions)
        if count == current:
            raise ApiError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {current} partition(s).")
        if count < current:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS,
                f"The topic {name} currently has {current} partition(s); {count} would not be an increase.",
            )
        if count - current > MAX_PARTITIONS_PER_REQUEST:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION, f"{MAX_PARTITIONS_PER_REQUEST} new partitions at a time is the most."
            )
        self._check_total(count - current)
        if assignments is not None:
            if len(assignments) != count - current:
                raise ApiError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"Attempted to add {count - current} additional partition(s), but only {len(assignments)} "
                    "assignment(s) "
                    "were specified.",
                )
            self._check_assignments(dict(enumerate(assignments, current)), first=current)
        return [self._partition(topic.topic_id, index) for index in range(current, count)]

    def alter_configs(self, resource_type: ResourceType, name: str, changes: Mapping[str, str | None]) -> list[Message]:
        """Decide about changed configs; None takes an override away.

        Raises:
            ApiError: There is no such resource or option, or a value does not fit.
        """
        merged = dict(self.image.configs(resource_type, name))
        for key, value in changes.items():
            if value is None:
                merged.pop(key, None)
            else:
                merged[key] = value
        match resource_type:
            case ResourceType.TOPIC:
                if name not in self.image.topics:
                    raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
                check_topic_configs(merged)
                for key in changes:
                    check_topic_configs({} if key in merged else {key: _any_value(key)})
            case ResourceType.BROKER:
                if name not in {"", str(self._node_id)}:
                    raise ApiError(
                        ErrorCode.INVALID_REQUEST, f"There is no broker {name}: this is broker {self._node_id}."
                    )
                for key in changes:
                    option = BROKER_OPTIONS.get(key)
                    if option is None:
                        raise ApiError(ErrorCode.INVALID_CONFIG, f"Unknown broker config name: {key}")
                    if not option.is_dynamic:
                        raise ApiError(
                            ErrorCode.INVALID_CONFIG,
                            f"{key} cannot be changed while the broker runs: restart it with --set.",
                        )
                    if key in merged:
                        option.parse(merged[key])
            case ResourceType.GROUP:
                if not name:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "The group's name must not be empty.")
                for key in changes:
                    if key not in GROUP_OPTIONS:
                        raise ApiError(ErrorCode.INVALID_CONFIG, f"Unknown group config name: {key}")
                    if key in merged:
                        self._check_group_value(key, GROUP_OPTIONS[key].parse(merged[key]))
            case _:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"Configs of type {resource_type} cannot be altered here.")
        current = self.image.configs(resource_type, name)
        return [
            ConfigRecord(resource_type=resource_type, resource_name=name, name=key, value=value)
            for key, value in sorted(changes.items())
            if current.get(key) != value
        ]

    def register_broker(self, *, broker_epoch: int, was_clean: bool, incarnation_id: Uuid) -> list[Message]:
        """Decide what follows from this node's start.

        A new cluster gets all features; later it has those that it was told to have, by UpdateFeatures. After a stop
        that was not clean the logs may have lost records that consumers have read: then every partition that the node
        leads begins a new leader epoch, by which consumers see where their records ended (KIP-320).
        """
        records: list[Message] = []
        if not self.image.brokers:
            records += [
                FeatureLevelRecord(name=name, feature_level=last) for name, (_, last) in sorted(SUPPORTED.items())
            ]
        records.append(
            RegisterBrokerRecord(
                broker_id=self._node_id,
                incarnation_id=incarnation_id,
                broker_epoch=broker_epoch,
                fenced=False,
                rack=None,
                log_dirs=[self._directory_id],
            )
        )
        if not was_clean:
            records += [
                PartitionChangeRecord(partition_id=state.index, topic_id=topic.topic_id, leader=self._node_id)
                for topic in self.image.topics.values()
                for state in topic.partitions
                if state.leader == self._node_id
            ]
        return records

    def allocate_producer_ids(self) -> tuple[int, list[Message]]:
        """Take the next block of producer ids: its first id, and the record that makes it ours."""
        first = self.image.next_producer_id
        record = ProducerIdsRecord(broker_id=self._node_id, next_producer_id=first + PRODUCER_ID_BLOCK)
        return first, [record]

    def check_reassignment(
        self, topic: str, index: int, replicas: Sequence[int] | None, *, may_change_factor: bool
    ) -> None:
        """Whether a partition can get these replicas: those that it has, as there are no others.

        Args:
            topic: Of the partition.
            index: Of the partition.
            replicas: Broker ids; None ends a reassignment that is under way.
            may_change_factor: Whether there may be more or fewer than before.

        Raises:
            ApiError: It cannot.
        """
        found = self.image.topics.get(topic)
        if found is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {topic}.")
        if not 0 <= index < len(found.partitions):
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {topic}:{index}.")
        if replicas is None:
            raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{topic}-{index} is not being reassigned.")
        if not may_change_factor and len(replicas) != len(found.partitions[index].replicas):
            raise ApiError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"The replication factor is changed from {len(found.partitions[index].replicas)} to {len(replicas)}, "
                "which the request forbids.",
            )
        self._check_assignments({index: replicas}, first=index)

    def update_features(self, updates: Sequence[FeatureUpdate]) -> list[Message]:
        """Decide about new levels of features.

        Raises:
            ApiError: One of them cannot be, and so none is changed.
        """
        names = [update.name for update in updates]
        for update in updates:
            if names.count(update.name) > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"The request names the feature {update.name} twice.")
            check_update(update, self.image.features, node_id=self._node_id)
        return [
            FeatureLevelRecord(name=update.name, feature_level=update.level)
            for update in updates
            if self.image.features.get(update.name, 0) != update.level
        ]

    def _check_group_value(self, key: str, value: object) -> None:
        assert isinstance(value, int)
        middle = key.removeprefix("consumer.")
        low, high = self._config[f"group.consumer.min.{middle}"], self._config[f"group.consumer.max.{middle}"]
        if not low <= value <= high:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"{key} must be from {low} to {high}.")

    def _partition(self, topic_id: Uuid, index: int) -> PartitionRecord:
        return PartitionRecord(
            partition_id=index,
            topic_id=topic_id,
            replicas=[self._node_id],
            isr=[self._node_id],
            leader=self._node_id,
            leader_epoch=0,
            partition_epoch=0,
            directories=[self._directory_id],
        )

    def _new_topic_id(self) -> Uuid:
        while True:
            raw = bytearray(self._chance.randbytes(16))
            raw[6] = raw[6] & 0x0F | 0x40
            raw[8] = raw[8] & 0x3F | 0x80
            topic_id = bytes(raw)
            # Some tools take an id that begins with a dash for an option.
            if topic_id not in self.image.topics_by_id and topic_id[0] >> 2 != 62:
                return topic_id

    def _check_replication_factor(self, factor: int) -> None:
        if factor <= 0:
            raise ApiError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            )
        if factor > 1:
            raise ApiError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} cannot "
                "be "
                "reached because only 1 broker(s) are registered.",
            )

    def _check_assignments(self, assignments: Mapping[int, Sequence[int]], *, first: int) -> int:
        factors = {len(brokers) for brokers in assignments.values()}
        if sorted(assignments) != list(range(first, first + len(assignments))):
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "partitions should be a consecutive 0-based integer sequence",
            )
        for brokers in assignments.values():
            if not brokers:
                raise ApiError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    "The manual partition assignment includes an empty replica list.",
                )
            if len(set(brokers)) != len(brokers):
                raise ApiError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"The manual partition assignment includes a broker twice: {list(brokers)}.",
                )
            for broker in brokers:
                if broker != self._node_id:
                    raise ApiError(
                        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                        f"The manual partition assignment includes broker {broker}, but no such broker is registered.",
                    )
        if len(factors) > 1:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, "All partitions must have the same number of replicas."
            )
        return factors.pop()

    def _check_collision(self, name: str) -> None:
        # Metric names write `_` for `.`: two topics that differ only in this cannot be told apart there.
        flat = name.replace(".", "_")
        if "_" in flat:
            for other in self.image.topics:
                if other.replace(".", "_") == flat:
                    raise ApiError(
                        ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}"
                    )


def check_topic_name(name: str) -> None:
    """Refuse a name that no directory could have.

    Raises:
        ApiError: INVALID_TOPIC_EXCEPTION with the rule that it breaks.
    """
    if not name:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic name is invalid: the empty string is not allowed")
    if name in {".", ".."}:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: '{name}' is not allowed")
    if len(name) > MAX_NAME_LENGTH:
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic name is invalid: the length of '{name}' is longer than the max allowed length {MAX_NAME_LENGTH}",
        )
    if not _LEGAL_NAME.fullmatch(name):
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic name is invalid: '{name}' contains one or more characters other than ASCII alphanumerics, "
            "'.', '_' and '-'",
        )


def is_protected(name: str) -> bool:
    """Whether clients may not delete or write a topic."""
    return name in INTERNAL_TOPICS


def _without_nulls(configs: Mapping[str, str | None]) -> dict[str, str]:
    values = {}
    for key, value in configs.items():
        if value is None:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {key}")
        values[key] = value
    return values


def _any_value(key: str) -> str:
    from hailbus_broker.cluster.options import TOPIC_OPTIONS

    option = TOPIC_OPTIONS.get(key)
    return "" if option is None else option.default or ""
