"""Decides about elections that somebody asks for, or that are due: ElectLeaders (KIP-460) and the leaders' balance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hailbus_broker.cluster.controller.decision import Decision
from hailbus_broker.cluster.controller.partition_change import Election
from hailbus_broker.cluster.controller.state import ControllerState
from hailbus_broker.cluster.metadata.names import NO_LEADER
from hailbus_broker.protocol.definitions.elect_leaders_response import (
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from hailbus_broker.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hailbus_broker.cluster.metadata.image import PartitionState, TopicState
    from hailbus_broker.protocol.definitions.elect_leaders_request import ElectLeadersRequest
    from hailbus_broker.protocol.schema import Message

PREFERRED: Final = 0
UNCLEAN: Final = 1
MAX_ELECTIONS: Final = 1_000
"""Of one round of the leaders' balance, as in Apache Kafka."""


class ElectionDecisions(ControllerState):
    """The part of the controller that moves leaderships."""

    def elect_leaders(self, request: ElectLeadersRequest, *, version: int) -> Decision[ElectLeadersResponse]:
        """Decide about elections for some partitions, or for all. Of all, only those that changed are listed."""
        is_unclean = version >= 1 and request.election_type == UNCLEAN
        if version >= 1 and request.election_type not in {PREFERRED, UNCLEAN}:
            return Decision([], ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST))
        records: list[Message] = []
        response = ElectLeadersResponse()
        if request.topic_partitions is None:
            for topic in self.image.topics.values():
                results = [
                    result
                    for state in topic.partitions
                    if (result := self._elect(topic, state, records, is_unclean=is_unclean)).error_code
                    != ErrorCode.ELECTION_NOT_NEEDED
                ]
                if results:
                    found = ReplicaElectionResult(topic=topic.name, partition_result=results)
                    response.replica_election_results.append(found)
            return Decision(records, response)
        seen: set[tuple[str, int]] = set()
        for asked in request.topic_partitions:
            answer = ReplicaElectionResult(topic=asked.topic)
            response.replica_election_results.append(answer)
            for index in asked.partitions:
                if (asked.topic, index) in seen:
                    continue
                seen.add((asked.topic, index))
                answer.partition_result.append(self._elect_named(asked.topic, index, records, is_unclean=is_unclean))
        return Decision(records, response)

    def balance_leaders(self) -> tuple[list[Message], bool]:
        """Decide to give leaderships back to preferred replicas; also say whether there may be more to give back."""
        records: list[Message] = []
        for topic, state in self.partitions():
            if state.leader == state.preferred_leader or not self.is_active(state.preferred_leader):
                continue
            record = self.change(topic, state, election=Election.PREFERRED).build()
            if record is not None:
                records.append(record)
                if len(records) == MAX_ELECTIONS:
                    return records, True
        return records, False

    def elect_unclean(self) -> tuple[list[Message], bool]:
        """Decide about leaders for partitions without one, where topics allow it; also say whether more may follow."""
        records: list[Message] = []
        for topic, state in self._leaderless():
            if self.allows_unclean_election(topic):
                record = self.change(topic, state, election=Election.UNCLEAN).build()
                if record is not None:
                    records.append(record)
                    if len(records) == MAX_ELECTIONS:
                        return records, True
        return records, False

    def _leaderless(self) -> Iterator[tuple[TopicState, PartitionState]]:
        return (found for found in self.partitions() if found[1].leader == NO_LEADER)

    def _elect_named(self, name: str, index: int, records: list[Message], *, is_unclean: bool) -> PartitionResult:
        topic = self.image.topics.get(name)
        if topic is None:
            return PartitionResult(
                partition_id=index,
                error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                error_message=f"No such topic as {name}",
            )
        if not 0 <= index < len(topic.partitions):
            return PartitionResult(
                partition_id=index,
                error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                error_message=f"No such partition as {name}-{index}",
            )
        return self._elect(topic, topic.partitions[index], records, is_unclean=is_unclean)

    def _elect(
        self, topic: TopicState, state: PartitionState, records: list[Message], *, is_unclean: bool
    ) -> PartitionResult:
        has_leader = state.leader != NO_LEADER
        if has_leader and (is_unclean or state.leader == state.preferred_leader):
            return PartitionResult(
                partition_id=state.index,
                error_code=ErrorCode.ELECTION_NOT_NEEDED,
                error_message="Leader election not needed for topic partition.",
            )
        record = self.change(topic, state, election=Election.UNCLEAN if is_unclean else Election.PREFERRED).build()
        if record is None:
            code, text = (
                (ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available.")
                if is_unclean
                else (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available.")
            )
            return PartitionResult(partition_id=state.index, error_code=code, error_message=text)
        records.append(record)
        return PartitionResult(partition_id=state.index, error_message=None)
