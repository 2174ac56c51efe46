"""Decides about registrations: who is a broker or a controller of this cluster (KIP-631)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hailbus_broker.cluster.controller.decision import Decision
from hailbus_broker.cluster.controller.state import ControllerState
from hailbus_broker.cluster.features import ELR_VERSION, METADATA_VERSION, REGISTERED, SUPPORTED
from hailbus_broker.cluster.metadata.names import NO_LEADER
from hailbus_broker.protocol.definitions import register_broker_record, register_controller_record
from hailbus_broker.protocol.definitions.broker_registration_response import BrokerRegistrationResponse
from hailbus_broker.protocol.definitions.controller_registration_response import ControllerRegistrationResponse
from hailbus_broker.protocol.definitions.feature_level_record import FeatureLevelRecord
from hailbus_broker.protocol.definitions.partition_change_record import PartitionChangeRecord
from hailbus_broker.protocol.definitions.register_broker_record import RegisterBrokerRecord
from hailbus_broker.protocol.definitions.register_controller_record import RegisterControllerRecord
from hailbus_broker.protocol.definitions.unregister_broker_record import UnregisterBrokerRecord
from hailbus_broker.protocol.definitions.unregister_broker_response import UnregisterBrokerResponse
from hailbus_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hailbus_broker.cluster.metadata.brokers import BrokerState
    from hailbus_broker.protocol.definitions.broker_registration_request import BrokerRegistrationRequest
    from hailbus_broker.protocol.definitions.controller_registration_request import ControllerRegistrationRequest
    from hailbus_broker.protocol.schema import Message, Uuid
    from hailbus_broker.records import Offset

_RESERVED_DIRECTORIES: Final = 100
"""Ids below this number stand for something that is no directory."""


class RegistrationDecisions(ControllerState):
    """The part of the controller that registers nodes."""

    def register(
        self, request: BrokerRegistrationRequest, *, cluster_id: str, next_offset: Offset, now_ms: int
    ) -> Decision[BrokerRegistrationResponse]:
        """Decide about the registration of a broker. It begins fenced.

        A new incarnation leaves all ISRs. If its last shutdown was not clean it leaves the ELRs, too: records that it
        had acknowledged may be lost. A request that is repeated after a lost response gets the same epoch.

        Args:
            request: Of the broker.
            cluster_id: Of this cluster.
            next_offset: Of the first record that this decision would append; it is the new broker epoch.
            now_ms: On the clock of the sessions.

        Raises:
            ApiError: INCONSISTENT_CLUSTER_ID, DUPLICATE_BROKER_REGISTRATION, INVALID_REGISTRATION,
                BROKER_ID_NOT_REGISTERED for a broker that comes from ZooKeeper, or UNSUPPORTED_VERSION.
        """
        if request.cluster_id != cluster_id:
            raise ApiError(
                ErrorCode.INCONSISTENT_CLUSTER_ID,
                f"Expected cluster ID {cluster_id}, but got cluster ID {request.cluster_id}",
            )
        broker_id = request.broker_id
        existing = self.image.brokers.get(broker_id)
        is_same = existing is not None and existing.incarnation_id == request.incarnation_id
        if existing is not None and not is_same:
            self._check_session(existing, now_ms)
        if request.is_migrating_zk_broker:
            raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, "Controller does not support registering ZK brokers.")
        self._check_directories(broker_id, request.log_dirs)
        self._check_listeners(request)
        self._check_features(request)
        records: list[Message] = []
        epoch = next_offset
        if existing is not None and is_same:
            epoch = existing.broker_epoch
        else:
            records += self._without_incarnation(
                broker_id, was_clean=existing is not None and existing.broker_epoch == request.previous_broker_epoch
            )
        records.append(
            RegisterBrokerRecord(
                broker_id=broker_id,
                incarnation_id=request.incarnation_id,
                broker_epoch=epoch,
                end_points=[
                    register_broker_record.BrokerEndpoint(
                        name=one.name, host=one.host, port=one.port, security_protocol=one.security_protocol
                    )
                    for one in request.listeners
                ],
                features=[
                    register_broker_record.BrokerFeature(
                        name=one.name,
                        min_supported_version=one.min_supported_version,
                        max_supported_version=one.max_supported_version,
                    )
                    for one in request.features
                ],
                rack=request.rack,
                fenced=existing.fenced if existing is not None and is_same else True,
                in_controlled_shutdown=existing.in_controlled_shutdown if existing is not None and is_same else False,
                log_dirs=request.log_dirs,
            )
        )
        self.sessions.begin(broker_id, epoch, next_offset + len(records) - 1, now_ms=now_ms)
        return Decision(records, BrokerRegistrationResponse(broker_epoch=epoch))

    def register_controller(self, request: ControllerRegistrationRequest) -> Decision[ControllerRegistrationResponse]:
        """Decide about the registration of a controller; a later one replaces an earlier one."""
        record = RegisterControllerRecord(
            controller_id=request.controller_id,
            incarnation_id=request.incarnation_id,
            zk_migration_ready=False,
            end_points=[
                register_controller_record.ControllerEndpoint(
                    name=one.name, host=one.host, port=one.port, security_protocol=one.security_protocol
                )
                for one in request.listeners
            ],
            features=[
                register_controller_record.ControllerFeature(
                    name=one.name,
                    min_supported_version=one.min_supported_version,
                    max_supported_version=one.max_supported_version,
                )
                for one in request.features
            ],
        )
        return Decision([record], ControllerRegistrationResponse())

    def unregister(self, broker_id: int) -> Decision[UnregisterBrokerResponse]:
        """Decide about the end of a registration. The broker leaves every ISR and ELR, but stays a replica.

        Raises:
            ApiError: BROKER_ID_NOT_REGISTERED.
        """
        broker = self.image.brokers.get(broker_id)
        if broker is None:
            raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker_id} is not currently registered")
        records = self._without_incarnation(broker_id, was_clean=False)
        records.append(UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=broker.broker_epoch))
        return Decision(records, UnregisterBrokerResponse(error_message=None))

    def register_broker(self, *, broker_epoch: int, was_clean: bool, incarnation_id: Uuid) -> list[Message]:
        """Decide what follows from the start of a node that is a whole cluster by itself. It is not fenced.

        A new cluster gets all features; later it has those that it was told to have, by UpdateFeatures. After a stop
        that was not clean the logs may have lost records that consumers have read: then every partition that the node
        leads begins a new leader epoch, by which consumers see where their records ended (KIP-320). Partitions without
        a leader get one.
        """
        records: list[Message] = []
        if not self.image.brokers:
            records += [
                FeatureLevelRecord(name=name, feature_level=last)
                for name, (_, last) in sorted(SUPPORTED.items(), key=lambda item: (item[0] != METADATA_VERSION, item))
                # With one broker nobody else is eligible. A cluster that has grown finalises the level by request.
                if name != ELR_VERSION
            ]
        records.append(
            RegisterBrokerRecord(
                broker_id=self._node_id,
                incarnation_id=incarnation_id,
                broker_epoch=broker_epoch,
                features=[
                    register_broker_record.BrokerFeature(
                        name=name, min_supported_version=first, max_supported_version=last
                    )
                    for name, (first, last) in sorted(REGISTERED.items())
                ],
                fenced=False,
                rack=None,
                log_dirs=[self._directory_id],
            )
        )
        if not was_clean:
            records += [
                PartitionChangeRecord(partition_id=state.index, topic_id=topic.topic_id, leader=self._node_id)
                for topic, state in self.partitions()
                if state.leader == self._node_id
            ]
        leaderless = [(topic, state) for topic, state in self.partitions() if state.leader == NO_LEADER]
        if leaderless:
            # A cluster of one that Apache Kafka has stopped in order: the last broker gave its leaderships up.
            with self.as_if_applied(records):
                records = records + self.leader_and_isr_changes(leaderless)
        return records

    def _without_incarnation(self, broker_id: int, *, was_clean: bool) -> list[Message]:
        """Return the changes by which an earlier incarnation leaves the ISRs, and after a crash the ELRs."""
        if was_clean:
            return self.leader_and_isr_changes(self.partitions_in_sync_on(broker_id), removed=broker_id)
        affected = [
            (topic, state) for topic, state in self.partitions() if broker_id in state.isr or broker_id in state.elr
        ]
        return self.leader_and_isr_changes(affected, lost_tail=broker_id)

    def _check_session(self, existing: BrokerState, now_ms: int) -> None:
        if self.sessions.is_live(existing, now_ms=now_ms) and not existing.in_controlled_shutdown:
            raise ApiError(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                "Another broker is registered with that broker id. If the broker was recently restarted this should "
                "self-resolve once the heartbeat manager expires the broker's session.",
            )

    def _check_directories(self, broker_id: int, directories: Sequence[Uuid]) -> None:
        if not directories:
            raise ApiError(ErrorCode.INVALID_REGISTRATION, "No directories specified in request")
        if any(int.from_bytes(directory, "big") < _RESERVED_DIRECTORIES for directory in directories):
            raise ApiError(ErrorCode.INVALID_REGISTRATION, "Reserved directory ID in request")
        if len(set(directories)) != len(directories):
            raise ApiError(ErrorCode.INVALID_REGISTRATION, "Duplicate directory ID in request")
        for other in self.image.brokers.values():
            for directory in directories:
                if other.node_id != broker_id and directory in other.log_dirs:
                    raise ApiError(
                        ErrorCode.INVALID_REGISTRATION,
                        f"Broker {other.node_id} is already registered with directory {directory.hex()}",
                    )

    def _check_listeners(self, request: BrokerRegistrationRequest) -> None:
        names = [listener.name for listener in request.listeners]
        if not names:
            raise ApiError(
                ErrorCode.INVALID_REGISTRATION,
                f"Broker {request.broker_id} registers no listener: nobody could reach it. Set advertised.listeners.",
            )
        if len(set(names)) != len(names):
            raise ApiError(
                ErrorCode.INVALID_REGISTRATION, f"Broker {request.broker_id} registers a listener twice: {names}"
            )

    def _check_features(self, request: BrokerRegistrationRequest) -> None:
        ranges = {one.name: (one.min_supported_version, one.max_supported_version) for one in request.features}
        for name, level in sorted(self.image.features.items()):
            low, high = ranges.get(name, (0, 0))
            if not low <= level <= high:
                raise ApiError(
                    ErrorCode.UNSUPPORTED_VERSION,
                    f"Unable to register because the broker does not support finalized version {level} of {name}. "
                    f"The broker wants a version between {low} and {high}, inclusive.",
                )
        for name, (low, high) in sorted(ranges.items()):
            if low > 0 and name not in self.image.features and name != METADATA_VERSION:
                raise ApiError(
                    ErrorCode.UNSUPPORTED_VERSION,
                    f"Unable to register because the broker does not support finalized version 0 of {name}. "
                    f"The broker wants a version between {low} and {high}, inclusive.",
                )
