"""Decides about overrides of settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hailbus_broker.cluster.controller.state import ControllerState
from hailbus_broker.cluster.metadata.names import ResourceType
from hailbus_broker.cluster.options import BROKER_OPTIONS, GROUP_OPTIONS, TOPIC_OPTIONS, check_topic_configs
from hailbus_broker.protocol.definitions.config_record import ConfigRecord
from hailbus_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hailbus_broker.protocol.schema import Message


_THROTTLES: Final = frozenset(
    {
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
    }
)
"""Replication is not throttled, so these cannot be set. `kafka-reassign-partitions --verify` always removes them."""


class ConfigDecisions(ControllerState):
    """The part of the controller that changes settings of topics, brokers and groups."""

    def alter_configs(self, resource_type: ResourceType, name: str, changes: Mapping[str, str | None]) -> list[Message]:
        """Decide about changed configs; None takes an override away.

        Raises:
            ApiError: There is no such resource or option, or a value does not fit.
        """
        changes = {key: value for key, value in changes.items() if value is not None or key not in _THROTTLES}
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
                if name and not (name.isdecimal() and int(name) in self.image.brokers):
                    raise ApiError(
                        ErrorCode.INVALID_REQUEST, f"There is no broker {name}: this is broker {self._node_id}."
                    )
                if self.has_elr:
                    _check_minimum_of_elr(name, changes)
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
        records: list[Message] = [
            ConfigRecord(resource_type=resource_type, resource_name=name, name=key, value=value)
            for key, value in sorted(changes.items())
            if current.get(key) != value
        ]
        if "min.insync.replicas" in changes and resource_type in {ResourceType.TOPIC, ResourceType.BROKER}:
            topic = name if resource_type is ResourceType.TOPIC else None
            with self.as_if_applied(records):
                records = records + self._without_outdated_elr(topic)
        return records

    def _without_outdated_elr(self, name: str | None) -> list[Message]:
        """Return the changes of ELRs that follow from another minimum.

        With a minimum that the ISR satisfies records are committed without the eligible leaders: these are out. Where
        the ISR is smaller nothing is committed, and they stay. Apache Kafka clears all of them, also of partitions
        that nobody else could lead.
        """
        affected = [
            (topic, state) for topic, state in self.partitions() if state.elr and (name is None or topic.name == name)
        ]
        return self.leader_and_isr_changes(affected)

    def _check_group_value(self, key: str, value: object) -> None:
        assert isinstance(value, int)
        middle = key.removeprefix("consumer.")
        low, high = self._config[f"group.consumer.min.{middle}"], self._config[f"group.consumer.max.{middle}"]
        if not low <= value <= high:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"{key} must be from {low} to {high}.")


def _check_minimum_of_elr(broker: str, changes: Mapping[str, str | None]) -> None:
    """Refuse a minimum that is not the same for all brokers: the eligible leader replicas depend on it (KIP-966).

    Raises:
        ApiError: INVALID_CONFIG.
    """
    if "min.insync.replicas" not in changes:
        return
    if broker:
        raise ApiError(
            ErrorCode.INVALID_CONFIG, "Broker-level min.insync.replicas cannot be altered while ELR is enabled."
        )
    if changes["min.insync.replicas"] is None:
        raise ApiError(
            ErrorCode.INVALID_CONFIG, "Cluster-level min.insync.replicas cannot be removed while ELR is enabled."
        )


def _any_value(key: str) -> str:
    option = TOPIC_OPTIONS.get(key)
    return "" if option is None else option.default or ""
