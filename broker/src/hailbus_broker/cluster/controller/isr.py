"""Decides about changed ISRs: AlterPartition, by which a leader says who is in sync (KIP-497, KIP-841, KIP-903)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hailbus_broker.cluster.controller.decision import Decision
from hailbus_broker.cluster.controller.state import ControllerState
from hailbus_broker.cluster.metadata.names import NO_LEADER_CHANGE
from hailbus_broker.cluster.metadata.topics import LeaderRecovery
from hailbus_broker.protocol.definitions import alter_partition_response
from hailbus_broker.protocol.definitions.alter_partition_response import AlterPartitionResponse
from hailbus_broker.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hailbus_broker.cluster.metadata.image import PartitionState
    from hailbus_broker.protocol.definitions.alter_partition_request import AlterPartitionRequest, PartitionData
    from hailbus_broker.protocol.schema import Message, Uuid

ANY_EPOCH: Final = -1
"""The leader asks in a version without broker epochs."""


class IsrDecisions(ControllerState):
    """The part of the controller that decides who is in sync."""

    def alter_partition(self, request: AlterPartitionRequest, *, version: int) -> Decision[AlterPartitionResponse]:
        """Decide about the ISRs that a leader asks for. Each partition is decided by itself.

        A change that completes a reassignment may take the leadership away from the broker that asks: then the change
        happens, and the answer is NEW_LEADER_ELECTED.

        Raises:
            ApiError: STALE_BROKER_EPOCH.
        """
        self.check_broker_epoch(request.broker_id, request.broker_epoch)
        response = AlterPartitionResponse()
        records: list[Message] = []
        seen: set[tuple[Uuid, int]] = set()
        for asked_topic in request.topics:
            answer = alter_partition_response.TopicData(topic_id=asked_topic.topic_id)
            response.topics.append(answer)
            for asked in asked_topic.partitions:
                key = (bytes(asked_topic.topic_id), asked.partition_index)
                if key in seen:
                    result = _refused(asked, ErrorCode.INVALID_REQUEST)
                else:
                    seen.add(key)
                    result = self._alter(request.broker_id, key[0], asked, version, records)
                answer.partitions.append(result)
        return Decision(records, response)

    def _alter(
        self, broker_id: int, topic_id: Uuid, asked: PartitionData, version: int, records: list[Message]
    ) -> alter_partition_response.PartitionData:
        topic = self.image.topics_by_id.get(topic_id)
        if topic is None:
            return _refused(asked, ErrorCode.UNKNOWN_TOPIC_ID)
        state = self.image.partition(topic_id, asked.partition_index)
        if state is None:
            return _refused(asked, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        isr = (
            [(one.broker_id, one.broker_epoch) for one in asked.new_isr_with_epochs]
            if version >= 3
            else [(one, ANY_EPOCH) for one in asked.new_isr]
        )
        code = self._check(broker_id, state, asked, isr)
        if code is not ErrorCode.NONE:
            return _refused(asked, code)
        change = self.change(topic, state)
        change.isr = tuple(one for one, _ in isr)
        change.recovery = LeaderRecovery(asked.leader_recovery_state)
        record = change.build()
        if record is not None:
            records.append(record)
            state = state.merge(record)
            if record.leader not in {broker_id, NO_LEADER_CHANGE}:
                return _refused(asked, ErrorCode.NEW_LEADER_ELECTED)
        return alter_partition_response.PartitionData(
            partition_index=state.index,
            leader_id=state.leader,
            leader_epoch=state.leader_epoch,
            isr=list(state.isr),
            leader_recovery_state=int(state.recovery),
            partition_epoch=state.partition_epoch,
        )

    def _check(
        self, broker_id: int, state: PartitionState, asked: PartitionData, isr: Sequence[tuple[int, int]]
    ) -> ErrorCode:
        ids = [one for one, _ in isr]
        if asked.leader_epoch > state.leader_epoch or asked.partition_epoch > state.partition_epoch:
            # The leader knows more than this controller does: another one is active.
            return ErrorCode.NOT_CONTROLLER
        if asked.leader_epoch < state.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if broker_id != state.leader:
            return ErrorCode.INVALID_REQUEST
        if asked.partition_epoch < state.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        if broker_id not in ids or len(set(ids)) != len(ids) or not set(ids) <= set(state.replicas):
            return ErrorCode.INVALID_REQUEST
        if asked.leader_recovery_state not in {LeaderRecovery.RECOVERED, LeaderRecovery.RECOVERING}:
            return ErrorCode.INVALID_REQUEST
        is_recovering = asked.leader_recovery_state == LeaderRecovery.RECOVERING
        if is_recovering and (len(ids) > 1 or state.recovery is LeaderRecovery.RECOVERED):
            return ErrorCode.INVALID_REQUEST
        if not all(self._is_eligible(one, epoch) for one, epoch in isr):
            return ErrorCode.INELIGIBLE_REPLICA
        return ErrorCode.NONE

    def _is_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether a broker may join an ISR: it is active, and the incarnation that the leader has seen fetching."""
        broker = self.image.brokers.get(broker_id)
        return broker is not None and broker.is_active and broker_epoch in {ANY_EPOCH, broker.broker_epoch}


def _refused(asked: PartitionData, code: ErrorCode) -> alter_partition_response.PartitionData:
    return alter_partition_response.PartitionData(partition_index=asked.partition_index, error_code=code)
