"""The end of a transaction: prepared by a request or by its timeout, completed when its markers are durable."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from hailbus_broker.coordinators.transaction.outcome import MarkersToWrite, TransactionOutcome
from hailbus_broker.coordinators.transaction.state import (
    AT_REST,
    NO_EPOCH,
    NO_PRODUCER_ID,
    PREPARED,
    State,
    Transaction,
    owner_error,
)
from hailbus_broker.protocol.definitions.end_txn_response import EndTxnResponse
from hailbus_broker.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from hailbus_broker.coordinators.outcome import Token
    from hailbus_broker.coordinators.transaction.deadlines import TransactionDeadlines
    from hailbus_broker.coordinators.transaction.state import TopicPartition


class TransactionEnds:
    """Decides on the ends of transactions.

    Args:
        transactions: Of the shard, by transactional id.
        deadlines: Where failed markers wait.
        write: Adds the record of a changed transaction to an outcome.
        markers_of: Makes the markers of a transaction that is prepared.
    """

    def __init__(
        self,
        transactions: Mapping[str, Transaction],
        deadlines: TransactionDeadlines,
        *,
        write: Callable[[TransactionOutcome, Transaction], None],
        markers_of: Callable[[Transaction], MarkersToWrite],
    ) -> None:
        self._transactions: Final = transactions
        self._deadlines: Final = deadlines
        self._write: Final = write
        self._markers_of: Final = markers_of

    def end(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        is_commit: bool,  # as in the request
        token: Token[EndTxnResponse],
        *,
        is_v2: bool,
        new_producer_id: Callable[[], int],
        wall_ms: int,
    ) -> TransactionOutcome:
        """Commit or abort the open transaction. Asking again for what was done is fine, for the opposite is not.

        Args:
            transactional_id: The owner of the transaction.
            producer_id: Of the one who asks.
            producer_epoch: Likewise.
            is_commit: Or an abort.
            token: To be answered by an EndTxnResponse.
            new_producer_id: Takes one that nobody has.
            wall_ms: Milliseconds since 1970 UTC.
            is_v2: EndTxn v5 and newer: the answer holds the producer epoch of the next transaction.
        """
        outcome = TransactionOutcome(request=token)

        def answer(error: ErrorCode, current: Transaction | None = None) -> TransactionOutcome:
            response = EndTxnResponse(error_code=error)
            if current is not None:
                exchanged = current.next_producer_id != NO_PRODUCER_ID
                response.producer_id = current.next_producer_id if exchanged else current.producer_id
                response.producer_epoch = 0 if exchanged else current.producer_epoch
            outcome.reply(token, response)
            return outcome

        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            return answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        wanted = State.PREPARE_COMMIT if is_commit else State.PREPARE_ABORT
        done = State.COMPLETE_COMMIT if is_commit else State.COMPLETE_ABORT
        if is_v2 and transaction.is_repeated_end(producer_id, producer_epoch):
            if transaction.state is done:
                return answer(ErrorCode.NONE, transaction)
            return answer(
                ErrorCode.CONCURRENT_TRANSACTIONS if transaction.state is wanted else ErrorCode.INVALID_TXN_STATE
            )
        error = owner_error(transaction, producer_id, producer_epoch)
        if error is not ErrorCode.NONE:
            return answer(error)
        has_nothing = transaction.state in AT_REST
        match transaction.state:
            case State.ONGOING:
                pass
            case State.PREPARE_COMMIT | State.PREPARE_ABORT:
                is_same = transaction.state is wanted
                return answer(ErrorCode.CONCURRENT_TRANSACTIONS if is_same else ErrorCode.INVALID_TXN_STATE)
            case State.COMPLETE_COMMIT | State.COMPLETE_ABORT if not is_v2:
                return answer(ErrorCode.NONE if transaction.state is done else ErrorCode.INVALID_TXN_STATE)
            case _ if is_v2 and not is_commit:
                pass  # an abort of nothing still brings a new epoch
            case _:
                return answer(ErrorCode.INVALID_TXN_STATE)
        prepared = replace(
            transaction,
            state=wanted,
            partitions=() if has_nothing else transaction.partitions,
            start_ms=wall_ms if has_nothing else transaction.start_ms,
            updated_ms=wall_ms,
            is_v2=is_v2,
        )
        if is_v2:
            prepared = replace(
                prepared,
                producer_epoch=transaction.producer_epoch + 1,
                last_producer_epoch=transaction.producer_epoch,
                next_producer_id=new_producer_id() if transaction.is_epoch_exhausted else NO_PRODUCER_ID,
            )
        self._write(outcome, prepared)
        outcome.markers.append(self._markers_of(prepared))
        return answer(ErrorCode.NONE, prepared if is_v2 else None)

    def markers_written(
        self, markers: MarkersToWrite, *, failed: Collection[TopicPartition] = (), now_ms: int, wall_ms: int
    ) -> TransactionOutcome:
        """The markers are durable, but for some partitions, where they are tried again after a second."""
        outcome = TransactionOutcome()
        transaction = self._transactions.get(markers.transactional_id)
        if (
            transaction is None
            or transaction.state not in PREPARED
            or (transaction.producer_id, transaction.producer_epoch) != (markers.producer_id, markers.producer_epoch)
        ):
            return outcome
        if failed:
            rest = replace(markers, partitions=tuple(sorted(failed)))
            outcome.on_install.append(partial(self._deadlines.retry_markers, rest, now_ms))
            outcome.log_events.append(
                ("transaction_markers_failed", {"transactional_id": markers.transactional_id, "count": len(failed)})
            )
            return outcome
        outcome.on_install.append(partial(self._deadlines.markers_done, markers.transactional_id))
        # The markers are there. If the record is refused they need not be written again, but it has to be.
        done = replace(markers, partitions=())
        outcome.on_refused = lambda _: self._deadlines.retry_markers(done, now_ms)
        completed = replace(
            transaction,
            state=State.COMPLETE_COMMIT if transaction.state is State.PREPARE_COMMIT else State.COMPLETE_ABORT,
            partitions=(),
            updated_ms=wall_ms,
        )
        if transaction.next_producer_id != NO_PRODUCER_ID:
            completed = replace(
                completed,
                producer_id=transaction.next_producer_id,
                previous_producer_id=transaction.producer_id,
                next_producer_id=NO_PRODUCER_ID,
                producer_epoch=0,
            )
        self._write(outcome, completed)
        return outcome

    def fence_and_abort(self, outcome: TransactionOutcome, transaction: Transaction, wall_ms: int, reason: str) -> None:
        """Abort an open transaction with a higher producer epoch, so that its producer is fenced."""
        prepared = replace(
            transaction,
            state=State.PREPARE_ABORT,
            # The last epoch may be used for this. Above it there is none: then the same epoch has fenced before.
            producer_epoch=min(transaction.producer_epoch + 1, 2**15 - 1),
            last_producer_epoch=NO_EPOCH,
            updated_ms=wall_ms,
        )
        self._write(outcome, prepared)
        outcome.markers.append(self._markers_of(prepared))
        outcome.log_events.append(
            (
                "transaction_aborted",
                {
                    "transactional_id": transaction.transactional_id,
                    "producer_id": transaction.producer_id,
                    "producer_epoch": transaction.producer_epoch,
                    "reason": reason,
                    "open_for_ms": wall_ms - transaction.start_ms,
                },
            )
        )
