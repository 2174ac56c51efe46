"""Transactions as DescribeTransactions and ListTransactions show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hailbus_broker.coordinators.patterns import whole_match
from hailbus_broker.protocol.definitions.describe_transactions_response import TopicData
from hailbus_broker.protocol.definitions.describe_transactions_response import TransactionState as DescribedTransaction
from hailbus_broker.protocol.definitions.list_transactions_response import TransactionState as ListedTransaction
from hailbus_broker.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from hailbus_broker.coordinators.transaction.state import Transaction


class TransactionViews:
    """Describes and lists transactions."""

    def __init__(self, transactions: Mapping[str, Transaction]) -> None:
        self._transactions: Final = transactions

    def describe(self, transactional_id: str) -> DescribedTransaction:
        """One entry of a DescribeTransactionsResponse; with an error code for an unknown id."""
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            return DescribedTransaction(
                error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, transactional_id=transactional_id
            )
        topics: dict[str, list[int]] = {}
        for topic, partition in transaction.partitions:
            topics.setdefault(topic, []).append(partition)
        return DescribedTransaction(
            transactional_id=transactional_id,
            transaction_state=transaction.state.label,
            transaction_timeout_ms=transaction.timeout_ms,
            transaction_start_time_ms=transaction.start_ms,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            topics=[TopicData(topic=topic, partitions=numbers) for topic, numbers in sorted(topics.items())],
        )

    def list(
        self,
        states: Collection[str],
        producer_ids: Collection[int],
        min_duration_ms: int,
        pattern: str | None,
        *,
        wall_ms: int,
    ) -> list[ListedTransaction]:
        """Entries of a ListTransactionsResponse.

        Args:
            states: Names of states; empty for all.
            producer_ids: Empty for all.
            min_duration_ms: Only transactions that began so long ago; negative for all.
            pattern: A regular expression that the whole transactional id matches; None or empty for all.
            wall_ms: Milliseconds since 1970 UTC.

        Raises:
            PatternError: The pattern is no regular expression of RE2.
        """
        matches = whole_match(pattern) if pattern else None
        found = []
        for transactional_id, transaction in sorted(self._transactions.items()):
            duration_ms = wall_ms - transaction.start_ms if transaction.start_ms >= 0 else -1
            if (
                (not states or transaction.state.label in states)
                and (not producer_ids or transaction.producer_id in producer_ids)
                and (min_duration_ms < 0 or duration_ms > min_duration_ms)
                and (matches is None or matches(transactional_id))
            ):
                found.append(
                    ListedTransaction(
                        transactional_id=transactional_id,
                        producer_id=transaction.producer_id,
                        transaction_state=transaction.state.label,
                    )
                )
        return found
