"""Exactly once from Kafka to Kafka: what a handler publishes and the offsets it consumed are committed together.

Each input partition has a producer of its own with the transactional id `<group>-<topic>-<partition>`. Whoever is
assigned the partition next registers the same id and thereby fences the former owner: a zombie can commit neither
events nor offsets. Consumers of the output must read committed, as hailbus consumers do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hailbus._transport import Bus, Consumer, Producer, Received, TopicPartition, TransportBrokenError
from hailbus.catalogue import Catalogue
from hailbus.clock import Clock
from hailbus.codec import decode
from hailbus.context import Context
from hailbus.dead_letter import dead_letter, dead_letter_topic
from hailbus.delivery import Done, ExactlyOnce, Park, Retry, Skip
from hailbus.errors import (
    ConfigurationError,
    ContractError,
    DeliveryError,
    ProducerFencedError,
    TombstoneError,
    UnknownEventError,
)
from hailbus.event import Event, event_info
from hailbus.subscription import SubscriberSettings, SubscriberStats, Subscription
from hailbus.transaction import Transaction, current_transaction

if TYPE_CHECKING:
    from hailbus.registry.schemas import Schemas
    from hailbus.tracing import Tracing

__all__ = ["TransactionalSubscriber"]

log = logging.getLogger("hailbus.transactional")
ABORT_TIMEOUT_S = 5.0


class TransactionalSubscriber:
    """All `ExactlyOnce` subscriptions of one group in one process."""

    def __init__(
        self,
        group: str,
        subscriptions: Sequence[Subscription],
        *,
        bus: Bus,
        catalogue: Catalogue,
        settings: SubscriberSettings,
        clock: Clock,
        client_id: str,
        schemas: Schemas | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self.group = group
        self.subscriptions = tuple(subscriptions)
        self.stats = SubscriberStats()
        self.failure: BaseException | None = None
        self._bus = bus
        self._catalogue = catalogue
        self._settings = settings
        self._clock = clock
        self._client_id = client_id
        self._schemas = schemas
        self._tracing = tracing
        self._random = random.Random()
        self._by_class: dict[type[Event], Subscription] = {}
        for subscription in subscriptions:
            if subscription.handler is None:
                message = f"{subscription.name} takes batches, ExactlyOnce is for handlers of single events"
                raise ConfigurationError(message)
            for cls in subscription.events:
                if cls in self._by_class:
                    message = f"group {group!r} has two handlers for {cls.__name__}; give one of them another group"
                    raise ConfigurationError(message)
                self._by_class[cls] = subscription
        self._start_at = subscriptions[0].start
        self._most = max(s.delivery.max_items for s in subscriptions if isinstance(s.delivery, ExactlyOnce))
        self.topics = tuple(sorted({event_info(cls).topic.name for cls in self._by_class}))
        self._consumer: Consumer | None = None
        self._joining: Consumer | None = None  # the one that calls `assigned`, also before its start has returned
        self._lines: dict[TopicPartition, _Line] = {}
        self._reading: asyncio.Task[None] | None = None
        self._stopping = False

    async def start(self) -> None:
        """Join the group and begin to read."""
        await self._connect()
        self._reading = asyncio.get_running_loop().create_task(self._read(), name=f"hailbus-read-{self.group}")

    async def _connect(self) -> None:
        consumer = self._bus.consumer(
            client_id=self._client_id, group=self.group, topics=self.topics, start=self._start_at, listener=self
        )
        self._joining = consumer
        await consumer.start()
        self._consumer = consumer

    async def stop(self) -> None:
        """Finish the open transactions within the drain timeout, leave the group."""
        self._stopping = True
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        await self._end(tuple(self._lines), self._settings.drain_timeout.total_seconds())
        if self._consumer is not None:
            await self._consumer.stop()
            self._consumer = None

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Start a producer for each partition: registering its id fences the member that had the partition before.

        Registering also waits for the end of that member's last transaction, which may commit. The client has asked for
        the committed offsets earlier, so they are asked for again, and records below them are not handled.
        """
        self.stats.rebalances += 1
        assert self._joining is not None
        producers: dict[TopicPartition, Producer] = {}
        try:
            for partition in partitions:
                producers[partition] = self._bus.producer(
                    client_id=f"{self._client_id}-{partition.topic}-{partition.partition}",
                    transactional_id=f"{self.group}-{partition.topic}-{partition.partition}",
                )
                await producers[partition].start()
            committed = await self._joining.committed(partitions)
        except BaseException:
            await asyncio.gather(*(producer.stop() for producer in producers.values()), return_exceptions=True)
            raise
        for partition, producer in producers.items():
            self._lines[partition] = _Line(self, partition, producer, start=committed.get(partition, 0))

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Let the open transactions finish within the grace, abort them after it."""
        await self._end(tuple(partitions), self._settings.revoke_grace.total_seconds())

    async def _end(self, partitions: Sequence[TopicPartition], grace_s: float) -> None:
        lines = [line for partition in partitions if (line := self._lines.pop(partition, None)) is not None]
        await asyncio.gather(*(line.stop(grace_s) for line in lines))

    async def _read(self) -> None:
        while not self._stopping:
            assert self._consumer is not None
            try:
                polled = await self._consumer.poll(timeout_s=0.25, max_records=self._settings.poll_records)
                for raw, records in polled.items():
                    partition = TopicPartition(*raw)
                    line = self._lines.get(partition)
                    if line is None and records and partition in self._consumer.assignment():
                        # Assigned so lately that its producer is not ready: the records must come again, or the next
                        # commit would pass them.
                        await self._consumer.seek({partition: records[0].offset})
                        await asyncio.sleep(0.02)
                    if line is not None and records:
                        line.push(records)
                        self.stats.received += len(records)
                        if line.is_full:
                            self._consumer.pause(line.partition)
            except TransportBrokenError as error:
                log.warning("consumer_replaced: group %s after %s", self.group, error)
                self.stats.reconnects += 1
                await self._end(tuple(self._lines), self._settings.revoke_grace.total_seconds())
                await self._consumer.stop()
                await asyncio.sleep(0.2)
                with contextlib.suppress(ConfigurationError):
                    await self._connect()
            except asyncio.CancelledError:
                raise
            except Exception as error:
                self.failure = error
                log.exception("subscriber_failed: group %s reads no more", self.group)
                return

    async def commit(self) -> None:
        """Do nothing: each transaction commits its offsets itself."""

    def resume(self, partition: TopicPartition) -> None:
        """A partition has room again."""
        if self._consumer is not None and partition in self._lines:
            self._consumer.resume(partition)

    async def handle(self, record: Received, transaction: Transaction, attempt: int) -> None:
        """Handle one record inside the transaction; what cannot be handled becomes a dead letter inside it.

        Raises:
            Exception: The handler's, while it has attempts left.
        """
        subscription: Subscription | None = None
        try:
            if self._schemas is not None:
                record = await self._schemas.identified(record, self._catalogue)
            event, _ = decode(record, self._catalogue)
            subscription = self._by_class.get(type(event))
            if subscription is None:
                self.stats.skipped += 1
                return
        except TombstoneError:
            self.stats.skipped += 1
            return
        except UnknownEventError as error:
            if self._settings.unknown_event == "fail":
                raise
            if self._settings.unknown_event == "skip":
                self.stats.skipped += 1
                return
            await self._set_aside(record, transaction, error, str(error), by="decoder", attempt=0)
            return
        except ContractError as error:
            await self._set_aside(record, transaction, error, str(error), by="decoder", attempt=0)
            return
        assert subscription.handler is not None
        delivery = subscription.delivery
        assert isinstance(delivery, ExactlyOnce)
        mark = transaction.mark()
        token = current_transaction.set(transaction)
        try:
            ctx = Context(record, attempt=attempt, group=self.group)
            with self._tracing.processing(ctx) if self._tracing is not None else contextlib.nullcontext():
                verdict = await subscription.handler(event, ctx)
            if isinstance(verdict, Retry):
                message = f"{subscription.name} asks to retry"
                raise _RetryAskedError(message)
            if isinstance(verdict, Park):
                transaction.rewind(mark)
                await self._set_aside(record, transaction, None, verdict.reason, by=subscription.name, attempt=attempt)
            elif isinstance(verdict, Skip):
                self.stats.skipped += 1
            else:
                assert verdict is None or isinstance(verdict, Done)
        except Exception as error:
            self.stats.failed += 1
            transaction.rewind(mark)
            retry = delivery.retry
            if isinstance(error, _RetryAskedError) or (attempt < retry.attempts and isinstance(error, retry.on)):
                raise
            reason = str(error) or repr(error)
            await self._set_aside(record, transaction, error, reason, by=subscription.name, attempt=attempt)
        finally:
            current_transaction.reset(token)

    def delay_s(self, record: Received, attempt: int) -> float:
        """Seconds until the next attempt."""
        with contextlib.suppress(ContractError):
            event, _ = decode(record, self._catalogue)
            delivery = self._by_class[type(event)].delivery
            if isinstance(delivery, ExactlyOnce):
                return delivery.retry.delay_s(attempt, self._random)
        return 1.0

    async def _set_aside(
        self,
        record: Received,
        transaction: Transaction,
        error: BaseException | None,
        reason: str,
        *,
        by: str,
        attempt: int,
    ) -> None:
        topic = dead_letter_topic(record.topic, self.group)
        letter = dead_letter(
            record, group=self.group, error=error, reason=reason, attempt=attempt, now=self._clock(), by=by
        )
        transaction.add(topic, record.partition, letter)
        self.stats.dead_lettered += 1
        log.warning("dead_lettered: %s-%d@%d: %s", record.topic, record.partition, record.offset, reason)

    @property
    def unhealthy_reason(self) -> str | None:
        """Why this subscriber is unhealthy."""
        if self.failure is not None:
            return f"group {self.group} reads no more: {self.failure}"
        limit_s = self._settings.stall_after.total_seconds()
        for line in self._lines.values():
            if line.failure is not None:
                return f"group {self.group} cannot go on with {line.partition}: {line.failure}"
            if line.waiting_count and line.stalled_s > limit_s:
                return f"group {self.group} has {line.waiting_count} events waiting on {line.partition}"
        return None

    @property
    def unsettled_count(self) -> int:
        """Records read and not committed."""
        return sum(line.waiting_count for line in self._lines.values())

    @property
    def lag_s(self) -> float:
        """Age of the oldest record that was read and is not committed, in seconds; 0 when there is none."""
        oldest = [line.oldest_ms for line in self._lines.values() if line.oldest_ms is not None]
        return max(self._clock().timestamp() - min(oldest) / 1000, 0.0) if oldest else 0.0

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this member holds."""
        return frozenset(self._lines)

    @property
    def most(self) -> int:
        """Records per transaction at most."""
        return self._most


