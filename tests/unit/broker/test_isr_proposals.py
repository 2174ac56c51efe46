"""Proposed ISRs reach the controller, whatever it answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hailbus_broker.client import UnreachableError
from hailbus_broker.cluster.replication.in_sync import InSyncReplicas
from hailbus_broker.protocol.definitions.alter_partition_response import (
    AlterPartitionResponse,
    PartitionData,
    TopicData,
)
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.runtime.followers import Followers, ReplicationSettings
from hailbus_broker.runtime.isr_proposals import IsrProposals

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from hailbus_broker.cluster.replication.in_sync import Proposal
    from hailbus_broker.protocol.definitions.alter_partition_request import AlterPartitionRequest

TOPIC = b"t" * 16


class Clock:
    """Time that stands."""

    def now_ms(self) -> int:
        return 1_000

    def wall_ms(self) -> int:
        return 1_000


class Leader:
    """The part of a leader that a proposal concerns; broker 2 has caught up and may join."""

    def __init__(self, index: int) -> None:
        self.topic_id, self.index, self.name, self.leader_epoch = TOPIC, index, f"rides-{index}", 5
        self.error: Exception | None = None
        self.recounts = 0
        in_sync = InSyncReplicas(
            node_id=1,
            leader_epoch=5,
            epoch_start_offset=0,
            replicas=(1, 2),
            isr=(1,),
            partition_epoch=7,
            now_ms=1_000,
            is_eligible=lambda *_: True,
        )
        in_sync.fetched(2, 44, 0, 0, 1_000)
        self.followers = Followers(
            in_sync, clock=Clock(), settings=ReplicationSettings(max_lag_ms=100), min_isr=1, submit=lambda *_: None
        )

    def propose(self) -> Proposal:
        proposal = self.followers.in_sync.propose(0, 0, now_ms=1_000, max_lag_ms=100)
        assert proposal is not None
        return proposal

    def recount(self) -> None:
        self.recounts += 1


class Controller:
    """Answers as a test says, one entry for each request; the last one again and again."""

    def __init__(self, *answers: Callable[[AlterPartitionRequest], AlterPartitionResponse]) -> None:
        self.answers = list(answers)
        self.requests: list[AlterPartitionRequest] = []

    async def ask(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        self.requests.append(request)
        await asyncio.sleep(0)
        return (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])(request)


def all_with(code: ErrorCode) -> Callable[[AlterPartitionRequest], AlterPartitionResponse]:
    def answer(request: AlterPartitionRequest) -> AlterPartitionResponse:
        partitions = [
            PartitionData(
                partition_index=asked.partition_index,
                error_code=code,
                leader_id=1,
                leader_epoch=asked.leader_epoch,
                isr=[one.broker_id for one in asked.new_isr_with_epochs],
                partition_epoch=asked.partition_epoch + 1,
            )
            for topic in request.topics
            for asked in topic.partitions
        ]
        return AlterPartitionResponse(topics=[TopicData(topic_id=TOPIC, partitions=partitions)])

    return answer


def unreachable(_: AlterPartitionRequest) -> AlterPartitionResponse:
    raise UnreachableError("nobody answers")


def stale(_: AlterPartitionRequest) -> AlterPartitionResponse:
    return AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)


async def submitted(controller: Controller, *leaders: Leader) -> None:
    """Propose for all leaders, and wait until nothing is asked any more."""
    tasks: list[asyncio.Task[None]] = []

    def spawn(coroutine: Coroutine[Any, Any, None], _: str) -> None:
        tasks.append(asyncio.get_running_loop().create_task(coroutine))

    proposals = IsrProposals(node_id=1, broker_epoch=lambda: 33, ask=controller.ask, spawn=spawn)
    for leader in leaders:
        proposals.submit(leader, leader.propose())  # type: ignore[arg-type]  # what a proposal needs of a leader
    async with asyncio.timeout(30):
        await asyncio.gather(*tasks)


def test_one_request_asks_for_all_partitions_and_the_decision_counts_at_once() -> None:
    controller, leaders = Controller(all_with(ErrorCode.NONE)), [Leader(0), Leader(1)]
    asyncio.run(submitted(controller, *leaders))
    (request,) = controller.requests
    assert (request.broker_id, request.broker_epoch) == (1, 33)
    (topic,) = request.topics
    assert [one.partition_index for one in topic.partitions] == [0, 1]
    first = topic.partitions[0]
    assert (first.leader_epoch, first.partition_epoch) == (5, 7)
    assert [(one.broker_id, one.broker_epoch) for one in first.new_isr_with_epochs] == [(1, 33), (2, 44)]
    for leader in leaders:
        in_sync = leader.followers.in_sync
        assert (in_sync.isr, in_sync.partition_epoch, leader.recounts) == ((1, 2), 8, 1)
        assert in_sync.counted == {1, 2}


@pytest.mark.parametrize("code", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED])
def test_what_is_refused_for_good_has_not_happened(code: ErrorCode) -> None:
    controller, leader = Controller(all_with(code)), Leader(0)
    asyncio.run(submitted(controller, leader))
    assert len(controller.requests) == 1
    assert leader.followers.in_sync.counted == {1}
    assert leader.propose().isr == {1: -1, 2: 44}, "another fetch may propose it again"


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.UNKNOWN_TOPIC_ID,
    ],
)
def test_both_isrs_count_until_the_metadata_says_what_has_happened(code: ErrorCode) -> None:
    controller, leader = Controller(all_with(code)), Leader(0)
    asyncio.run(submitted(controller, leader))
    assert len(controller.requests) == 1
    assert leader.followers.in_sync.counted == {1, 2}
    leader.followers.in_sync.committed(replicas=(1, 2), isr=(1,), partition_epoch=9, now_ms=1_000)
    assert leader.followers.in_sync.counted == {1}


@pytest.mark.parametrize("failure", [unreachable, stale, all_with(ErrorCode.UNKNOWN_SERVER_ERROR)])
def test_a_proposal_whose_outcome_is_unknown_is_sent_again(
    failure: Callable[[AlterPartitionRequest], AlterPartitionResponse],
) -> None:
    controller, leader = Controller(failure, failure, all_with(ErrorCode.NONE)), Leader(0)
    asyncio.run(submitted(controller, leader))
    assert len(controller.requests) == 3
    assert leader.followers.in_sync.isr == (1, 2)


def test_a_proposal_ends_when_the_metadata_has_decided_or_another_broker_leads() -> None:
    leader, other = Leader(0), Leader(1)

    def decided_meanwhile(_: AlterPartitionRequest) -> AlterPartitionResponse:
        leader.followers.in_sync.committed(replicas=(1, 2), isr=(1,), partition_epoch=8, now_ms=1_000)
        other.error = ConnectionError("resigned")
        raise UnreachableError("the answer is lost")

    controller = Controller(decided_meanwhile)
    asyncio.run(submitted(controller, leader, other))
    assert len(controller.requests) == 1
    assert leader.followers.in_sync.isr == (1,)


def test_an_answer_that_is_older_than_the_metadata_changes_nothing() -> None:
    leader = Leader(0)

    def late(request: AlterPartitionRequest) -> AlterPartitionResponse:
        leader.followers.in_sync.committed(replicas=(1, 2), isr=(1,), partition_epoch=20, now_ms=1_000)
        return all_with(ErrorCode.NONE)(request)

    asyncio.run(submitted(Controller(late), leader))
    assert leader.followers.in_sync.isr == (1,)
