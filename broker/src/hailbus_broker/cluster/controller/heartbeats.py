"""Decides about heartbeats: who is fenced, who may lead again, who may stop (KIP-631, KIP-835)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hailbus_broker.cluster.controller.decision import Decision
from hailbus_broker.cluster.controller.state import ControllerState
from hailbus_broker.cluster.metadata.brokers import FENCE, UNFENCE
from hailbus_broker.cluster.metadata.names import NO_LEADER
from hailbus_broker.protocol.definitions.broker_heartbeat_response import BrokerHeartbeatResponse
from hailbus_broker.protocol.definitions.broker_registration_change_record import BrokerRegistrationChangeRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hailbus_broker.cluster.controller.sessions import BrokerSession
    from hailbus_broker.cluster.metadata.brokers import BrokerState
    from hailbus_broker.protocol.definitions.broker_heartbeat_request import BrokerHeartbeatRequest
    from hailbus_broker.protocol.schema import Message, Uuid
    from hailbus_broker.records import Offset


class HeartbeatDecisions(ControllerState):
    """The part of the controller that fences brokers, lets them lead again and lets them stop."""

    def heartbeat(
        self, request: BrokerHeartbeatRequest, *, next_offset: Offset, now_ms: int
    ) -> Decision[BrokerHeartbeatResponse]:
        """Decide what follows from a heartbeat, and note that the broker was heard of.

        | The broker is | and wants | it becomes |
        |---|---|---|
        | fenced | to stop | fenced, and may stop |
        | fenced | to lead, and has applied its registration and last fence | unfenced, unless it was about to stop |
        | unfenced | to be fenced | fenced |
        | unfenced | to stop, and leads nothing | fenced, and may stop |
        | unfenced | to stop | in controlled shutdown |
        | in controlled shutdown | anything, but leads nothing, and the others know | fenced, and may stop |

        Args:
            request: Of the broker.
            next_offset: Of the first record that this decision would append.
            now_ms: On the clock of the sessions.

        Raises:
            ApiError: STALE_BROKER_EPOCH.
        """
        self.check_broker_epoch(request.broker_id, request.broker_epoch)
        broker = self.image.brokers[request.broker_id]
        session = self.sessions.touch(broker, now_ms=now_ms)
        session.metadata_offset = request.current_metadata_offset
        records: list[Message] = []
        is_caught_up = request.current_metadata_offset >= session.known_offset
        is_fenced, may_stop = broker.fenced, False
        if broker.fenced:
            if request.want_shut_down:
                may_stop = True
            elif not request.want_fence and is_caught_up and not broker.in_controlled_shutdown:
                is_fenced = False
                records += self._unfence(broker)
        elif request.want_fence and not broker.in_controlled_shutdown:
            is_fenced, may_stop = True, request.want_shut_down
            records += self._fence(broker, next_offset)
        elif request.want_shut_down or broker.in_controlled_shutdown:
            if self._may_stop(broker, session):
                is_fenced = may_stop = True
                records += self._fence(broker, next_offset)
            elif not broker.in_controlled_shutdown:
                records += self._begin_shutdown(broker)
                session.shutdown_offset = next_offset + len(records) - 1
        if may_stop:
            # Its next incarnation need not wait for the end of this session.
            self.sessions.end(broker.node_id)
        with self.as_if_applied(records):
            records = records + self._directories(request)
        return Decision(
            records,
            BrokerHeartbeatResponse(is_caught_up=is_caught_up, is_fenced=is_fenced, should_shut_down=may_stop),
        )

    def fence_silent(self, *, next_offset: Offset, now_ms: int) -> list[Message]:
        """Decide to fence the broker that is silent longest beyond the session timeout, if there is one.

        One at a time: the next decision sees what the loss of this one has changed.
        """
        broker_id = self.sessions.stale(self.image.brokers, now_ms=now_ms)
        if broker_id is None:
            return []
        return self.fence(broker_id, self.image.brokers[broker_id].broker_epoch, next_offset=next_offset)

    def fence(self, broker_id: int, broker_epoch: int, *, next_offset: Offset) -> list[Message]:
        """Decide to fence a broker that is known to be dead: its host refuses connections.

        Args:
            broker_id: Of the broker.
            broker_epoch: Of the incarnation that was found dead. For any other one nothing happens.
            next_offset: Of the first record that this decision would append.
        """
        broker = self.image.brokers.get(broker_id)
        if broker is None or broker.broker_epoch != broker_epoch:
            return []
        self.sessions.end(broker_id)
        return [] if broker.fenced else self._fence(broker, next_offset)

    def _fence(self, broker: BrokerState, next_offset: Offset) -> list[Message]:
        records = self.leader_and_isr_changes(self.partitions_in_sync_on(broker.node_id), removed=broker.node_id)
        self.sessions.fence(broker, next_offset + len(records))
        records.append(_change(broker, fenced=FENCE))
        return records

    def _unfence(self, broker: BrokerState) -> list[Message]:
        leaderless = (found for found in self.partitions() if found[1].leader == NO_LEADER)
        return [_change(broker, fenced=UNFENCE), *self.leader_and_isr_changes(leaderless, added=broker.node_id)]

    def _begin_shutdown(self, broker: BrokerState) -> list[Message]:
        change = BrokerRegistrationChangeRecord(
            broker_id=broker.node_id, broker_epoch=broker.broker_epoch, in_controlled_shutdown=1
        )
        return [
            change,
            *self.leader_and_isr_changes(self.partitions_in_sync_on(broker.node_id), removed=broker.node_id),
        ]

    def _may_stop(self, broker: BrokerState, session: BrokerSession) -> bool:
        if any(state.leader == broker.node_id for _, state in self.partitions()):
            return False
        if session.shutdown_offset is None:
            return True
        # The others must know their new leaders: until then followers fetch from this broker.
        lowest = self.sessions.lowest_active_offset(self.image.brokers)
        return lowest is None or session.shutdown_offset <= lowest

    # ------------------------------------------------------------------ log directories

    def _directories(self, request: BrokerHeartbeatRequest) -> list[Message]:
        broker = self.image.brokers[request.broker_id]
        records: list[Message] = []
        offline = [directory for directory in broker.log_dirs if directory in request.offline_log_dirs]
        if offline:
            records += self._without_directories(broker, offline)
        cordoned = None if request.cordoned_log_dirs is None else tuple(request.cordoned_log_dirs)
        if offline or (cordoned is not None and cordoned != broker.cordoned_log_dirs):
            change = BrokerRegistrationChangeRecord(broker_id=broker.node_id, broker_epoch=broker.broker_epoch)
            if offline:
                change.log_dirs = [directory for directory in broker.log_dirs if directory not in offline]
            if cordoned is not None and cordoned != broker.cordoned_log_dirs:
                change.cordoned_log_dirs = list(cordoned)
            records.append(change)
        return records

    def _without_directories(self, broker: BrokerState, offline: Sequence[Uuid]) -> list[Message]:
        affected = [
            (topic, state)
            for topic, state in self.partitions_in_sync_on(broker.node_id)
            if broker.node_id in state.replicas and state.directory(broker.node_id) in offline
        ]
        return self.leader_and_isr_changes(affected, removed=broker.node_id)


def _change(broker: BrokerState, *, fenced: int) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(broker_id=broker.node_id, broker_epoch=broker.broker_epoch, fenced=fenced)
