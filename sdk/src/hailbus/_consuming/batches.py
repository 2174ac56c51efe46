"""Handlers of batches: collect, decode, hand over, and settle by whole reads where nothing is wrong."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import Callable, Collection, Sequence

from hailbus._consuming.calling import Caller, ends_task
from hailbus._consuming.failure import (
    Kind,
    RetryAfter,
    Stage,
    StageError,
    classify,
    decide,
    is_fatal,
    origin_of,
    reason_of,
)
from hailbus._consuming.parked import ParkedKeys
from hailbus._consuming.path import FailurePath
from hailbus._consuming.progress import Partitions
from hailbus._consuming.routing import Router
from hailbus._consuming.sequenced import Numbering
from hailbus._consuming.work import Early, Ending, Item, Part
from hailbus._transport import Received, TopicPartition
from hailbus.context import Context, Deliveries
from hailbus.delivery import AtMostOnce, EffectivelyOnce, Reject, Verdict
from hailbus.event import Event
from hailbus.schema_id import payload_of
from hailbus.subscription import SubscriberStats, Subscription

__all__ = ["BatchRunner"]

log = logging.getLogger("hailbus.subscriber")


class BatchRunner:
    """Collects records of one batch subscription and calls its handler, one batch at a time."""

    def __init__(
        self,
        group: str,
        subscription: Subscription,
        *,
        router: Router,
        partitions: Partitions,
        path: FailurePath,
        caller: Caller,
        stats: SubscriberStats,
        rng: random.Random,
        numbered: Numbering | None = None,
        parked: ParkedKeys | None = None,
        keep: Callable[[BatchRunner], asyncio.Task[None]],
        ended: Callable[[], None],
    ) -> None:
        self.subscription = subscription
        self._group = group
        self._router = router
        self._partitions = partitions
        self._path = path
        self._caller = caller
        self._stats = stats
        self._rng = rng
        self._numbered = numbered
        self._parked = parked
        self._keep = keep
        self._ended = ended
        self._inbox = subscription.delivery.inbox if isinstance(subscription.delivery, EffectivelyOnce) else None
        self._queue: deque[Part] = deque()
        self._queued_count = 0
        self._queued_bytes = 0
        self._held: dict[tuple[TopicPartition, object], list[Part]] = {}
        """Records that wait for their own retry, by key, with those behind them: one record each."""
        self._arrived = asyncio.Event()
        self._is_waiting = False
        """The handler waits for its batch to become full."""
        self._current: list[Part] = []
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, or begin again after `task` was cancelled."""
        if self.task is None or self.task.done():
            self.task = self._keep(self)

    def push(self, part: Part) -> None:
        """Queue records behind those that wait."""
        was_empty = not self._queue
        self._queue.append(part)
        self._count(part)
        if was_empty or (self._is_waiting and self._is_full):
            self._arrived.set()

    def _count(self, part: Part) -> None:
        self._queued_count += len(part.records)
        self._queued_bytes += part.size_bytes

    @property
    def _is_full(self) -> bool:
        subscription = self.subscription
        return self._queued_count >= subscription.max_items or self._queued_bytes >= subscription.max_bytes

    def drop(self, partitions: Collection[TopicPartition] | None) -> None:
        """Forget what waits for these partitions, or for all."""
        keep = [part for part in self._queue if partitions is not None and part.partition not in partitions]
        self._queue = deque(keep)
        self._queued_count = self._queued_bytes = 0
        for part in keep:
            self._count(part)
        for name in [name for name in self._held if partitions is None or name[0] in partitions]:
            del self._held[name]

    def abandon(self, partitions: Collection[TopicPartition] | None) -> None:
        """Forget the records of these partitions in a batch whose handling was cancelled."""
        self._current = [p for p in self._current if partitions is not None and p.partition not in partitions]

    def touches(self, partitions: Collection[TopicPartition] | None) -> bool:
        """Whether the batch that is being handled has records of these partitions."""
        return any(partitions is None or part.partition in partitions for part in self._current)

    async def run(self) -> None:
        """Handle batches until cancelled. Begins with the batch in which an earlier run has died or was cancelled."""
        if self._current:
            held = {(p.partition, r.offset) for parts in self._held.values() for p in parts for r in p.records}
            self._queue.extendleft(reversed(_unsettled(self._current, held)))
            self._current = []
            self._queued_count = self._queued_bytes = 0
            for part in self._queue:
                self._count(part)
        while True:
            self._current = await self._collect()
            async with self._numbered.turn if self._numbered is not None else contextlib.nullcontext():
                await self._handle(self._current)
            self._current = []
            self._ended()

    async def _collect(self) -> list[Part]:
        subscription = self.subscription
        while True:
            while not self._queue:
                self._arrived.clear()
                await self._arrived.wait()
            if not self._is_full:
                self._arrived.clear()
                self._is_waiting = True
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(subscription.max_wait.total_seconds()):
                        await self._arrived.wait()
                self._is_waiting = False
            batch: list[Part] = []
            room, room_bytes = subscription.max_items, subscription.max_bytes
            while self._queue and room > 0 and room_bytes > 0:
                part = self._queue.popleft()
                head = part.head(room, room_bytes)
                if head is not part:
                    self._queue.appendleft(part.only(part.records[len(head.records) :]))
                self._queued_count -= len(head.records)
                self._queued_bytes -= head.size_bytes
                free = self._hold_back(head) if self._held else head
                if free.records:
                    batch.append(free)
                    room -= len(free.records)
                    room_bytes -= free.size_bytes
            if batch:
                return batch

    def _hold_back(self, part: Part) -> Part:
        """The records of a part that do not wait behind a retry of their key."""
        free = []
        for record in part.records:
            held = self._held.get((part.partition, record.key))
            if held is not None:
                held.append(part.only([record]))
            else:
                free.append(record)
        return part.only(free)

    # -------------------------------------------------------------------------------------------- decoding

    async def _decoded(self, batch: Sequence[Part]) -> tuple[list[Part], Deliveries[Event]]:
        """The records of a batch that can be handed over, and their events; the others end here."""
        live: list[Part] = []
        events: list[Event] = []
        records: list[Received] = []
        attempts: list[int] = []
        contexts: list[Context] = []
        """Of all records under a promise with an inbox, which reads their envelopes; else of none."""
        for part in batch:
            if part.prefix.closed:
                continue
            part.attempt += 1
            found = self._events_of(part)
            usable = part
            if found is None:
                usable, found, read = await self._events_one_by_one(part)
                contexts += read
            if found:
                live.append(usable)
                events += found
                records += usable.records
                attempts += [part.attempt] * len(found)
        return live, Deliveries(
            events, records, attempts, group=self._group, contexts=None if self._inbox is None else contexts
        )

    def _events_of(self, part: Part) -> list[Event] | None:
        """The events of a part, None when its records must be looked at one by one."""
        route = part.route
        validate = route.validate
        if validate is None or not route.is_newest or part.was_resolved or self._inbox is not None:
            return None
        first = part.records[0].value
        has_ids = first is not None and payload_of(first) is not first
        try:
            if has_ids:
                return [validate(payload_of(record.value or b"")) for record in part.records]
            # A missing value, or one with an id among others without, is refused: then each is looked at by itself.
            return [validate(record.value) for record in part.records]  # type: ignore[arg-type]  # as said
        except BaseException as error:
            if is_fatal(error):
                raise
            return None

    async def _events_one_by_one(self, part: Part) -> tuple[Part, list[Event], list[Context]]:
        usable: list[Received] = []
        events: list[Event] = []
        contexts: list[Context] = []
        for record in part.records:
            ctx = Context(record, attempt=part.attempt, group=self._group)
            try:
                event = self._event_of(part, record, ctx)
            except Exception as error:  # noqa: BLE001 an envelope that cannot be read, for one
                item = part.item_of(record)
                item.attempt = 0
                await self._end(item, error if isinstance(error, StageError) else StageError(Stage.DECODE, error))
                continue
            if event is None:
                self._partitions.end(part.item_of(record), Ending.SKIPPED)
                continue
            usable.append(record)
            events.append(event)
            if self._inbox is not None:
                contexts.append(ctx)
        return part.only(usable), events, contexts

    def _event_of(self, part: Part, record: Received, ctx: Context) -> Event | None:
        """The event of a record, checked for what the inbox cannot hold."""
        numbered = self._numbered
        if numbered is not None and part.route.passes:
            return numbered.unhandled(record)
        event = self._router.event_of(part.route, record, structured=part.was_resolved)
        if event is not None and self._inbox is not None:
            refusal = self._inbox.refusal_of(ctx)
            if refusal is not None:
                raise StageError(Stage.CLAIM, refusal)
            if numbered is not None:
                numbered.check(event, record)
        return event

    async def _end(self, item: Item, failure: BaseException) -> None:
        """Judge a record for which there is no further attempt, by itself."""
        outcome = await self._path.failed(item, failure, is_last=True)
        assert isinstance(outcome, Ending), outcome
        self._partitions.end(item, outcome)

    # -------------------------------------------------------------------------------------------- handling

    async def _handle(self, batch: Sequence[Part]) -> None:
        """Call the handler with a batch until every item has ended or waits for its own retry."""
        attempt = 0
        while True:
            live, deliveries = await self._decoded(batch)
            if not deliveries:
                return
            attempt += 1
            try:
                verdicts = await self._call(live, deliveries)
            except BaseException as error:
                if ends_task(error):
                    raise
                delay_s = await self._after_failure(live, deliveries, error, attempt)
                if delay_s is None:
                    return
                await asyncio.sleep(delay_s)
                batch = live
                continue
            if verdicts is None:
                self._partitions.end_all(live, Ending.SETTLED)
            else:
                await self._apply(live, deliveries, verdicts)
            return

    async def _call(self, live: Sequence[Part], deliveries: Deliveries[Event]) -> Sequence[Verdict | Early] | None:
        partitions = {part.partition for part in live}
        return await self._caller.batch(self.subscription, self._inbox, partitions, deliveries, numbered=self._numbered)

    async def _after_failure(
        self, live: Sequence[Part], deliveries: Deliveries[Event], error: BaseException, attempt: int
    ) -> float | None:
        """Carry out what follows the failure of a batch: seconds until the whole batch is tried again, or None."""
        stage, cause = origin_of(error)
        delivery, name = self.subscription.delivery, self.subscription.name
        kind = classify(stage, cause)
        if len(deliveries) > 1:
            decision = decide(kind, cause, delivery, attempt=attempt, tries=attempt - 1, rng=self._rng)
            if isinstance(decision, RetryAfter):
                self._note_retry(live, len(deliveries), decision.delay_s, cause, attempt)
                return decision.delay_s
            if kind is Kind.HANDLER_FAILED:
                self._stats.count_failure(cause)
            if isinstance(delivery, AtMostOnce):
                log.error("batch_failed: %s, at most once, not repeated", name, exc_info=cause)
                self._partitions.end_all(live, Ending.DROPPED)
                return None
            # One bad event must not take the others along: each gets one last call alone, in order.
            log.warning("batch_split: %s, %d events one by one after: %s", name, len(deliveries), reason_of(cause))
            for part in live:
                for record in part.records:
                    await self._handle_alone(part.only([record]))
            return None
        item = self._item_of(live, deliveries)
        item.defects = attempt - 1
        outcome = await self._path.failed(item, error)
        if isinstance(outcome, Ending):
            self._partitions.end(item, outcome)
            return None
        return outcome

    def _note_retry(self, live: Sequence[Part], count: int, delay_s: float, error: BaseException, attempt: int) -> None:
        self._stats.count_failure(error)
        self._stats.retried += 1
        for part in live:
            self._partitions.heads.attempted(part.partition, part.records[0].offset, delay_s)
        if attempt == 1:
            log.warning(
                "batch_retried: %s, %d events, next attempt in %.2f s: %s",
                self.subscription.name,
                count,
                delay_s,
                reason_of(error),
            )

    def _item_of(self, live: Sequence[Part], deliveries: Deliveries[Event]) -> Item:
        """The only record of a batch."""
        item = live[0].item_of(live[0].records[0])
        if self._numbered is not None:
            item.number = self._numbered.number_of(deliveries[0].event)
        return item

    async def _handle_alone(self, part: Part) -> None:
        """Call the handler once more with one event of a batch that failed."""
        live, deliveries = await self._decoded([part])
        if not deliveries:
            return
        try:
            verdicts = await self._call(live, deliveries)
        except BaseException as error:
            if ends_task(error):
                raise
            await self._end(self._item_of(live, deliveries), error)
            return
        if verdicts is None:
            self._partitions.end_all(live, Ending.SETTLED)
        else:
            await self._apply(live, deliveries, verdicts)

    async def _apply(
        self, live: Sequence[Part], deliveries: Deliveries[Event], verdicts: Sequence[Verdict | Early]
    ) -> None:
        """Carry out one verdict per record."""
        records = [(part, record) for part in live for record in part.records]
        judged = list(zip(records, verdicts, strict=True))
        if self._numbered is not None and self._parked is not None:
            # First those that must wait, then those that follow what was applied, and last the records end: after a
            # crash they are read again, and the others follow then.
            for ((part, record), verdict), delivery in zip(judged, deliveries, strict=True):
                if isinstance(verdict, (Early, Reject)):
                    item = part.item_of(record)
                    item.number = self._numbered.number_of(delivery.event)
                    outcome = await self._path.judged(item, verdict)
                    assert isinstance(outcome, Ending)
                    self._partitions.end(item, outcome)
            judged = [one for one in judged if not isinstance(one[1], (Early, Reject))]
            for partition, key in dict.fromkeys((part.partition, record.key) for (part, record), _ in judged):
                await self._parked.follow(partition, key)
        for (part, record), verdict in judged:
            item = part.item_of(record)
            outcome = await self._path.judged(item, verdict)
            if isinstance(outcome, Ending):
                self._partitions.end(item, outcome)
                continue
            name = (part.partition, record.key)
            held = self._held.get(name)
            if held is None:
                # Later events of this key wait behind it.
                held = self._held[name] = []
                asyncio.get_running_loop().call_later(outcome, self._release, name, held)
            held.append(part.only([record]))

    def _release(self, name: tuple[TopicPartition, object], held: list[Part]) -> None:
        if self._held.get(name) is not held:
            return  # dropped with its partition
        del self._held[name]
        self._queue.extendleft(reversed(held))
        for part in held:
            self._count(part)
        self._arrived.set()


def _unsettled(batch: Sequence[Part], held: set[tuple[TopicPartition, int]]) -> list[Part]:
    """The records of a batch that have not ended and do not wait elsewhere."""
    found = []
    for part in batch:
        if part.prefix.closed:
            continue
        offsets = part.prefix.unsettled()
        left = part.only([r for r in part.records if r.offset in offsets and (part.partition, r.offset) not in held])
        if left.records:
            found.append(left)
    return found
