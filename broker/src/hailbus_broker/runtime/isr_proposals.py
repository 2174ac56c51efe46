"""Sends the ISRs that this node's leaders propose to the controller (KIP-497)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hailbus_broker.client import UnreachableError
from hailbus_broker.logging import get_logger
from hailbus_broker.protocol.definitions.alter_partition_request import (
    AlterPartitionRequest,
    BrokerState,
    PartitionData,
    TopicData,
)
from hailbus_broker.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from hailbus_broker.cluster.replication.in_sync import Proposal
    from hailbus_broker.protocol.definitions.alter_partition_response import (
        AlterPartitionResponse,
    )
    from hailbus_broker.protocol.definitions.alter_partition_response import (
        PartitionData as PartitionAnswer,
    )
    from hailbus_broker.protocol.schema import Uuid
    from hailbus_broker.runtime.replica import LeaderReplica

    Open: TypeAlias = tuple[LeaderReplica, Proposal]

log: Any = get_logger()

BACKOFF_S: Final = 0.05
PARTITIONS_PER_REQUEST: Final = 1_000

_NOT_HAPPENED: Final = frozenset({ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED})
"""The ISR stays as it was, and the leader may propose another one."""
_METADATA_DECIDES: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)
"""The partition has another state than this leader thinks. Until the metadata arrives both ISRs count."""


class IsrProposals:
    """The proposals whose outcome is not known. One request is under way at a time, for all of them.

    Args:
        node_id: Of this node.
        broker_epoch: Returns the epoch of its registration.
        ask: Sends a request to the active controller.
        spawn: Runs the requests in the background.
    """

    def __init__(
        self,
        *,
        node_id: int,
        broker_epoch: Callable[[], int],
        ask: Callable[[AlterPartitionRequest], Awaitable[AlterPartitionResponse]],
        spawn: Callable[[Coroutine[Any, Any, None], str], object],
    ) -> None:
        self._node_id: Final = node_id
        self._broker_epoch: Final = broker_epoch
        self._ask: Final = ask
        self._spawn: Final = spawn
        self._open: Final[dict[tuple[Uuid, int], Open]] = {}
        self._is_running = False

    def submit(self, leader: LeaderReplica, proposal: Proposal) -> None:
        """Ask the controller for an ISR, until it answers or the metadata has decided."""
        self._open[leader.topic_id, leader.index] = (leader, proposal)
        if not self._is_running:
            self._is_running = True
            self._spawn(self._run(), "isr-proposals")

    async def _run(self) -> None:
        try:
            while True:
                await asyncio.sleep(0)  # the proposals of one turn of the loop share a request
                self._drop_settled()
                if not self._open:
                    return
                asked = dict(list(self._open.items())[:PARTITIONS_PER_REQUEST])
                try:
                    response = await self._ask(self._request(asked))
                except UnreachableError as error:
                    log.warning("isr_proposal_unanswered", error=str(error), partitions=len(asked))
                    await asyncio.sleep(BACKOFF_S)
                    continue
                if response.error_code:
                    log.warning("isr_proposal_refused", error=ErrorCode(response.error_code).name)
                    await asyncio.sleep(BACKOFF_S)
                elif self._take(asked, response):
                    await asyncio.sleep(BACKOFF_S)
        finally:
            self._is_running = False

    def _drop_settled(self) -> None:
        for key, (leader, proposal) in list(self._open.items()):
            followers = leader.followers
            if leader.error is not None or followers is None or not followers.in_sync.is_open(proposal):
                del self._open[key]

    def _request(self, asked: dict[tuple[Uuid, int], Open]) -> AlterPartitionRequest:
        request = AlterPartitionRequest(broker_id=self._node_id, broker_epoch=self._broker_epoch())
        topics: dict[Uuid, TopicData] = {}
        for (topic_id, index), (leader, proposal) in asked.items():
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = TopicData(topic_id=topic_id)
                request.topics.append(topic)
            topic.partitions.append(
                PartitionData(
                    partition_index=index,
                    leader_epoch=leader.leader_epoch,
                    new_isr=list(proposal.isr),
                    new_isr_with_epochs=[
                        BrokerState(
                            broker_id=node_id, broker_epoch=self._broker_epoch() if node_id == self._node_id else epoch
                        )
                        for node_id, epoch in proposal.isr.items()
                    ],
                    partition_epoch=proposal.partition_epoch,
                )
            )
        return request

    def _take(self, asked: dict[tuple[Uuid, int], Open], response: AlterPartitionResponse) -> bool:
        """Act on the controller's answers.

        Returns:
            Whether some proposals have to be sent again.
        """
        answers = {
            (bytes(topic.topic_id), answer.partition_index): answer
            for topic in response.topics
            for answer in topic.partitions
        }
        must_retry = False
        for key, one in asked.items():
            answer = answers.get(key)
            if answer is None or self._is_unknown(one, answer):
                must_retry = True
            elif self._open.get(key) is one:
                del self._open[key]
        return must_retry

    def _is_unknown(self, one: Open, answer: PartitionAnswer) -> bool:
        """Act on the controller's answer for a partition; return whether the proposal has to be sent again."""
        leader, proposal = one
        code = ErrorCode(answer.error_code)
        followers = leader.followers
        if followers is None or not followers.in_sync.is_open(proposal):
            return False
        if code is ErrorCode.NONE:
            if answer.leader_epoch == leader.leader_epoch and answer.leader_id == self._node_id:
                followers.change_isr(answer.isr, answer.partition_epoch)
                leader.recount()
            return False
        if code in _NOT_HAPPENED:
            followers.in_sync.failed(proposal)
            return False
        log.info("isr_proposal_refused", partition=leader.name, error=code.name, isr=sorted(proposal.isr))
        return code not in _METADATA_DECIDES
