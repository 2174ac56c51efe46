"""Decides about topics: creation, more partitions, the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hailbus_broker.cluster.controller.naming import check_collision, check_topic_name
from hailbus_broker.cluster.controller.placement import check_replication_factor, place
from hailbus_broker.cluster.controller.state import ControllerState
from hailbus_broker.cluster.metadata.names import (
    CLUSTER_METADATA_TOPIC,
    GROUP_METADATA_TOPIC,
    INTERNAL_TOPICS,
    ResourceType,
)
from hailbus_broker.cluster.options import check_topic_configs
from hailbus_broker.log import draw_uuid
from hailbus_broker.protocol.definitions.config_record import ConfigRecord
from hailbus_broker.protocol.definitions.partition_record import PartitionRecord
from hailbus_broker.protocol.definitions.remove_topic_record import RemoveTopicRecord
from hailbus_broker.protocol.definitions.topic_record import TopicRecord
from hailbus_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hailbus_broker.cluster.metadata.image import BrokerState, TopicState
    from hailbus_broker.protocol.schema import Message, Uuid

MAX_PARTITIONS_PER_REQUEST: Final = 10_000
"""Apache Kafka's own bound."""
MAX_PARTITIONS: Final = 100_000
"""Of the whole cluster; the limit of open files is a bound besides."""
TRANSACTION_STATE_SEGMENT_BYTES: Final = 104_857_600


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """What a creation decided."""

    topic_id: Uuid
    partition_count: int
    replication_factor: int
    configs: Mapping[str, str]
    records: list[Message]


class TopicDecisions(ControllerState):
    """The part of the controller that creates and removes topics."""

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
            check_collision(name, self.image.topics)
        if assignments:
            if partition_count != -1 or replication_factor != -1:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    "A manual partition assignment was specified, but the partition count and replication factor were "
                    "not -1.",
                )
            partition_count = len(assignments)
            placed = self._check_assignments(assignments, first=0)
            replication_factor = len(placed[0])
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
            check_replication_factor(replication_factor, self._usable_brokers())
            placed = []
        if partition_count > MAX_PARTITIONS_PER_REQUEST:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"Unable to create {partition_count} partitions: {MAX_PARTITIONS_PER_REQUEST} at a time is the most.",
            )
        self._check_total(partition_count)
        values = self._internal_configs(name) | _without_nulls(configs or {})
        check_topic_configs(values)
        if not assignments:
            placed = self._place(partition_count, replication_factor)
        topic_id = self._new_topic_id()
        records: list[Message] = [TopicRecord(name=name, topic_id=topic_id)]
        records += [self._partition(topic_id, index, replicas) for index, replicas in enumerate(placed)]
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
            placed = self._check_assignments(
                dict(enumerate(assignments, current)), first=current, factor=len(topic.partitions[0].replicas)
            )
        else:
            placed = self._place(count - current, len(topic.partitions[0].replicas))
        return [self._partition(topic.topic_id, index, replicas) for index, replicas in enumerate(placed, current)]

    def delete_topic(self, topic: TopicState) -> list[Message]:
        """Decide about the end of a topic.

        Raises:
            ApiError: Deletion is switched off, or the topic is the broker's own.
        """
        if not self._config["delete.topic.enable"]:
            raise ApiError(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false.")
        return [RemoveTopicRecord(topic_id=topic.topic_id)]

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
        configs = {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": str(segment_bytes)}
        if not is_for_groups:
            configs["min.insync.replicas"] = str(self._config["transaction.state.log.min.isr"])
        return configs

    def _usable_brokers(self) -> list[BrokerState]:
        return [broker for broker in self.image.brokers.values() if not broker.in_controlled_shutdown]

    def _place(self, partition_count: int, replication_factor: int) -> list[tuple[int, ...]]:
        return place(
            self.image.brokers.values(),
            partition_count=partition_count,
            replication_factor=replication_factor,
            rng=self._rng,
        )

    def _partition(self, topic_id: Uuid, index: int, replicas: Sequence[int]) -> PartitionRecord:
        isr = [broker_id for broker_id in replicas if self.is_active(broker_id)]
        return PartitionRecord(
            partition_id=index,
            topic_id=topic_id,
            replicas=list(replicas),
            isr=isr,
            leader=isr[0],
            leader_epoch=0,
            partition_epoch=0,
            directories=[self.default_directory(broker_id) for broker_id in replicas],
        )

    def _new_topic_id(self) -> Uuid:
        while True:
            topic_id = draw_uuid(self._rng).bytes
            if topic_id not in self.image.topics_by_id:
                return topic_id

    def _check_assignments(
        self, assignments: Mapping[int, Sequence[int]], *, first: int, factor: int | None = None
    ) -> list[tuple[int, ...]]:
        if sorted(assignments) != list(range(first, first + len(assignments))):
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "partitions should be a consecutive 0-based integer sequence",
            )
        placed = []
        for index in sorted(assignments):
            replicas = tuple(assignments[index])
            self.check_assignment(replicas)
            if factor is None:
                factor = len(replicas)
            if len(replicas) != factor:
                raise ApiError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this "
                    f"is not consistent with previous partitions, which have {factor} replica(s).",
                )
            if not any(self.is_active(broker_id) for broker_id in replicas):
                raise ApiError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"All brokers specified in the manual partition assignment for partition {index} are fenced or in "
                    "controlled shutdown.",
                )
            placed.append(replicas)
        return placed


def _without_nulls(configs: Mapping[str, str | None]) -> dict[str, str]:
    values = {}
    for key, value in configs.items():
        if value is None:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {key}")
        values[key] = value
    return values
