"""What a partition remembers of its producers: the last five batches of each, and open transactions (KIP-98).

The state is a function of the log. Snapshots (`<offset>.snapshot`) only save reading all of it again: recovery loads
the newest one and replays the batches after it.

A snapshot: version int16 (1), CRC-32C of all that follows the CRC, uint32, entry count int32, and per producer its id
int64, epoch int16, last sequence int32, last offset int64, offset delta of the last batch int32, timestamp int64,
coordinator epoch int32, first offset of its open transaction int64 (-1 for none).
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from struct import error as struct_error
from typing import TYPE_CHECKING, Final, NamedTuple

from hailbus_broker.log.errors import (
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from hailbus_broker.log.results import ActiveProducer
from hailbus_broker.records import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP, crc32c

if TYPE_CHECKING:
    from hailbus_broker.records import Offset, ProducerEpoch, ProducerId

SNAPSHOT_SUFFIX: Final = ".snapshot"
REMEMBERED_BATCHES: Final = 5
NO_TRANSACTION: Final = -1

_MAX_SEQUENCE: Final = 2**31 - 1
_SNAPSHOT_HEADER: Final = Struct(">hIi")
_SNAPSHOT_ENTRY: Final = Struct(">qhiqiqiq")
_SNAPSHOT_VERSION: Final = 1
_CRC_END: Final = 6


class RememberedBatch(NamedTuple):
    """One of a producer's last batches, to recognise it when it is sent again."""

    last_sequence: int
    last_offset: Offset
    offset_delta: int
    timestamp: int

    @property
    def base_sequence(self) -> int:
        """Sequence of the first record."""
        return (self.last_sequence - self.offset_delta) & _MAX_SEQUENCE

    @property
    def base_offset(self) -> Offset:
        """Offset of the first record."""
        return self.last_offset - self.offset_delta


class ProducerEntry:
    """What is known of one producer id."""

    __slots__ = ("batches", "coordinator_epoch", "last_timestamp", "producer_epoch", "transaction_first_offset")

    def __init__(self, producer_epoch: ProducerEpoch) -> None:
        self.producer_epoch = producer_epoch
        self.batches: list[RememberedBatch] = []
        self.last_timestamp = NO_TIMESTAMP
        self.coordinator_epoch = -1
        self.transaction_first_offset: Offset = NO_TRANSACTION

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, -1 when this producer epoch has written none."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


class CompletedTransaction(NamedTuple):
    """A transaction whose marker has been written."""

    producer_id: ProducerId
    first_offset: Offset
    last_offset: Offset
    is_aborted: bool


