"""The states of a transaction, and what is remembered of each transactional id."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from hailbus_broker.coordinators.outcome import CoordinatorRecord
from hailbus_broker.protocol.definitions.transaction_log_key import TransactionLogKey
from hailbus_broker.protocol.definitions.transaction_log_value import PartitionsSchema, TransactionLogValue
from hailbus_broker.protocol.errors import ErrorCode, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
NO_TIME: Final = -1
LAST_EPOCH: Final = 2**15 - 2
"""A producer epoch that is not below this is exhausted.

One is left, to fence its owner, and then comes a new producer id.
"""

_FLEXIBLE_VERSION: Final = 1


class State(IntEnum):
    """Numbers as Kafka stores them in `__transaction_state`."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6

    @property
    def label(self) -> str:
        """As DescribeTransactions and ListTransactions name it."""
        return "".join(part.capitalize() for part in self.name.split("_"))

    @property
    def is_open(self) -> bool:
        """Whether readers of committed records wait for its end."""
        return self in {State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT}


PREPARED: Final = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})
COMPLETE: Final = frozenset({State.COMPLETE_COMMIT, State.COMPLETE_ABORT})
AT_REST: Final = frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT})

TRANSITIONS: Final[dict[State, frozenset[State]]] = {
    State.EMPTY: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT}),
    State.ONGOING: frozenset({State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT}),
    State.PREPARE_COMMIT: frozenset({State.COMPLETE_COMMIT}),
    State.PREPARE_ABORT: frozenset({State.COMPLETE_ABORT}),
    State.COMPLETE_COMMIT: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT}),
    State.COMPLETE_ABORT: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT}),
    State.DEAD: frozenset(),
}
"""Which state may follow which.

A transaction that has written nothing may only be aborted, and only in transactions v2. Nothing becomes Dead here: an
id that expires is forgotten, by a record without value; Apache Kafka's logs may hold the state.
"""

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """One transactional id: its producer and its newest transaction.

    Attributes:
        producer_epoch: -1 before the first InitProducerId has been answered.
        last_producer_epoch: The one before, to recognise a repeated InitProducerId; not durable, as in Kafka.
        previous_producer_id: Of before the producer id was exchanged, for the same reason.
        next_producer_id: What the producer gets when the prepared transaction is complete, because its epochs are
            used up.
        partitions: Of the transaction, sorted.
        start_ms: When the first partition was added, -1 without a transaction.
        updated_ms: When anything changed last.
        is_v2: Whether the producer speaks transactions v2, where each end brings a new producer epoch (KIP-890).
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int = NO_EPOCH
    last_producer_epoch: int = NO_EPOCH
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    timeout_ms: int
    state: State = State.EMPTY
    partitions: tuple[TopicPartition, ...] = field(default=())
    start_ms: int = NO_TIME
    updated_ms: int
    is_v2: bool = False

    @property
    def is_epoch_exhausted(self) -> bool:
        """Whether the next end of a transaction needs another producer id."""
        return self.producer_epoch >= LAST_EPOCH

    def with_next_epoch(self, expected_epoch: int | None, new_producer_id: Callable[[], int]) -> Transaction | None:
        """Return the state in which its producer has the next epoch; None when the producer is fenced.

        Args:
            expected_epoch: The epoch that the producer says it has; None if it says none.
            new_producer_id: Takes an id that nobody has, once the epochs are exhausted.
        """
        epoch = self.producer_epoch
        empty = replace(self, state=State.EMPTY, partitions=(), start_ms=NO_TIME, next_producer_id=NO_PRODUCER_ID)
        if self.is_epoch_exhausted and expected_epoch in {None, epoch}:
            return replace(
                empty,
                producer_id=new_producer_id(),
                previous_producer_id=self.producer_id,
                producer_epoch=0,
                last_producer_epoch=NO_EPOCH if expected_epoch is None else epoch,
            )
        if expected_epoch is None:
            return replace(empty, producer_epoch=epoch + 1, last_producer_epoch=NO_EPOCH)
        if epoch in {NO_EPOCH, expected_epoch}:
            return replace(empty, producer_epoch=epoch + 1, last_producer_epoch=epoch)
        if expected_epoch == self.last_producer_epoch:
            return empty  # the answer to the same question got lost
        return None

    def is_repeated_end(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer asks with the epoch of before the end that it was not told of."""
        if not self.is_v2 or self.state not in PREPARED | COMPLETE:
            return False
        if self.producer_id == producer_id:
            return producer_epoch == self.producer_epoch - 1
        return self.previous_producer_id == producer_id and self.producer_epoch == 0

    def to_record(self) -> CoordinatorRecord:
        """The record that makes this state durable."""
        topics: dict[str, list[int]] = {}
        for topic, partition in self.partitions:
            topics.setdefault(topic, []).append(partition)
        value = TransactionLogValue(
            producer_id=self.producer_id,
            previous_producer_id=self.previous_producer_id,
            next_producer_id=self.next_producer_id,
            producer_epoch=self.producer_epoch,
            transaction_timeout_ms=self.timeout_ms,
            transaction_status=self.state,
            transaction_partitions=(
                None
                if self.state is State.EMPTY
                else [PartitionsSchema(topic=topic, partition_ids=ids) for topic, ids in sorted(topics.items())]
            ),
            transaction_last_update_timestamp_ms=self.updated_ms,
            transaction_start_timestamp_ms=self.start_ms,
            client_transaction_version=2 if self.is_v2 else 0,
        )
        key = TransactionLogKey(transactional_id=self.transactional_id)
        return CoordinatorRecord(key, value, _FLEXIBLE_VERSION)

    @classmethod
    def from_value(cls, transactional_id: str, value: TransactionLogValue) -> Transaction:
        """The state that a record holds.

        Raises:
            ProtocolError: There is no such state.
        """
        if value.transaction_status not in State._value2member_map_:
            raise ProtocolError(f"a transaction in state {value.transaction_status}, which there is not")
        return cls(
            transactional_id=transactional_id,
            producer_id=value.producer_id,
            producer_epoch=value.producer_epoch,
            previous_producer_id=value.previous_producer_id,
            next_producer_id=value.next_producer_id,
            timeout_ms=value.transaction_timeout_ms,
            state=State(value.transaction_status),
            partitions=tuple(
                (topic.topic, partition)
                for topic in value.transaction_partitions or ()
                for partition in topic.partition_ids
            ),
            start_ms=value.transaction_start_timestamp_ms,
            updated_ms=value.transaction_last_update_timestamp_ms,
            is_v2=value.client_transaction_version >= 2,
        )


def owner_error(transaction: Transaction | None, producer_id: int, producer_epoch: int) -> ErrorCode:
    """Return why a producer may not use a transactional id; NONE if it may."""
    if transaction is None or transaction.producer_id != producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if transaction.producer_epoch != producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.NONE
