"""When transactions are overdue, ids expire, and failed markers are tried again."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from hailbus_broker.coordinators.timers import Timers
from hailbus_broker.coordinators.transaction.state import AT_REST, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hailbus_broker.coordinators.transaction.outcome import MarkersToWrite
    from hailbus_broker.coordinators.transaction.state import Transaction

MARKER_RETRY_MS: Final = 1_000
ABORT_RETRY_MS: Final = 1_000
"""After which time the abort of an overdue transaction is retried when its record was refused."""


class TransactionDeadlines:
    """The times of one shard, by the monotonic clock. Not durable: `replayed` computes them from the transactions.

    Args:
        expiration_ms: How long an id is kept after its last transaction.

    Attributes:
        timers: One for each id with an open transaction.
    """

    def __init__(self, expiration_ms: int) -> None:
        self._expiration_ms: Final = expiration_ms
        self._unwritten: Final[dict[str, tuple[int, MarkersToWrite]]] = {}  # when to try again
        self.timers: Final[Timers[str]] = Timers()
        self._overdue: Final[dict[str, int]] = {}  # id → when its open transaction is aborted
        self._at_rest: Final[OrderedDict[str, int]] = OrderedDict()  # id → when it came to rest, the longest ago first

    def replayed(self, changed: Transaction, *, now_ms: int, wall_ms: int | None) -> None:
        """Follow a transaction's record.

        Args:
            changed: The transaction, as the record has it.
            now_ms: The time of the monotonic clock.
            wall_ms: Milliseconds since 1970 UTC, to compute the age of a record of an earlier time; None for a record
                that was written just now.
        """
        transactional_id = changed.transactional_id
        self._at_rest.pop(transactional_id, None)
        overdue_ms = self._overdue.pop(transactional_id, None)
        if changed.state in AT_REST:
            age_ms = 0 if wall_ms is None else max(wall_ms - changed.updated_ms, 0)
            self._at_rest[transactional_id] = now_ms - age_ms
        elif changed.state is State.ONGOING:
            if overdue_ms is None:
                # The wall clock may be anywhere: a transaction is neither older than its timeout, nor of the future.
                timeout_ms = max(changed.timeout_ms, 0)
                age_ms = 0 if wall_ms is None else min(max(wall_ms - changed.start_ms, 0), timeout_ms)
                overdue_ms = now_ms + timeout_ms - age_ms
            self._overdue[transactional_id] = overdue_ms
            self.timers.arm(transactional_id, overdue_ms)

    def forgotten(self, transactional_id: str) -> None:
        """Follow the tombstone of an id."""
        self._at_rest.pop(transactional_id, None)
        self._overdue.pop(transactional_id, None)

    def retry_markers(self, markers: MarkersToWrite, now_ms: int) -> None:
        """Let markers, or the record behind them, be tried again after a while."""
        self._unwritten[markers.transactional_id] = now_ms + MARKER_RETRY_MS, markers

    def markers_done(self, transactional_id: str) -> None:
        """Note that the markers of an id need not be tried again."""
        self._unwritten.pop(transactional_id, None)

    def next_ms(self) -> int | None:
        """Return the next deadline, None for never. The cost does not depend on how many ids there are."""
        deadlines = [due for due, _ in self._unwritten.values()]
        due_ms = self.timers.next_ms()
        if due_ms is not None:
            deadlines.append(due_ms)
        if self._at_rest:
            deadlines.append(next(iter(self._at_rest.values())) + self._expiration_ms)
        return min(deadlines, default=None)

    def due_markers(self, now_ms: int) -> Iterator[MarkersToWrite]:
        """Take the markers that are to be tried again now, one after the other."""
        for transactional_id, (due, markers) in sorted(self._unwritten.items()):
            if due <= now_ms:
                del self._unwritten[transactional_id]
                yield markers

    def overdue(self, now_ms: int) -> Iterator[str]:
        """Take the ids whose open transaction is to be aborted now; each comes again unless that is recorded."""
        while (transactional_id := self.timers.pop_due(now_ms)) is not None:
            if transactional_id not in self._overdue:
                continue
            overdue_ms = self._overdue[transactional_id]
            if overdue_ms > now_ms:
                self.timers.arm(transactional_id, overdue_ms)
                continue
            self.timers.arm(transactional_id, now_ms + ABORT_RETRY_MS)
            yield transactional_id

    def expired(self, now_ms: int) -> Iterator[str]:
        """Take the ids that nobody has used for long."""
        expired = []
        for transactional_id, rest_ms in self._at_rest.items():
            if rest_ms + self._expiration_ms > now_ms:
                break
            expired.append(transactional_id)
        for transactional_id in expired:
            # Moved behind the others: if the record is refused, the removal is retried after another expiration time.
            self._at_rest[transactional_id] = now_ms
            self._at_rest.move_to_end(transactional_id)
            yield transactional_id
