"""Decides about other replicas for partitions (KIP-455): add, wait for the ISR, remove, or go back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hailbus_broker.cluster.controller.decision import Decision
from hailbus_broker.cluster.controller.partition_change import Election
from hailbus_broker.cluster.controller.state import ControllerState
from hailbus_broker.cluster.metadata.topics import LeaderRecovery
from hailbus_broker.protocol.definitions.alter_partition_reassignments_response import (
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from hailbus_broker.protocol.definitions.list_partition_reassignments_response import (
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from hailbus_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hailbus_broker.cluster.metadata.image import MetadataImage, PartitionState, TopicState
    from hailbus_broker.protocol.definitions.alter_partition_reassignments_request import (
        AlterPartitionReassignmentsRequest,
    )
    from hailbus_broker.protocol.definitions.list_partition_reassignments_request import (
        ListPartitionReassignmentsRequest,
    )
    from hailbus_broker.protocol.schema import Message


class ReassignmentDecisions(ControllerState):
    """The part of the controller that moves replicas."""

    def alter_reassignments(
        self, request: AlterPartitionReassignmentsRequest
    ) -> Decision[AlterPartitionReassignmentsResponse]:
        """Decide about new replicas for partitions, or the end of reassignments. Each is decided by itself.

        The new replicas join at once. As soon as all of them are in sync the others leave, see `PartitionChange`.
        """
        response = AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change, error_message=None
        )
        records: list[Message] = []
        seen: set[tuple[str, int]] = set()
        for topic in request.topics:
            answer = ReassignableTopicResponse(name=topic.name)
            response.responses.append(answer)
            for asked in topic.partitions:
                result = ReassignablePartitionResponse(partition_index=asked.partition_index, error_message=None)
                answer.partitions.append(result)
                try:
                    if (topic.name, asked.partition_index) in seen:
                        raise ApiError(
                            ErrorCode.INVALID_REQUEST,
                            f"The request names partition {topic.name}:{asked.partition_index} twice.",
                        )
                    seen.add((topic.name, asked.partition_index))
                    records += self._reassign(
                        topic.name,
                        asked.partition_index,
                        asked.replicas,
                        may_change_factor=request.allow_replication_factor_change,
                    )
                except ApiError as error:
                    result.error_code, result.error_message = error.code, error.message
        return Decision(records, response)

    def _reassign(
        self, name: str, index: int, replicas: Sequence[int] | None, *, may_change_factor: bool
    ) -> list[Message]:
        topic = self.image.topics.get(name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
        if not 0 <= index < len(topic.partitions):
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}.")
        state = topic.partitions[index]
        if replicas is None:
            return self._cancel(topic, state)
        factor = len(state.replicas) - len(state.adding_replicas)
        if not may_change_factor and len(replicas) != factor:
            raise ApiError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"The replication factor is changed from {factor} to {len(replicas)}, which the request forbids.",
            )
        self.check_assignment(replicas)
        removing = tuple(broker_id for broker_id in state.replicas if broker_id not in replicas)
        adding = tuple(
            broker_id for broker_id in replicas if broker_id not in state.replicas or broker_id in state.adding_replicas
        )
        change = self.change(topic, state, election=Election.ONLINE)
        change.replicas = (*replicas, *removing)
        change.removing, change.adding = removing, adding
        record = change.build()
        return [] if record is None else [record]

    def _cancel(self, topic: TopicState, state: PartitionState) -> list[Message]:
        if not state.is_reassigning:
            raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
        replicas = tuple(broker_id for broker_id in state.replicas if broker_id not in state.adding_replicas)
        if not replicas:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "Invalid replica assignment: addingReplicas contains all replicas.",
            )
        isr = tuple(broker_id for broker_id in state.isr if broker_id in replicas)
        recovery = state.recovery
        if not isr and not any(broker_id in state.elr for broker_id in replicas):
            if not self.allows_unclean_election(topic):
                raise ApiError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"Unable to revert partition assignment for {topic.name}:{state.index} because it would require "
                    "an unclean leader election.",
                )
            isr = (next((broker_id for broker_id in replicas if self.is_active(broker_id)), replicas[0]),)
            recovery = LeaderRecovery.RECOVERING
        change = self.change(topic, state)
        change.isr, change.replicas, change.removing, change.adding = isr, replicas, (), ()
        change.recovery = recovery
        record = change.build()
        return [] if record is None else [record]


def list_reassignments(
    image: MetadataImage, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """Return the reassignments that are under way, of some partitions or of all."""
    response = ListPartitionReassignmentsResponse(error_message=None)
    if request.topics is None:
        asked: Iterable[tuple[TopicState, Sequence[PartitionState]]] = [
            (topic, topic.partitions) for topic in image.topics.values()
        ]
    else:
        asked = [
            (found, [found.partitions[index] for index in one.partition_indexes if 0 <= index < len(found.partitions)])
            for one in request.topics
            if (found := image.topics.get(one.name)) is not None
        ]
    for topic, states in asked:
        ongoing = [
            OngoingPartitionReassignment(
                partition_index=state.index,
                replicas=list(state.replicas),
                adding_replicas=list(state.adding_replicas),
                removing_replicas=list(state.removing_replicas),
            )
            for state in states
            if state.is_reassigning
        ]
        if ongoing:
            response.topics.append(OngoingTopicReassignment(name=topic.name, partitions=ongoing))
    return response
