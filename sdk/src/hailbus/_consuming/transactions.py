"""One partition under `ExactlyOnce`: handle, then commit what was published and the offsets in one transaction.

The Kafka transaction is open only while it is written: handlers and their retries run before it. When it fails, it is
written again from what the handlers have published; they are not called again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

from hailbus._consuming.calling import Caller, ends_task
from hailbus._consuming.failure import Stage, StageError, is_fenced, is_too_large
from hailbus._consuming.outages import Outages
from hailbus._consuming.path import SLOW_AFTER_S, FailurePath
from hailbus._consuming.progress import Heads, count
from hailbus._consuming.routing import Router
from hailbus._consuming.work import Ending, Item
from hailbus._transport import Outgoing, Producer, Received, TopicPartition
from hailbus.context import Context
from hailbus.delivery import Reject, Retry
from hailbus.errors import DeliveryError
from hailbus.settlement import SettledPrefix
from hailbus.subscription import SubscriberStats
from hailbus.transaction import Transaction, current_transaction

__all__ = ["Line", "TransactionOutlet"]

log = logging.getLogger("hailbus.transactional")
ABORT_TIMEOUT_S = 5.0
FENCED_FIRST_S = 1.0
FENCED_MAX_S = 30.0


@dataclass(slots=True)
class _Handled:
    """A record that has ended, with what must be written for it."""

    item: Item
    ending: Ending
    transaction: Transaction
    letter: _Letter | None


@dataclass(slots=True)
class _Letter:
    """A letter in a transaction, with the smaller forms of it that are left."""

    topic: str
    partition: int
    forms: list[Outgoing] = field(default_factory=list)


class TransactionOutlet:
    """Makes letters part of the transaction of the record that is handled."""

    def __init__(self, producer: Callable[[], Producer]) -> None:
        self._producer = producer
        self.transaction = Transaction()
        self.letter: _Letter | None = None

    async def write(self, topic: str, partition: int, forms: Iterator[Outgoing]) -> None:
        try:
            partition_count = await self._producer().partition_count(topic)
        except Exception as error:
            raise StageError(Stage.LETTER, error) from error
        first, *smaller = forms
        self.letter = _Letter(topic, partition % partition_count, smaller)
        self.transaction.add(topic, partition % partition_count, first)


class Line:
    """One partition: its producer, its queue, its transactions one after the other."""

    def __init__(
        self,
        group: str,
        partition: TopicPartition,
        *,
        most: int,
        make_producer: Callable[[], Producer],
        committed: Callable[[TopicPartition], Awaitable[int | None]],
        router: Router,
        caller: Caller,
        outages: Outages,
        stats: SubscriberStats,
        heads: Heads,
        make_path: Callable[[TransactionOutlet], FailurePath],
        room: Callable[[TopicPartition], None],
    ) -> None:
        self.partition = partition
        self.task: asyncio.Task[None] | None = None
        self._group = group
        self._most = most
        self._make_producer = make_producer
        self._ask_committed = committed
        self._router = router
        self._caller = caller
        self._outages = outages
        self._stats = stats
        self._heads = heads
        self._room = room
        self._producer: Producer | None = None
        self._outlet = TransactionOutlet(self._started_producer)
        self._path = make_path(self._outlet)
        self._queue: deque[Item] = deque()
        self._position: int | None = None
        """The offset after the last record that was read."""
        self._floor = 0
        """Records below were committed by the member before."""
        self._arrived = asyncio.Event()
        self._is_stopping = False

    # -------------------------------------------------------------------------------------------- reading

    def push(self, records: Sequence[Received]) -> bool:
        """Queue records; whether the queue is full now."""
        if self._position is not None and records[0].offset < self._position:
            log.error(
                "log_moved_back: %s-%d was read to offset %d and now continues at %d: the topic was created anew, or "
                "its broker lost the end of the log; group %s handles what there is now",
                *self.partition,
                self._position,
                records[0].offset,
                self._group,
            )
            self._queue.clear()
            self._floor = 0
        self._position = records[-1].offset + 1
        prefix = SettledPrefix()  # transactions settle by themselves
        route = self._router.decode_first
        self._queue.extend(Item(self.partition, prefix, r, route) for r in records if r.offset >= self._floor)
        self._stats.received += len(records)
        self._arrived.set()
        return self.is_full

    @property
    def is_full(self) -> bool:
        """Whether reading should wait."""
        return len(self._queue) >= 4 * self._most

    @property
    def waiting_count(self) -> int:
        """Records read and not committed."""
        return len(self._queue)

    @property
    def oldest_ms(self) -> int | None:
        """The timestamp of the oldest of them."""
        return self._queue[0].record.timestamp if self._queue else None

    def look(self) -> None:
        """Note the first record that waits."""
        self._heads.look(self.partition, self._queue[0].record.offset if self._queue else None)

    # -------------------------------------------------------------------------------------------- life

    async def stop(self, grace_s: float) -> None:
        """Let the transaction in progress finish within a grace, abort it after that."""
        self._is_stopping = True
        self._arrived.set()
        task = self.task
        if task is not None:
            if task not in self._outages.waiting:
                await asyncio.wait({task}, timeout=grace_s)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._close()

    async def _close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(Exception):  # nothing is lost with it: what it had open is aborted
                await producer.stop()

    async def run(self) -> None:
        """Handle and commit until stopped."""
        fenced_count = 0
        while not self._is_stopping:
            try:
                if self._producer is None:
                    await self._outages.reach("the transaction coordinator", [self.partition], self._register)
                await self._handle_some()
                fenced_count = 0
            except StageError as failure:
                if not is_fenced(failure.error):
                    raise
                # Either another member has the partition now, and this one is about to hear of it; or the
                # coordinator has given up on this producer.
                delay_s = min(FENCED_FIRST_S * 2**fenced_count, FENCED_MAX_S)
                fenced_count += 1
                log.info("producer_fenced: %s, another one in %.0f s: %s", self.partition, delay_s, failure.error)
                await self._close()
                await asyncio.sleep(delay_s)

    def _started_producer(self) -> Producer:
        assert self._producer is not None
        return self._producer

    async def _register(self) -> None:
        """Start a producer: registering its id fences the member that had the partition before.

        Registering also waits for the end of that member's last transaction, which may commit. The client has asked for
        the committed offsets earlier, so they are asked for again, and records below them are not handled.
        """
        producer = self._make_producer()
        try:
            await producer.start()
            committed = await self._ask_committed(self.partition)
        except BaseException as error:
            with contextlib.suppress(Exception):
                await producer.stop()
            if not isinstance(error, Exception):
                raise
            raise StageError(Stage.TRANSACTION, error) from error
        self._producer = producer
        if committed is not None:
            self._floor = committed
            while self._queue and self._queue[0].record.offset < committed:
                self._queue.popleft()

    # -------------------------------------------------------------------------------------------- handling

    async def _handle_some(self) -> None:
        """Handle the next records and commit them."""
        if not self._queue:
            self._arrived.clear()
            await self._arrived.wait()
            return
        handled: list[_Handled] = []
        wait_s = 0.0
        for item in [self._queue[i] for i in range(min(len(self._queue), self._most))]:
            found = await self._handle(item)
            if not isinstance(found, _Handled):
                wait_s = found
                break
            handled.append(found)
            if self._is_stopping:
                break
        if handled:
            await self._commit(handled)
        if wait_s:
            await asyncio.sleep(wait_s)

    async def _handle(self, item: Item) -> _Handled | float:
        """Handle one record; seconds to wait when it must be tried again."""
        outlet = self._outlet
        transaction = outlet.transaction = Transaction()
        outlet.letter = None
        try:
            try:
                route = await self._outages.reach(
                    "the schema registry", [self.partition], lambda: self._router.resolve(item)
                )
                if route is None:
                    return _Handled(item, Ending.SKIPPED, transaction, None)
                item.route = route
                event = self._router.event_of(route, item.record, structured=True)
                if event is None:
                    return _Handled(item, Ending.SKIPPED, transaction, None)
            except StageError as failure:
                outcome = await self._path.failed(item, failure)
            else:
                item.attempt += 1
                ctx = Context(item.record, attempt=item.attempt, group=self._group)
                token = current_transaction.set(transaction)
                try:
                    verdict = await self._caller.single(route, self.partition, event, ctx)
                finally:
                    current_transaction.reset(token)
                if isinstance(verdict, (Retry, Reject)):
                    transaction.rewind({})
                outcome = await self._path.judged(item, verdict)
        except BaseException as error:
            if ends_task(error):
                raise
            transaction.rewind({})
            outcome = await self._path.failed(item, error)
        if isinstance(outcome, float):
            return outcome
        return _Handled(item, outcome, transaction, outlet.letter)

    # -------------------------------------------------------------------------------------------- committing

    async def _commit(self, handled: list[_Handled]) -> None:
        """Commit records in one transaction; one by one when what was published for one of them is too large."""
        try:
            await self._outages.reach(
                "the transaction coordinator",
                [self.partition],
                lambda: self._write(handled),
                slow_after_s=SLOW_AFTER_S,
            )
        except StageError as failure:
            if not is_too_large(failure.error):
                raise
            if len(handled) > 1:
                for one in handled:
                    await self._commit([one])
                return
            await self._commit([await self._smaller(handled[0], failure.error)])
            return
        for one in handled:
            if self._queue and self._queue[0] is one.item:  # else the log has moved back meanwhile
                self._queue.popleft()
            count(self._stats, one.ending)
        self._stats.committed += 1
        self.look()
        if not self.is_full:
            self._room(self.partition)

    async def _smaller(self, one: _Handled, error: BaseException) -> _Handled:
        """The same record with a smaller letter, or with a letter in place of what is too large."""
        letter = one.letter
        transaction = Transaction()
        if letter is None:
            self._outlet.transaction, self._outlet.letter = transaction, None
            outcome = await self._path.failed(one.item, error, is_last=True)
            assert isinstance(outcome, Ending), outcome
            return _Handled(one.item, outcome, transaction, self._outlet.letter)
        if not letter.forms:
            # Settling without the letter would lose the record: the partition waits, and health says why.
            await self._outages.wait(f"topic {letter.topic}", [self.partition], error)
            transaction = one.transaction
        else:
            transaction.add(letter.topic, letter.partition, letter.forms.pop(0))
        return _Handled(one.item, one.ending, transaction, letter)

    async def _write(self, handled: Sequence[_Handled]) -> None:
        """One transaction.

        Raises:
            StageError: It was not committed.
        """
        if self._producer is None:
            await self._register()
            if not self._queue or self._queue[0] is not handled[0].item:
                # It was committed after all: the answer was lost.
                return
        producer = self._started_producer()
        pending: dict[tuple[str, int], list[Outgoing]] = {}
        for one in handled:
            for place, records in one.transaction.pending.items():
                pending.setdefault(place, []).extend(records)
        is_open = is_ending = False
        try:
            await producer.begin()
            is_open = True
            sends = [producer.send(topic, number, records) for (topic, number), records in pending.items() if records]
            for result in await asyncio.gather(*sends, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result
            await producer.send_offsets({self.partition: handled[-1].item.record.offset + 1}, self._group)
            is_ending = True
            await producer.commit()
        except BaseException as error:
            if is_open and not is_ending:
                # The coordinator aborts what is left open when its time is up, or when the next owner comes.
                try:
                    async with asyncio.timeout(ABORT_TIMEOUT_S):
                        await producer.abort()
                except Exception:  # noqa: BLE001 then a new producer ends it
                    is_ending = True
            if not isinstance(error, Exception):
                raise
            if is_ending or _is_final(error):
                # A new producer waits for the end of the transaction, and finds out whether it was committed. Where the
                # broker has lost the producer's state, it would refuse all that this one sends.
                await self._close()
            raise StageError(Stage.TRANSACTION, error) from error


def _is_final(error: Exception) -> bool:
    """Whether the same producer cannot write it later either, for another reason than its size."""
    return isinstance(error, DeliveryError) and not error.retriable and not is_too_large(error)
