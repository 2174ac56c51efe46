"""The part of the image that holds the registered brokers and controllers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from hailbus_broker.cluster.metadata.names import InconsistentRecordError
from hailbus_broker.cluster.metadata.topics import LOST_DIRECTORY, MIGRATING_DIRECTORY, UNASSIGNED_DIRECTORY
from hailbus_broker.protocol.definitions import register_broker_record, register_controller_record
from hailbus_broker.protocol.definitions.register_broker_record import RegisterBrokerRecord
from hailbus_broker.protocol.definitions.register_controller_record import RegisterControllerRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hailbus_broker.protocol.definitions.broker_registration_change_record import BrokerRegistrationChangeRecord
    from hailbus_broker.protocol.definitions.fence_broker_record import FenceBrokerRecord
    from hailbus_broker.protocol.definitions.unfence_broker_record import UnfenceBrokerRecord
    from hailbus_broker.protocol.definitions.unregister_broker_record import UnregisterBrokerRecord
    from hailbus_broker.protocol.schema import Message, Uuid

FENCE: Final = 1
UNFENCE: Final = -1
"""In a BrokerRegistrationChangeRecord; 0 leaves the broker as it is."""

FeatureRanges: TypeAlias = "Mapping[str, tuple[int, int]]"
"""Lowest and highest supported level by feature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerEndpoint:
    """An address of a node, as it registered it."""

    name: str
    host: str
    port: int
    security_protocol: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerState:
    """A broker as it last registered, and whether it may lead.

    Attributes:
        broker_epoch: Offset of the registration in the metadata log. A new incarnation gets a higher one.
        incarnation_id: Of the broker's process.
        log_dirs: Ids of the log directories that are online.
        cordoned_log_dirs: Ids of those that get no new replicas; None if the broker never said.
        fenced: Whether the broker leads nothing and is in no ISR.
        in_controlled_shutdown: Whether the broker gives its leaderships away.
    """

    node_id: int
    broker_epoch: int
    rack: str | None = None
    incarnation_id: Uuid
    log_dirs: tuple[Uuid, ...] = ()
    cordoned_log_dirs: tuple[Uuid, ...] | None = None
    endpoints: tuple[ListenerEndpoint, ...] = ()
    features: FeatureRanges = field(default_factory=dict)
    fenced: bool = True
    in_controlled_shutdown: bool = False

    @property
    def is_active(self) -> bool:
        """Whether the broker may lead partitions and join ISRs."""
        return not self.fenced and not self.in_controlled_shutdown

    def endpoint(self, listener: str) -> ListenerEndpoint | None:
        """Return the address on a listener; None if the broker does not have that listener."""
        return next((one for one in self.endpoints if one.name == listener), None)

    def has_online_directory(self, directory: Uuid) -> bool:
        """Whether a replica in a directory can be used. A directory that is not known yet counts as online."""
        if directory in {MIGRATING_DIRECTORY, UNASSIGNED_DIRECTORY}:
            return True
        return directory != LOST_DIRECTORY and (not self.log_dirs or directory in self.log_dirs)

    @classmethod
    def from_record(cls, record: RegisterBrokerRecord) -> BrokerState:
        """Return the state that a record describes."""
        cordoned = record.cordoned_log_dirs
        return cls(
            node_id=record.broker_id,
            broker_epoch=record.broker_epoch,
            rack=record.rack,
            incarnation_id=bytes(record.incarnation_id),
            log_dirs=tuple(bytes(one) for one in record.log_dirs),
            cordoned_log_dirs=None if cordoned is None else tuple(bytes(one) for one in cordoned),
            endpoints=tuple(
                ListenerEndpoint(name=one.name, host=one.host, port=one.port, security_protocol=one.security_protocol)
                for one in record.end_points
            ),
            features={one.name: (one.min_supported_version, one.max_supported_version) for one in record.features},
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
        )

    def to_record(self) -> RegisterBrokerRecord:
        """Return the record that describes this state."""
        return RegisterBrokerRecord(
            broker_id=self.node_id,
            incarnation_id=self.incarnation_id,
            broker_epoch=self.broker_epoch,
            end_points=[
                register_broker_record.BrokerEndpoint(
                    name=one.name, host=one.host, port=one.port, security_protocol=one.security_protocol
                )
                for one in self.endpoints
            ],
            features=[
                register_broker_record.BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in sorted(self.features.items())
            ],
            rack=self.rack,
            fenced=self.fenced,
            in_controlled_shutdown=self.in_controlled_shutdown,
            log_dirs=list(self.log_dirs),
            cordoned_log_dirs=None if self.cordoned_log_dirs is None else list(self.cordoned_log_dirs),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerState:
    """A controller as it last registered."""

    node_id: int
    incarnation_id: Uuid
    endpoints: tuple[ListenerEndpoint, ...] = ()
    features: FeatureRanges = field(default_factory=dict)
    zk_migration_ready: bool = False

    @classmethod
    def from_record(cls, record: RegisterControllerRecord) -> ControllerState:
        """Return the state that a record describes."""
        return cls(
            node_id=record.controller_id,
            incarnation_id=bytes(record.incarnation_id),
            endpoints=tuple(
                ListenerEndpoint(name=one.name, host=one.host, port=one.port, security_protocol=one.security_protocol)
                for one in record.end_points
            ),
            features={one.name: (one.min_supported_version, one.max_supported_version) for one in record.features},
            zk_migration_ready=record.zk_migration_ready,
        )

    def to_record(self) -> RegisterControllerRecord:
        """Return the record that describes this state."""
        return RegisterControllerRecord(
            controller_id=self.node_id,
            incarnation_id=self.incarnation_id,
            zk_migration_ready=self.zk_migration_ready,
            end_points=[
                register_controller_record.ControllerEndpoint(
                    name=one.name, host=one.host, port=one.port, security_protocol=one.security_protocol
                )
                for one in self.endpoints
            ],
            features=[
                register_controller_record.ControllerFeature(
                    name=name, min_supported_version=low, max_supported_version=high
                )
                for name, (low, high) in sorted(self.features.items())
            ],
        )


class Brokers:
    """All registered brokers and controllers, by node id. Their states are immutable."""

    def __init__(self) -> None:
        self.brokers: Final[dict[int, BrokerState]] = {}
        self.controllers: Final[dict[int, ControllerState]] = {}

    def copy(self) -> Brokers:
        """Return the same nodes; both change by themselves."""
        other = Brokers()
        other.brokers.update(self.brokers)
        other.controllers.update(self.controllers)
        return other

    def register(self, record: RegisterBrokerRecord) -> None:
        """Apply a broker's registration, which replaces an earlier one."""
        self.brokers[record.broker_id] = BrokerState.from_record(record)

    def register_controller(self, record: RegisterControllerRecord) -> None:
        """Apply a controller's registration, which replaces an earlier one."""
        self.controllers[record.controller_id] = ControllerState.from_record(record)

    def unregister(self, record: UnregisterBrokerRecord) -> None:
        """Apply the end of a registration."""
        self._registered(record.broker_id, record.broker_epoch)
        del self.brokers[record.broker_id]

    def fence(self, record: FenceBrokerRecord) -> None:
        """Apply a fence, as clusters of older levels write it."""
        self.brokers[record.id] = replace(self._registered(record.id, record.epoch), fenced=True)

    def unfence(self, record: UnfenceBrokerRecord) -> None:
        """Apply the end of a fence, as clusters of older levels write it."""
        self.brokers[record.id] = replace(self._registered(record.id, record.epoch), fenced=False)

    def change(self, record: BrokerRegistrationChangeRecord) -> None:
        """Apply a change of a registration. What the record leaves out stays."""
        broker = self._registered(record.broker_id, record.broker_epoch)
        if record.fenced:
            broker = replace(broker, fenced=record.fenced == FENCE)
        if record.in_controlled_shutdown:
            broker = replace(broker, in_controlled_shutdown=True)
        if record.log_dirs:
            broker = replace(broker, log_dirs=tuple(bytes(one) for one in record.log_dirs))
        if record.cordoned_log_dirs is not None:
            broker = replace(broker, cordoned_log_dirs=tuple(bytes(one) for one in record.cordoned_log_dirs))
        self.brokers[record.broker_id] = broker

    def to_records(self) -> Iterator[Message]:
        """Return the records that make the same registrations from nothing."""
        for _, broker in sorted(self.brokers.items()):
            yield broker.to_record()
        for _, controller in sorted(self.controllers.items()):
            yield controller.to_record()

    def _registered(self, broker_id: int, broker_epoch: int) -> BrokerState:
        broker = self.brokers.get(broker_id)
        if broker is None or broker.broker_epoch != broker_epoch:
            known = "is not registered" if broker is None else f"has the epoch {broker.broker_epoch}"
            raise InconsistentRecordError(
                f"a metadata record changes broker {broker_id} of epoch {broker_epoch}, which {known}"
            )
        return broker
