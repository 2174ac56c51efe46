"""One partition of `__transaction_state`: decides, and changes its state only by `replay`.

What ends a transaction takes two records and, between them, markers: first `PREPARE_COMMIT` or `PREPARE_ABORT`, from
which on the outcome is fixed; when that record is durable, a marker in every partition of the transaction; when these
are durable, `COMPLETE_COMMIT` or `COMPLETE_ABORT`. A crash anywhere in between is rolled forward by `resume`.

Apache Kafka answers EndTxn after the first record, and CONCURRENT_TRANSACTIONS to a producer that begins the next
transaction too early. Here the same process writes the markers, so the answer waits for them: the only difference.

Times are milliseconds since 1970 UTC, because they are stored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.coordinators.outcome import CoordinatorRecord, ResponseT, decode_key, decode_value
from hailbus_broker.coordinators.transaction.deadlines import TransactionDeadlines
from hailbus_broker.coordinators.transaction.ends import TransactionEnds
from hailbus_broker.coordinators.transaction.outcome import MarkersToWrite, TransactionOutcome
from hailbus_broker.coordinators.transaction.state import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    PREPARED,
    TRANSITIONS,
    State,
    Transaction,
    owner_error,
)
from hailbus_broker.coordinators.transaction.views import TransactionViews
from hailbus_broker.protocol.definitions.init_producer_id_response import InitProducerIdResponse
from hailbus_broker.protocol.definitions.transaction_log_key import TransactionLogKey
from hailbus_broker.protocol.definitions.transaction_log_value import TransactionLogValue
from hailbus_broker.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from hailbus_broker.coordinators.outcome import Token
    from hailbus_broker.coordinators.transaction.state import TopicPartition
    from hailbus_broker.protocol.schema import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """The coordinator's settings.

    Attributes:
        max_timeout_ms: `transaction.max.timeout.ms`.
        id_expiration_ms: `transactional.id.expiration.ms`.
    """

    max_timeout_ms: int = 900_000
    id_expiration_ms: int = 604_800_000


class TransactionShard:
    """The transactional ids of one partition.

    Durable: `transactions`. Not durable: the epoch before the current one, by which connection each transactional id
    was used last, and the deadlines, which follow from `transactions`.

    Records hold times of the wall clock (`wall_ms`), as those of Apache Kafka. Deadlines go by the monotonic clock
    (`now_ms`), so that a transaction does not stay open because somebody set the clock back.
    """

    def __init__(self, config: TransactionConfig, *, coordinator_epoch: int) -> None:
        self.config = config
        self.coordinator_epoch = coordinator_epoch
        self.transactions: dict[str, Transaction] = {}
        self._last_epochs: dict[str, tuple[int, int]] = {}  # (producer id, epoch) → the epoch before, see `replay`
        self._connections: dict[str, int] = {}
        self._deadlines: Final = TransactionDeadlines(config.id_expiration_ms)
        ends = TransactionEnds(self.transactions, self._deadlines, write=self._write, markers_of=self._markers_of)
        views = TransactionViews(self.transactions)
        self.end: Final = ends.end
        self.markers_written: Final = ends.markers_written
        self.next_deadline_ms: Final = self._deadlines.next_ms
        self._fence_and_abort: Final = ends.fence_and_abort
        self.describe: Final = views.describe
        self.list: Final = views.list

    # ---- state

    def replay(
        self,
        key: bytes,
        value: bytes | None,
        *,
        now_ms: int,
        wall_ms: int | None = None,
        producer_id: int = NO_PRODUCER_ID,
    ) -> None:
        """Apply a record of the partition.

        Args:
            key: Of the record.
            value: Of the record.
            now_ms: The time of the monotonic clock, by which deadlines go.
            wall_ms: Milliseconds since 1970 UTC, to compute the age of a record of an earlier time; None for a record
                that was written just now.
            producer_id: Not used: the records of this partition are not part of transactions.

        Raises:
            ProtocolError: It says nothing that a transaction coordinator writes.
        """
        decoded = decode_key(key, {TransactionLogKey.__api_key__: TransactionLogKey})
        content = None if value is None else decode_value(value, TransactionLogValue)
        self.replay_message(decoded, content, now_ms=now_ms, wall_ms=wall_ms, producer_id=producer_id)

    def replay_message(
        self,
        key: Message,
        value: Message | None,
        *,
        now_ms: int,
        wall_ms: int | None = None,
        producer_id: int = NO_PRODUCER_ID,
    ) -> None:
        """Apply one record that was decoded before; see `replay`."""
        del producer_id
        assert isinstance(key, TransactionLogKey)
        transactional_id = key.transactional_id
        if value is None:
            self.transactions.pop(transactional_id, None)
            self._last_epochs.pop(transactional_id, None)
            self._connections.pop(transactional_id, None)
            self._deadlines.forgotten(transactional_id)
            return
        assert isinstance(value, TransactionLogValue)
        changed = Transaction.from_value(transactional_id, value)
        remembered = self._last_epochs.get(transactional_id)
        if remembered is not None and remembered[0] == changed.producer_epoch:
            changed = replace(changed, last_producer_epoch=remembered[1])
        self.transactions[transactional_id] = changed
        self._deadlines.replayed(changed, now_ms=now_ms, wall_ms=wall_ms)

    @staticmethod
    def waiting() -> Iterable[Token[Any]]:
        """Return the tokens of all requests that wait: none does but for its records and markers."""
        return ()

    def resume(self) -> TransactionOutcome:
        """After loading: resume the transactions that were being ended."""
        outcome = TransactionOutcome()
        for _, transaction in sorted(self.transactions.items()):
            if transaction.state in PREPARED:
                outcome.markers.append(self._markers_of(transaction, is_resumed=True))
        return outcome

    def _write(self, outcome: TransactionOutcome, changed: Transaction) -> None:
        before = self.transactions.get(changed.transactional_id)
        assert before is None or changed.state in TRANSITIONS[before.state], (before, changed)
        epochs = changed.producer_epoch, changed.last_producer_epoch
        outcome.on_install.append(partial(self._last_epochs.__setitem__, changed.transactional_id, epochs))
        outcome.records.append(changed.to_record())

    def _markers_of(self, transaction: Transaction, *, is_resumed: bool = False) -> MarkersToWrite:
        return MarkersToWrite(
            transactional_id=transaction.transactional_id,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            coordinator_epoch=self.coordinator_epoch,
            is_commit=transaction.state is State.PREPARE_COMMIT,
            partitions=transaction.partitions,
            must_be_newer=transaction.is_v2,
            is_resumed=is_resumed,
        )

    # ---- InitProducerId

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        producer_id: int,
        producer_epoch: int,
        token: Token[InitProducerIdResponse],
        *,
        new_producer_id: Callable[[], int],
        wall_ms: int,
    ) -> TransactionOutcome:
        """Give a transactional id to a producer and fence the one that had it.

        Args:
            transactional_id: The owner of the transactions; never empty.
            timeout_ms: After which an open transaction is aborted.
            producer_id: What the producer had until now, -1 for a new one (KIP-360).
            producer_epoch: Likewise.
            token: To be answered by an InitProducerIdResponse.
            new_producer_id: Takes one that nobody has.
            wall_ms: Milliseconds since 1970 UTC.
        """
        outcome = TransactionOutcome(request=token)

        def refuse(error: ErrorCode) -> TransactionOutcome:
            outcome.reply(token, InitProducerIdResponse(error_code=error, producer_epoch=NO_EPOCH))
            return outcome

        if not transactional_id or (producer_id >= 0) != (producer_epoch >= 0):
            return refuse(ErrorCode.INVALID_REQUEST)
        if not 0 < timeout_ms <= self.config.max_timeout_ms:
            return refuse(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            transaction = Transaction(
                transactional_id=transactional_id,
                producer_id=new_producer_id(),
                timeout_ms=timeout_ms,
                updated_ms=wall_ms,
            )
        is_known = producer_id >= 0
        is_retry_of_exchange = producer_id == transaction.previous_producer_id and producer_epoch >= 2**15 - 2
        if (
            is_known
            and transaction.producer_epoch != NO_EPOCH
            and producer_id != transaction.producer_id
            and not is_retry_of_exchange
        ):
            return refuse(ErrorCode.PRODUCER_FENCED)
        if transaction.state in PREPARED:
            return refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
        if transaction.state is State.ONGOING:
            if is_known and producer_epoch != transaction.producer_epoch:
                return refuse(ErrorCode.PRODUCER_FENCED)
            # The old transaction ends in an abort with an epoch that nobody gets; the producer comes again for its own.
            self._fence_and_abort(outcome, transaction, wall_ms, "another producer took the transactional id")
            return refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
        changed = replace(transaction, timeout_ms=timeout_ms, updated_ms=wall_ms).with_next_epoch(
            producer_epoch if is_known else None, new_producer_id
        )
        if changed is None:
            return refuse(ErrorCode.PRODUCER_FENCED)
        self._write(outcome, changed)
        outcome.reply(
            token, InitProducerIdResponse(producer_id=changed.producer_id, producer_epoch=changed.producer_epoch)
        )
        return outcome

    # ---- partitions

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
        token: Token[ResponseT],
        reply: Callable[[ErrorCode], ResponseT],
        *,
        is_v2: bool = False,
        wall_ms: int,
    ) -> TransactionOutcome:
        """Make partitions part of the transaction, which begins with the first of them.

        For AddPartitionsToTxn, for AddOffsetsToTxn (the group's partition of `__consumer_offsets`), and in
        transactions v2 for what is produced or committed. No data may be written before the reply: it waits until the
        record is safe.

        Args:
            transactional_id: The owner of the transaction.
            producer_id: Of the one who asks.
            producer_epoch: Likewise.
            partitions: Topics and partition numbers.
            token: To be answered by what `reply` makes.
            reply: Makes the response to the token.
            is_v2: Whether the producer speaks transactions v2.
            wall_ms: Milliseconds since 1970 UTC.
        """
        outcome = TransactionOutcome(request=token)
        transaction = self.transactions.get(transactional_id)
        error = owner_error(transaction, producer_id, producer_epoch)
        if error is ErrorCode.NONE:
            assert transaction is not None
            if transaction.state in PREPARED:
                error = ErrorCode.CONCURRENT_TRANSACTIONS
            else:
                is_ongoing = transaction.state is State.ONGOING
                known = set(transaction.partitions) if is_ongoing else set()
                wanted = known | set(partitions)
                if not is_ongoing or wanted != known:
                    self._write(
                        outcome,
                        replace(
                            transaction,
                            state=State.ONGOING,
                            partitions=tuple(sorted(wanted)),
                            start_ms=transaction.start_ms if is_ongoing else wall_ms,
                            updated_ms=wall_ms,
                            is_v2=is_v2,
                        ),
                    )
        outcome.reply(token, reply(error))
        return outcome

    def verify(
        self, transactional_id: str, producer_id: int, producer_epoch: int, topic: str, partition: int
    ) -> ErrorCode:
        """Whether a partition is part of the producer's open transaction (KIP-890, part 1).

        Returns:
            NONE; INVALID_TXN_STATE when it is not; or why the producer may not write at all.
        """
        transaction = self.transactions.get(transactional_id)
        error = owner_error(transaction, producer_id, producer_epoch)
        if error is not ErrorCode.NONE:
            return error
        assert transaction is not None
        if transaction.state in PREPARED:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if transaction.state is State.ONGOING and (topic, partition) in transaction.partitions:
            return ErrorCode.NONE
        return ErrorCode.INVALID_TXN_STATE

    def is_late(self, transactional_id: str, producer_id: int, producer_epoch: int, connection: int) -> bool:
        """Whether a request comes over a connection that its producer has given up for a newer one.

        A producer that gets no answer in time connects again and repeats its request. In transactions v1 all its
        transactions have the same epoch: when the first copy of an EndTxn comes late, it would end the next transaction
        half way (KIP-890 closes this for v2 only). The connections tell the copies apart.

        Args:
            transactional_id: The owner of the transaction.
            producer_id: Of the one who asks.
            producer_epoch: Likewise; who does not own the id is refused for that, and not counted.
            connection: Grows with each connection that the broker accepts.
        """
        if owner_error(self.transactions.get(transactional_id), producer_id, producer_epoch) != ErrorCode.NONE:
            return False
        newest = max(connection, self._connections.get(transactional_id, connection))
        self._connections[transactional_id] = newest
        return connection < newest

    # ---- time

    def tick(self, now_ms: int, *, wall_ms: int) -> Iterator[TransactionOutcome]:
        """Abort transactions that are open for too long, forget ids that nobody uses, try failed markers again.

        Each of these has an outcome of its own, to be carried out before the next one is asked for.
        """
        for markers in self._deadlines.due_markers(now_ms):
            yield TransactionOutcome(markers=[replace(markers, is_resumed=True)])
        for transactional_id in self._deadlines.overdue(now_ms):
            transaction = self.transactions[transactional_id]
            outcome = TransactionOutcome()
            reason = f"open for longer than its timeout of {transaction.timeout_ms} ms"
            self._fence_and_abort(outcome, transaction, wall_ms, reason)
            yield outcome
        for transactional_id in self._deadlines.expired(now_ms):
            key = TransactionLogKey(transactional_id=transactional_id)
            yield TransactionOutcome(records=[CoordinatorRecord(key, None)])