class ProducerState:
    """All producers of one partition."""

    def __init__(self) -> None:
        self.producers: dict[ProducerId, ProducerEntry] = {}
        self.open_transactions: dict[ProducerId, Offset] = {}
        """First offset of each open transaction; in the order of these offsets, because they begin in it."""
        self._unreplicated: deque[CompletedTransaction] = deque()

    # ---- questions

    @property
    def has_transactions(self) -> bool:
        """Whether anything may hold the last stable offset back."""
        return bool(self.open_transactions or self._unreplicated)

    def first_unstable_offset(self) -> Offset | None:
        """First offset of the oldest transaction that is open, or whose marker the high watermark has not passed."""
        first = next(iter(self.open_transactions.values()), None)
        for transaction in self._unreplicated:
            if first is None or transaction.first_offset < first:
                first = transaction.first_offset
        return first

    def last_stable_offset_without(self, completed: CompletedTransaction) -> Offset:
        """What the last stable offset will be when this transaction is out of the way, for the transaction index."""
        for producer_id, first_offset in self.open_transactions.items():
            if producer_id != completed.producer_id:
                return first_offset
        return completed.last_offset + 1

    def has_open_transaction(self, producer_id: ProducerId, producer_epoch: ProducerEpoch) -> bool:
        """Whether the producer has written in a transaction that has no marker yet."""
        entry = self.producers.get(producer_id)
        return (
            entry is not None
            and entry.transaction_first_offset != NO_TRANSACTION
            and entry.producer_epoch == producer_epoch
        )

    def needs_marker(self, producer_id: ProducerId, producer_epoch: ProducerEpoch) -> bool:
        """Whether a marker of this epoch would say something new."""
        entry = self.producers.get(producer_id)
        return (
            entry is None
            or entry.producer_epoch < producer_epoch
            or (entry.producer_epoch == producer_epoch and entry.transaction_first_offset != NO_TRANSACTION)
        )

    def has_marker(self, producer_id: ProducerId, producer_epoch: ProducerEpoch) -> bool:
        """Whether the last transaction of this epoch has ended: a marker that is sent once more says nothing new."""
        entry = self.producers.get(producer_id)
        return (
            entry is not None
            and entry.producer_epoch == producer_epoch
            and entry.transaction_first_offset == NO_TRANSACTION
        )

    def last_data_offsets(self) -> dict[ProducerId, Offset]:
        """Last offset of the last batch of each producer; -1 for one that has only markers in its epoch."""
        return {
            producer_id: entry.batches[-1].last_offset if entry.batches else -1
            for producer_id, entry in self.producers.items()
        }

    def active_producers(self) -> list[ActiveProducer]:
        """All producers, by id."""
        return [
            ActiveProducer(
                producer_id,
                entry.producer_epoch,
                entry.last_sequence,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.transaction_first_offset,
            )
            for producer_id, entry in sorted(self.producers.items())
        ]

    # ---- checks before an append

    def follows_plainly(
        self, producer_id: ProducerId, producer_epoch: ProducerEpoch, base_sequence: int, *, is_transactional: bool
    ) -> bool:
        """Whether a batch is so clearly the next one that `find_duplicate` and `check` have nothing to say.

        The usual case.
        """
        entry = self.producers.get(producer_id)
        return (
            entry is not None
            and entry.producer_epoch == producer_epoch
            and bool(entry.batches)
            and entry.batches[-1].last_sequence + 1 == base_sequence > 0
            and (entry.transaction_first_offset != NO_TRANSACTION) == is_transactional
        )

    def find_duplicate(
        self, producer_id: ProducerId, producer_epoch: ProducerEpoch, base_sequence: int, last_sequence: int
    ) -> RememberedBatch | None:
        """The remembered batch with exactly these sequences."""
        entry = self.producers.get(producer_id)
        if entry is None or entry.producer_epoch != producer_epoch:
            return None
        for batch in entry.batches:
            if batch.last_sequence == last_sequence and batch.base_sequence == base_sequence:
                return batch
        return None

    def check(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        base_sequence: int,
        *,
        is_transactional: bool,
        is_verified: bool,
        must_begin_at_zero: bool = False,
    ) -> None:
        """Whether a producer's batch may be appended next.

        Args:
            producer_id: Of the batch.
            producer_epoch: Of the batch.
            base_sequence: Of the batch.
            is_transactional: Whether the batch belongs to a transaction.
            is_verified: Whether the coordinator knows of the transaction.
            must_begin_at_zero: Whether a producer that is not known here must begin with sequence 0.

        Raises:
            InvalidProducerEpochError: A newer producer epoch has been seen.
            OutOfOrderSequenceError: The sequence does not follow.
            InvalidTransactionStateError: Data outside of the producer's open transaction, or the first data of a
                transaction that the coordinator has not confirmed (KIP-890).
        """
        entry = self.producers.get(producer_id)
        if entry is None:
            if must_begin_at_zero and base_sequence != 0:
                raise OutOfOrderSequenceError(
                    f"producer {producer_id} begins with sequence {base_sequence} instead of 0"
                )
            # Otherwise any sequence: all that the producer wrote may have been deleted by retention.
            if is_transactional and not is_verified:
                raise InvalidTransactionStateError(
                    f"producer {producer_id} writes to a transaction that its coordinator does not know"
                )
            return
        if producer_epoch < entry.producer_epoch:
            raise InvalidProducerEpochError(
                f"producer {producer_id} writes with epoch {producer_epoch}, "
                f"but {entry.producer_epoch} was seen already"
            )
        if base_sequence == NO_SEQUENCE:
            return  # offsets that the group coordinator writes in a transaction: never repeated, so never numbered
        if producer_epoch != entry.producer_epoch:
            if base_sequence != 0 and entry.producer_epoch != NO_PRODUCER_EPOCH:
                raise OutOfOrderSequenceError(
                    f"producer {producer_id} begins epoch {producer_epoch} with sequence {base_sequence} instead of 0"
                )
        else:
            last_sequence = entry.last_sequence
            follows = base_sequence == last_sequence + 1 or (base_sequence == 0 and last_sequence == _MAX_SEQUENCE)
            if not follows:
                raise OutOfOrderSequenceError(
                    f"producer {producer_id} writes sequence {base_sequence} after {last_sequence} "
                    f"in epoch {producer_epoch}"
                )
        if entry.transaction_first_offset != NO_TRANSACTION:
            if not is_transactional:
                raise InvalidTransactionStateError(
                    f"producer {producer_id} writes outside of its transaction, which is open since offset "
                    f"{entry.transaction_first_offset}"
                )
        elif is_transactional and not is_verified:
            raise InvalidTransactionStateError(
                f"producer {producer_id} writes to a transaction that its coordinator does not know"
            )

    def check_marker(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        coordinator_epoch: int,
        *,
        must_be_newer: bool = False,
    ) -> None:
        """Whether a transaction marker may be appended.

        Args:
            producer_id: The producer whose transaction ends.
            producer_epoch: Of the marker.
            coordinator_epoch: Of the coordinator that writes it.
            must_be_newer: Whether the marker's producer epoch must be above that of the open transaction's data, as in
                transactions v2, where each end brings a new epoch (KIP-890, KIP-1228).

        Raises:
            InvalidProducerEpochError: The marker belongs to an older transaction.
            TransactionCoordinatorFencedError: A newer coordinator has written a marker already.
        """
        entry = self.producers.get(producer_id)
        if entry is None:
            return
        newest = entry.producer_epoch
        is_of_next = producer_epoch == newest and entry.transaction_first_offset != NO_TRANSACTION
        if producer_epoch < newest or (must_be_newer and is_of_next and newest != _MAX_EPOCH):
            raise InvalidProducerEpochError(
                f"a marker for producer {producer_id} has epoch {producer_epoch}, but {newest} was seen already"
            )
        if entry.coordinator_epoch > coordinator_epoch:
            raise TransactionCoordinatorFencedError(
                f"a marker for producer {producer_id} comes from coordinator epoch {coordinator_epoch}, "
                f"but {entry.coordinator_epoch} has written one"
            )

    # ---- updates after an append

    def note_batch(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        last_sequence: int,
        last_offset: Offset,
        offset_delta: int,
        timestamp: int,
        *,
        is_transactional: bool,
    ) -> None:
        """Remember a batch of data."""
        entry = self.producers.get(producer_id)
        if entry is None:
            entry = self.producers[producer_id] = ProducerEntry(producer_epoch)
        elif entry.producer_epoch != producer_epoch:
            entry.producer_epoch = producer_epoch
            entry.batches.clear()
        batches = entry.batches
        if len(batches) == REMEMBERED_BATCHES:
            del batches[0]
        batches.append(RememberedBatch(last_sequence, last_offset, offset_delta, timestamp))
        entry.last_timestamp = timestamp
        if is_transactional and entry.transaction_first_offset == NO_TRANSACTION:
            first_offset = last_offset - offset_delta
            entry.transaction_first_offset = first_offset
            self.open_transactions[producer_id] = first_offset

    def note_marker(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        coordinator_epoch: int,
        offset: Offset,
        timestamp: int,
        *,
        is_aborted: bool,
    ) -> CompletedTransaction | None:
        """Remember a marker.

        Returns:
            The transaction that it ends; None when the producer had none open here.
        """
        entry = self.producers.get(producer_id)
        if entry is None:
            entry = self.producers[producer_id] = ProducerEntry(producer_epoch)
        elif entry.producer_epoch != producer_epoch:
            entry.producer_epoch = producer_epoch
            entry.batches.clear()
        completed = None
        if entry.transaction_first_offset != NO_TRANSACTION:
            completed = CompletedTransaction(producer_id, entry.transaction_first_offset, offset, is_aborted)
        entry.transaction_first_offset = NO_TRANSACTION
        entry.coordinator_epoch = coordinator_epoch
        entry.last_timestamp = timestamp
        return completed

    def complete(self, transaction: CompletedTransaction) -> None:
        """Take a transaction from the open ones.

        It holds the last stable offset until the high watermark passes its marker.
        """
        self.open_transactions.pop(transaction.producer_id, None)
        self._unreplicated.append(transaction)

    def high_watermark_moved(self, high_watermark: Offset) -> None:
        """Let go of the transactions whose markers are below it."""
        unreplicated = self._unreplicated
        while unreplicated and unreplicated[0].last_offset < high_watermark:
            unreplicated.popleft()

    def keep_unreplicated_of(self, before: ProducerState, end_offset: Offset) -> None:
        """After a truncation: the transactions that hold the last stable offset back are those of before.

        Snapshots do not say which markers the high watermark has passed.
        """
        self._unreplicated = deque(
            transaction for transaction in before._unreplicated if transaction.last_offset < end_offset
        )

    def expire(self, *, now_ms: int, after_ms: int) -> int:
        """Forget the producers that have been silent for long and have no open transaction.

        Returns:
            How many.
        """
        silent = [
            producer_id
            for producer_id, entry in self.producers.items()
            if entry.transaction_first_offset == NO_TRANSACTION and now_ms - entry.last_timestamp >= after_ms
        ]
        for producer_id in silent:
            del self.producers[producer_id]
        return len(silent)

    # ---- snapshots

    def to_snapshot(self) -> bytes:
        """The state in Kafka's file format."""
        body = bytearray()
        body += len(self.producers).to_bytes(4, "big")
        for producer_id, entry in self.producers.items():
            last = entry.batches[-1] if entry.batches else None
            body += _SNAPSHOT_ENTRY.pack(
                producer_id,
                entry.producer_epoch,
                NO_SEQUENCE if last is None else last.last_sequence,
                -1 if last is None else last.last_offset,
                0 if last is None else last.offset_delta,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.transaction_first_offset,
            )
        return _SNAPSHOT_VERSION.to_bytes(2, "big") + crc32c(body).to_bytes(4, "big") + bytes(body)

    @classmethod
    def from_snapshot(cls, data: bytes) -> ProducerState | None:
        """The state of a snapshot, None when the bytes are not a whole one (a crash tore it).

        Like Kafka's it knows only the last batch of each producer, not all five.
        """
        state = cls()
        try:
            version, crc, count = _SNAPSHOT_HEADER.unpack_from(data)
        except struct_error:
            return None
        expected_size = _SNAPSHOT_HEADER.size + count * _SNAPSHOT_ENTRY.size
        if version != _SNAPSHOT_VERSION or len(data) != expected_size or crc32c(data[_CRC_END:]) != crc:
            return None
        open_transactions = []
        for fields in _SNAPSHOT_ENTRY.iter_unpack(data[_SNAPSHOT_HEADER.size :]):
            producer_id, producer_epoch, sequence, last_offset, delta, timestamp, coordinator_epoch, first_offset = (
                fields
            )
            entry = ProducerEntry(producer_epoch)
            if sequence != NO_SEQUENCE:
                entry.batches.append(RememberedBatch(sequence, last_offset, delta, timestamp))
            entry.last_timestamp = timestamp
            entry.coordinator_epoch = coordinator_epoch
            entry.transaction_first_offset = first_offset
            state.producers[producer_id] = entry
            if first_offset != NO_TRANSACTION:
                open_transactions.append((first_offset, producer_id))
        state.open_transactions = {producer_id: first_offset for first_offset, producer_id in sorted(open_transactions)}
        return state


_MAX_EPOCH: Final = 2**15 - 1
