"""Asks transaction coordinators on other brokers about partitions: AddPartitionsToTxn between brokers (KIP-890)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.client import UnreachableError
from hailbus_broker.logging import get_logger
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.runtime.broker_queues import BrokerQueues

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Mapping, Sequence

    from hailbus_broker.cluster.raft.voters import Endpoint
    from hailbus_broker.coordinators.transaction.state import TopicPartition
    from hailbus_broker.protocol.definitions.add_partitions_to_txn_request import AddPartitionsToTxnTransaction
    from hailbus_broker.protocol.definitions.add_partitions_to_txn_response import AddPartitionsToTxnResponse
    from hailbus_broker.runtime.coordinator import Spawn
    from hailbus_broker.runtime.peers import Peers

log: Any = get_logger()

TIMEOUT_S: Final = 5.0
TRANSACTIONS_PER_REQUEST: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCheck:
    """A question of a partition's leader to the coordinator of a transaction.

    Attributes:
        partitions: That the producer writes to.
        verify_only: Whether they must be part of the transaction already (transactions v1), or else become part of it.
        answer: Called with the code of each partition.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Sequence[TopicPartition]
    verify_only: bool
    answer: Callable[[Mapping[TopicPartition, ErrorCode]], None]


class RemoteCoordinators:
    """Sends checks to coordinators on other brokers, many in one request.

    Args:
        endpoint_of: Returns where a broker listens for others; None if that is not known.
        peers: Connections that are used for nothing else.
        spawn: Runs the sending beside the requests.
    """

    def __init__(self, *, endpoint_of: Callable[[int], Endpoint | None], peers: Peers, spawn: Spawn) -> None:
        self._endpoint_of: Final = endpoint_of
        self._peers: Final = peers
        self._queues: Final = BrokerQueues[PartitionCheck](self._send_to, spawn, "partition-checks")

    def check(self, broker_id: int, check: PartitionCheck) -> None:
        """Ask the coordinator on a broker."""
        self._queues.put(broker_id, check)

    async def _send_to(self, broker_id: int, queue: deque[PartitionCheck]) -> None:
        checks = _take(queue)
        endpoint = self._endpoint_of(broker_id)
        response: AddPartitionsToTxnResponse | None = None
        if endpoint is not None:
            try:
                response = await self._peers.ask(
                    endpoint, ApiKey.ADD_PARTITIONS_TO_TXN, _request(checks), timeout_s=TIMEOUT_S
                )
            except UnreachableError as error:
                log.debug("partition_checks_not_sent", broker=broker_id, error=str(error))
        codes = {} if response is None else _codes(response)
        missing = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if response is not None and response.error_code:
            missing = ErrorCode(response.error_code)
        for check in checks:
            try:
                found = codes.get(check.transactional_id, {})
                check.answer({place: found.get(place, missing) for place in check.partitions})
            except Exception:  # it must not keep the answers to others
                log.exception("partition_check_callback_failed", transactional_id=check.transactional_id)


def _take(queue: deque[PartitionCheck]) -> list[PartitionCheck]:
    """Take checks from a queue until a transactional id repeats: a response identifies a check by its id."""
    checks: list[PartitionCheck] = []
    seen: set[str] = set()
    while queue and len(checks) < TRANSACTIONS_PER_REQUEST and queue[0].transactional_id not in seen:
        seen.add(queue[0].transactional_id)
        checks.append(queue.popleft())
    return checks


def _request(checks: Sequence[PartitionCheck]) -> Any:
    from hailbus_broker.protocol.definitions.add_partitions_to_txn_request import AddPartitionsToTxnRequest

    return AddPartitionsToTxnRequest(transactions=[_transaction(check) for check in checks])


def _transaction(check: PartitionCheck) -> AddPartitionsToTxnTransaction:
    from hailbus_broker.protocol.definitions.add_partitions_to_txn_request import (
        AddPartitionsToTxnTopic,
        AddPartitionsToTxnTransaction,
    )

    topics: dict[str, AddPartitionsToTxnTopic] = {}
    for topic, index in check.partitions:
        topics.setdefault(topic, AddPartitionsToTxnTopic(name=topic)).partitions.append(index)
    return AddPartitionsToTxnTransaction(
        transactional_id=check.transactional_id,
        producer_id=check.producer_id,
        producer_epoch=check.producer_epoch,
        verify_only=check.verify_only,
        topics=list(topics.values()),
    )


def _codes(response: AddPartitionsToTxnResponse) -> dict[str, dict[TopicPartition, ErrorCode]]:
    return {
        transaction.transactional_id: {
            (topic.name, part.partition_index): _code(part.partition_error_code)
            for topic in transaction.topic_results
            for part in topic.results_by_partition
        }
        for transaction in response.results_by_transaction
    }


def _code(number: int) -> ErrorCode:
    """Return the code of a coordinator on this broker: handlers choose the one for their client's version."""
    code = ErrorCode(number)
    return ErrorCode.INVALID_TXN_STATE if code is ErrorCode.TRANSACTION_ABORTABLE else code