class _RetryAskedError(Exception):
    pass


class _Line:
    """One partition: its producer, its queue, its transactions one after the other."""

    def __init__(
        self, owner: TransactionalSubscriber, partition: TopicPartition, producer: Producer, *, start: int
    ) -> None:
        self.partition = partition
        self._next_offset = start
        self.failure: BaseException | None = None
        self._owner = owner
        self._producer = producer
        self._queue: deque[Received] = deque()
        self._arrived = asyncio.Event()
        self._stopping = False
        loop = asyncio.get_running_loop()
        self._progress_s = loop.time()
        self._task = loop.create_task(self._run(), name=f"hailbus-transactions-{partition.topic}-{partition.partition}")

    def push(self, records: Sequence[Received]) -> None:
        """Queue the records that are not below the committed offset and were not queued before."""
        new = [record for record in records if record.offset >= self._next_offset]
        if new:
            self._next_offset = new[-1].offset + 1
            self._queue.extend(new)
            self._arrived.set()

    @property
    def is_full(self) -> bool:
        return len(self._queue) >= 4 * self._owner.most

    @property
    def waiting_count(self) -> int:
        return len(self._queue)

    @property
    def oldest_ms(self) -> int | None:
        return self._queue[0].timestamp if self._queue else None

    @property
    def stalled_s(self) -> float:
        return asyncio.get_running_loop().time() - self._progress_s

    async def stop(self, grace_s: float) -> None:
        self._stopping = True
        self._arrived.set()
        done, _ = await asyncio.wait({self._task}, timeout=grace_s)
        if not done:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._producer.stop()

    async def _run(self) -> None:
        try:
            while not self._stopping:
                if not self._queue:
                    self._arrived.clear()
                    await self._arrived.wait()
                    continue
                batch = [self._queue[i] for i in range(min(len(self._queue), self._owner.most))]
                if not await self._transact(batch):
                    continue
                for _ in batch:
                    self._queue.popleft()
                self._owner.stats.settled += len(batch)
                self._owner.stats.committed += 1
                self._progress_s = asyncio.get_running_loop().time()
                if not self.is_full:
                    self._owner.resume(self.partition)
        except ProducerFencedError as error:
            log.info("line_fenced: %s has a new owner: %s", self.partition, error)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.failure = error
            log.exception("line_failed: %s", self.partition)

    async def _transact(self, batch: Sequence[Received]) -> bool:
        """One transaction over a batch; False when it has to be done again."""
        transaction = Transaction()
        await self._producer.begin()
        try:
            for record in batch:
                attempt = 1
                while True:
                    try:
                        await self._owner.handle(record, transaction, attempt)
                    except Exception as error:  # noqa: BLE001 subject to the policy; the last attempt does not raise
                        wait_s = self._owner.delay_s(record, attempt)
                        self._owner.stats.retried += 1
                        log.warning("handler_retried: %s@%d: %r", self.partition, record.offset, error)
                        await asyncio.sleep(wait_s)
                        attempt += 1
                    else:
                        break
            await asyncio.gather(
                *(self._producer.send(t, p, records) for (t, p), records in transaction.pending.items() if records)
            )
            await self._producer.send_offsets({self.partition: batch[-1].offset + 1}, self._owner.group)
            await self._producer.commit()
        except ProducerFencedError:
            raise
        except DeliveryError as error:
            log.warning("transaction_aborted: %s: %s", self.partition, error)
            await self._producer.abort()
            await asyncio.sleep(0.5)
            return False
        except BaseException:
            # The coordinator aborts what is left open when its time is up, or when the next owner comes.
            with contextlib.suppress(DeliveryError, TimeoutError):
                async with asyncio.timeout(ABORT_TIMEOUT_S):
                    await self._producer.abort()
            raise
        return True
