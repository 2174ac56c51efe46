"""The handlers of batches: collect, decode, hand over, and settle by whole reads where nothing is wrong."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, assert_never

from pydantic import ValidationError

from hailbus._transport import Received, TopicPartition
from hailbus._work import Part
from hailbus.context import Batch, Context, Deliveries, Delivery
from hailbus.delivery import AtMostOnce, Done, EffectivelyOnce, Park, Retry, Skip, Verdict
from hailbus.errors import ConfigurationError, ContractError
from hailbus.event import Event
from hailbus.schema_id import payload_of
from hailbus.subscription import Subscription

if TYPE_CHECKING:
    from hailbus.subscriber import Subscriber

__all__ = ["BatchRunner"]

log = logging.getLogger("hailbus.subscriber")


class BatchRunner:
    """Collects records of one batch subscription and calls its handler, one batch at a time."""

    def __init__(self, subscriber: Subscriber, subscription: Subscription) -> None:
        self._subscriber = subscriber
        self._subscription = subscription
        self._queue: deque[Part] = deque()
        self._queued_count = 0
        self._queued_bytes = 0
        self._held: dict[tuple[TopicPartition, object], list[Part]] = {}
        """What waits for its own retry, by key, with what came behind it: one record each."""
        self._arrived = asyncio.Event()
        self._is_waiting = False
        """The handler waits for its batch to become full."""
        self._current: frozenset[TopicPartition] = frozenset()
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.task = asyncio.get_running_loop().create_task(self._run(), name=f"hailbus-batch-{self._subscription.name}")

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
            self.task = None

    def restart_if_cancelled(self) -> None:
        if self.task is not None and self.task.done() and not self._subscriber.is_stopping:
            self.start()

    def push(self, part: Part) -> None:
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
        subscription = self._subscription
        return self._queued_count >= subscription.max_items or self._queued_bytes >= subscription.max_bytes

    def drop(self, partitions: frozenset[TopicPartition] | None) -> None:
        """Forget what waits for these partitions."""
        keep = [part for part in self._queue if partitions is not None and part.partition not in partitions]
        self._queue = deque(keep)
        self._queued_count = self._queued_bytes = 0
        for part in keep:
            self._count(part)
        for name in [name for name in self._held if partitions is None or name[0] in partitions]:
            del self._held[name]

    def touches(self, partitions: frozenset[TopicPartition] | None) -> bool:
        """Whether the batch that is being handled has records of these partitions."""
        return bool(self._current) if partitions is None else not self._current.isdisjoint(partitions)

    async def _run(self) -> None:
        while True:
            batch = await self._collect()
            self._current = frozenset({part.partition for part in batch})
            try:
                await self._handle(batch, attempt=1)
            finally:
                self._current = frozenset()
                self._subscriber.handler_ended()

    async def _collect(self) -> list[Part]:
        subscription = self._subscription
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
        """What of a part does not wait behind a retry of its key."""
        free = []
        for record in part.records:
            held = self._held.get((part.partition, record.key))
            if held is not None:
                held.append(part.only([record]))
            else:
                free.append(record)
        return part.only(free)

    async def _decoded(self, batch: Sequence[Part]) -> tuple[list[Part], Deliveries[Event]]:
        """What can be handed over of a batch, record by record with its event; the rest is set aside or skipped."""
        live: list[Part] = []
        events: list[Event] = []
        records: list[Received] = []
        attempts: list[int] = []
        for part in batch:
            if part.prefix.closed:
                continue
            part.attempt += 1
            found = self._events_of(part)
            usable = part
            if found is None:
                usable, found = await self._events_one_by_one(part)
            if found:
                live.append(usable)
                events += found
                records += usable.records
                attempts += [part.attempt] * len(found)
        return live, Deliveries(events, records, attempts, group=self._subscriber.group)

    def _events_of(self, part: Part) -> list[Event] | None:
        """The events of a part, None when something needs a closer look."""
        route = part.route
        validate = route.validate
        if (
            validate is None
            or not route.is_newest
            or part.was_resolved
            or isinstance(self._subscription.delivery, EffectivelyOnce)
        ):
            return None
        values = [record.value for record in part.records if record.value is not None]
        if len(values) < len(part.records):
            return None
        try:
            return [validate(payload_of(value)) for value in values]
        except ValidationError:
            return None

    async def _events_one_by_one(self, part: Part) -> tuple[Part, list[Event]]:
        """The records of a part that can be handed over, and their events."""
        subscriber = self._subscriber
        delivery = self._subscription.delivery
        usable: list[Received] = []
        events: list[Event] = []
        for record in part.records:
            item = part.item_of(record)
            try:
                event = subscriber.event_of(item)
            except ContractError as error:
                await subscriber.set_aside(item, error, str(error), by="decoder", attempt=0)
                subscriber.settle(item)
                continue
            if event is None:
                subscriber.stats.skipped += 1
                subscriber.settle(item)
                continue
            if isinstance(delivery, EffectivelyOnce):
                refusal = delivery.inbox.refusal_of(Context(record, group=subscriber.group))
                if refusal is not None:
                    await subscriber.set_aside(item, refusal, str(refusal), by="inbox", attempt=0)
                    subscriber.settle(item)
                    continue
            usable.append(record)
            events.append(event)
        return part.only(usable), events

    async def _handle(self, batch: Sequence[Part], *, attempt: int) -> None:
        """Call the handler with a batch until every item is settled or waits for its own retry."""
        subscriber = self._subscriber
        subscription = self._subscription
        delivery = subscription.delivery
        while True:
            live, deliveries = await self._decoded(batch)
            if not deliveries:
                return
            try:
                if isinstance(delivery, EffectivelyOnce):
                    async with delivery.inbox.engine.begin() as tx:
                        fresh = await delivery.inbox.claim(tx, deliveries)
                        new = _first_of_each(deliveries, fresh)
                        if new:
                            verdicts = await self._call(Batch(new, tx=tx))
                            if verdicts is not None and any(isinstance(v, (Retry, Park)) for v in verdicts):
                                message = (
                                    f"{subscription.name} gave Retry or Park under EffectivelyOnce, where a batch is "
                                    "applied as a whole; raise, and the batch is split"
                                )
                                raise ConfigurationError(message)
                    verdicts = None
                else:
                    verdicts = await self._call(Batch(deliveries))
                if verdicts is not None and len(verdicts) != len(deliveries):
                    message = f"{subscription.name} gave {len(verdicts)} verdicts for {len(deliveries)} events"
                    raise ConfigurationError(message)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                subscriber.stats.failed += 1
                if isinstance(delivery, AtMostOnce):
                    log.error("batch_failed: %s, at most once, not repeated", subscription.name, exc_info=error)
                    subscriber.settle_all(live)
                    return
                if attempt < delivery.retry.attempts and isinstance(error, delivery.retry.on):
                    wait_s = subscriber.retry_delay_s(delivery, attempt)
                    subscriber.stats.retried += 1
                    log.warning(
                        "batch_retried: %s, %d events, attempt %d of %d, next in %.2f s: %r",
                        subscription.name,
                        len(deliveries),
                        attempt,
                        delivery.retry.attempts,
                        wait_s,
                        error,
                    )
                    attempt += 1
                    await asyncio.sleep(wait_s)
                    batch = live
                    continue
                if len(deliveries) == 1:
                    item = live[0].item_of(live[0].records[0])
                    log.error("batch_gave_up: %s on one event", subscription.name, exc_info=error)
                    await subscriber.give_up(item, error)
                    subscriber.settle(item)
                    return
                # One bad event must not take the others along: each gets one last call alone, in order.
                log.warning("batch_split: %s, %d events one by one after %r", subscription.name, len(deliveries), error)
                for part in live:
                    for record in part.records:
                        await self._handle([part.only([record])], attempt=delivery.retry.attempts)
                return
            if verdicts is None:
                subscriber.settle_all(live)
                return
            await self._apply(live, verdicts)
            return

    async def _call(self, batch: Batch[Event]) -> Sequence[Verdict] | None:
        handler, tracing = self._subscription.batch_handler, self._subscriber.tracing
        assert handler is not None
        if tracing is None:
            return await handler(batch)
        with tracing.processing_batch([item.ctx for item in batch.items], group=self._subscriber.group):
            return await handler(batch)

    async def _apply(self, live: Sequence[Part], verdicts: Sequence[Verdict]) -> None:
        subscriber = self._subscriber
        records = [(part, record) for part in live for record in part.records]
        for (part, record), verdict in zip(records, verdicts, strict=True):
            item = part.item_of(record)
            match verdict:
                case Retry(after):
                    subscriber.stats.retried += 1
                    name = (part.partition, record.key)
                    held = self._held.get(name)
                    if held is None:
                        # Later events of this key wait behind it.
                        held = self._held[name] = []
                        asyncio.get_running_loop().call_later(after.total_seconds(), self._release, name)
                    held.append(part.only([record]))
                case Park(reason):
                    await subscriber.set_aside(item, None, reason, by=self._subscription.name, attempt=item.attempt)
                    subscriber.settle(item)
                case Skip():
                    subscriber.stats.skipped += 1
                    subscriber.settle(item)
                case Done():
                    subscriber.settle(item)
                case _:
                    assert_never(verdict)

    def _release(self, name: tuple[TopicPartition, object]) -> None:
        held = self._held.pop(name, [])
        self._queue.extendleft(reversed(held))
        for part in held:
            self._count(part)
        self._arrived.set()


def _first_of_each(deliveries: Sequence[Delivery[Event]], fresh: set[str]) -> list[Delivery[Event]]:
    """The deliveries with fresh ids, each id once."""
    left = set(fresh)
    found: list[Delivery[Event]] = []
    for delivery in deliveries:
        event_id = delivery.ctx.envelope.id
        if event_id in left:
            left.remove(event_id)
            found.append(delivery)
    return found
