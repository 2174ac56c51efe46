"""What the clients of a campaign write down, and the history that is made of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final

from hailbus_broker.testing.campaign.batches import Batches
from hailbus_broker.testing.history import (
    Acked,
    Attempted,
    Committed,
    Deleted,
    End,
    Identified,
    KeyRead,
    KeyWrite,
    Listed,
    Owned,
    Polled,
    Sent,
    TimeLookup,
    Watermark,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAIN: Final = "rides"
"""The topic whose records are never deleted: producers and transactions write to it, everybody reads it."""
COPY: Final = "copies"
TABLE: Final = "accounts"
TRIMMED: Final = "trimmed"
LOOSE: Final = "loose"
"""Of clusters: it would rather lose records than wait for a replica that has them all."""


@dataclass(slots=True, kw_only=True)
class SendOp:
    """A send whose outcome becomes known later. Nothing is known of what nobody was answered."""

    process: str
    partition: int
    value: int
    transaction: int | None = None
    outcome: End = "unknown"
    offset: int | None = None

    def to_sent(self) -> Sent:
        """Return it as a part of the history."""
        return Sent(
            process=self.process,
            partition=self.partition,
            value=self.value,
            outcome=self.outcome,
            offset=self.offset,
            transaction=self.transaction,
        )


@dataclass(slots=True, kw_only=True)
class KeyOp:
    """A write to the compacted topic, as `SendOp`; `transaction` is part of the campaign's numbering."""

    key: str
    value: int | None
    transaction: int | None = None
    outcome: End = "unknown"
    offset: int | None = None


@dataclass(slots=True, kw_only=True)
class TransactionOp:
    """A transaction: which partitions of which topic it may have written to, and in which it did for certain."""

    number: int
    topic: str
    producer_id: int
    outcome: End = "fail"
    partitions: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)


@dataclass(slots=True, kw_only=True)
class TrimmedOp:
    """A send to the topic from whose front records are deleted."""

    partition: int
    value: int
    offset: int | None = None


class Recorder:
    """Collects what clients see, in the order in which it happens.

    Args:
        note: Counts what a campaign wants to have seen.

    Attributes:
        failures: What no client may ever see: an error code without a reason, damaged bytes.
        progress: How often each client has achieved what it is there for.
        when_acked: Called with the topic and partition of a batch after its acknowledgement is noted.
        when_ended: Called with the transactional id and the producer id of a transaction whose end was answered, and
            with the offset of its last batch in each partition.
        when_read: Called with the topic and partition of batches that were read, with the offset behind the last one,
            and with whether only records of complete transactions were asked for.
        when_returned: Called with the topic and partition of a reader, and with the follower that it read from before
            its leader served it again.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self.note: Final = note
        self.values: Final = count(1)
        self.ops: Final = count(1)
        self._events: Final = count(1)
        self._transaction_numbers: Final = count(1)
        self.failures: Final[list[str]] = []
        self.progress: Final[Counter[str]] = Counter()
        self.sends: Final[list[SendOp]] = []
        self.transactions: Final[dict[int, TransactionOp]] = {}
        self.polled: Final[list[Polled]] = []
        self.uncommitted: Final[list[Polled]] = []
        self.handed: Final[list[Polled]] = []
        self.lists: Final[list[Listed]] = []
        self.offsets: Final[list[Committed]] = []
        self.watermarks: Final[list[Watermark]] = []
        self.acked: Final[list[Acked]] = []
        self.when_acked: Callable[[str, int], None] = lambda _topic, _partition: None
        self.when_ended: Callable[[str, int, Mapping[tuple[str, int], int]], None] = lambda _id, _producer, _ends: None
        self.when_read: Callable[[str, int, int, bool], None] = lambda _topic, _partition, _end, _is_committed: None
        self.when_returned: Callable[[str, int, int], None] = lambda _topic, _partition, _follower: None
        self.deleted: Final[list[Deleted]] = []
        self.asked_deletions: Final[list[tuple[int, int]]] = []
        self.owned: Final[list[Owned]] = []
        self.identified: Final[list[Identified]] = []
        self.lookups: Final[list[TimeLookup]] = []
        self.key_ops: Final[list[KeyOp]] = []
        self.key_reads: Final[defaultdict[str, list[KeyRead]]] = defaultdict(list)
        self.key_positions: Final[dict[str, dict[int, int]]] = {}
        self.trimmed: Final[list[TrimmedOp]] = []
        self.batches: Final = Batches()

    def event(self) -> int:
        """Number an event: one with a higher number happened later."""
        return next(self._events)

    def fail(self, what: str) -> None:
        """Note something that must never happen."""
        if len(self.failures) < 20:
            self.failures.append(what)

    def ack(self, topic: str, partition: int, last_offset: int) -> None:
        """Note that a batch was acknowledged."""
        self.acked.append(Acked(place=(topic, partition), last_offset=last_offset, answered_at=self.event()))
        self.when_acked(topic, partition)

    def send(self, process: str, partition: int, transaction: int | None = None) -> SendOp:
        """Note that a value is about to be sent to the main topic."""
        op = SendOp(process=process, partition=partition, value=next(self.values), transaction=transaction)
        self.sends.append(op)
        return op

    def begin(self, topic: str, producer_id: int) -> TransactionOp:
        """Note that a transaction begins. Nothing is committed before the commit is asked for."""
        op = TransactionOp(number=next(self._transaction_numbers), topic=topic, producer_id=producer_id)
        self.transactions[op.number] = op
        return op

    def attempted(self, topic: str) -> list[Attempted]:
        """Return the transactions that wrote to a topic."""
        return [
            Attempted(
                number=op.number,
                producer_id=op.producer_id,
                partitions=frozenset(op.partitions),
                written=frozenset(op.written),
            )
            for op in self.transactions.values()
            if op.topic == topic
        ]

    def key_writes(self) -> list[KeyWrite]:
        """Return the writes to the compacted topic with what became of them."""
        return [
            KeyWrite(key=op.key, value=op.value, outcome=self._outcome_of(op), offset=op.offset) for op in self.key_ops
        ]

    def _outcome_of(self, op: KeyOp) -> End:
        if op.transaction is None:
            return op.outcome
        end = self.transactions[op.transaction].outcome
        return op.outcome if end == "ok" else end
