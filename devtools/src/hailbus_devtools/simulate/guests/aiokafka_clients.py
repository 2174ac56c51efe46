"""Clients of aiokafka, as programs write them: what they see goes to the same histories as what our own clients see."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.errors import KafkaError
from hailbus_broker.testing.campaign.groups import AUTO_GROUP, COPY_GROUP
from hailbus_broker.testing.campaign.recorder import COPY, MAIN
from hailbus_broker.testing.history import Polled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

    from hailbus_broker.testing.campaign.context import Context
    from hailbus_broker.testing.campaign.recorder import SendOp, TransactionOp

log: Final = logging.getLogger(__name__)
REQUEST_TIMEOUT_MS: Final = 3_000
SESSION_MS: Final = 3_000
REBALANCE_MS: Final = 4_000
HEARTBEAT_MS: Final = 500
TRANSACTION_TIMEOUT_MS: Final = 8_000
STOP_TIMEOUT_S: Final = 5.0
SLOW_COMMIT_S: Final = 0.5
"""A commit that takes longer was sent again, or waited for a broker that was away."""

EXPECTED: Final = (
    kafka_errors.KafkaConnectionError,
    kafka_errors.KafkaTimeoutError,
    kafka_errors.NodeNotReadyError,
    kafka_errors.RequestTimedOutError,
    kafka_errors.ProducerFenced,
    kafka_errors.InvalidProducerEpoch,
    kafka_errors.InvalidTxnState,
    kafka_errors.OutOfOrderSequenceNumber,
    kafka_errors.OperationNotAttempted,
    kafka_errors.CommitFailedError,
    kafka_errors.IllegalGenerationError,
    kafka_errors.UnknownMemberIdError,
    kafka_errors.RebalanceInProgressError,
    kafka_errors.KafkaStorageError,
)
"""Errors that are part of life; any other that a program sees is a finding."""


def failed(context: Context, error: KafkaError, producer: AIOKafkaProducer | None = None) -> None:
    """Note an error that has no reason.

    aiokafka's producer gives up with a bare `KafkaError` when it cannot ask for its coordinator, and when a response
    has an error that it does not know; the second is a finding.
    """
    reason = error
    if type(error) is KafkaError and producer is not None:
        task = producer._sender.sender_task  # noqa: SLF001 - the error is a copy, and has lost its cause
        if task is not None and task.done() and not task.cancelled():
            reason = getattr(task.exception(), "__cause__", None) or error
    is_expected = isinstance(reason, EXPECTED) or reason.retriable or type(reason) is KafkaError
    if not is_expected:
        context.recorder.fail(f"{context.name}: {error!r} because of {reason!r}")


@asynccontextmanager
async def started(client: Any) -> AsyncIterator[None]:
    """Start a client, and stop it at the end.

    aiokafka's `stop` may wait for a broker that is away, and may end with the `CancelledError` of a task of its own.
    """
    try:
        await client.start()
        yield
    finally:
        stopping = asyncio.ensure_future(client.stop())
        await asyncio.wait({stopping}, timeout=STOP_TIMEOUT_S)
        if not stopping.cancel() and not stopping.cancelled() and stopping.exception() is not None:
            log.debug("stop failed", exc_info=stopping.exception())


def consumer_of(context: Context, *topics: str, group: str | None = None) -> AIOKafkaConsumer:
    """Make a consumer of committed records that commits nothing by itself."""
    return AIOKafkaConsumer(
        *topics,
        bootstrap_servers=context.bootstrap,
        client_id=context.name,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        fetch_max_wait_ms=200,
        request_timeout_ms=REQUEST_TIMEOUT_MS,
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=REBALANCE_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
    )


def producer_of(context: Context, transactional_id: str | None = None) -> AIOKafkaProducer:
    """Make an idempotent producer, or a transactional one."""
    return AIOKafkaProducer(
        bootstrap_servers=context.bootstrap,
        client_id=context.name,
        acks="all",
        enable_idempotence=True,
        request_timeout_ms=REQUEST_TIMEOUT_MS,
        transactional_id=transactional_id,
        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
    )


def polled(context: Context, records: Iterable[Any], *, is_subscribed: bool) -> list[Polled]:
    """Make a part of the history of what one poll has returned."""
    number = next(context.recorder.ops)
    return [
        Polled(
            process=context.name,
            life=context.life,
            partition=record.partition,
            offset=record.offset,
            value=int(record.value),
            op=number,
            is_subscribed=is_subscribed,
        )
        for record in records
    ]


def in_order(batches: Mapping[TopicPartition, Sequence[Any]]) -> list[Any]:
    """Return the records of a poll, partition by partition."""
    return [record for place in sorted(batches) for record in batches[place]]


class Sends:
    """Sends values of the main topic, and notes what becomes of them."""

    def __init__(self, context: Context) -> None:
        self._context: Final = context

    async def send(
        self, producer: AIOKafkaProducer, partition: int, transaction: TransactionOp | None = None
    ) -> asyncio.Future[Any]:
        """Hand a value to the producer. Whatever raises here was never sent."""
        context = self._context
        op = context.recorder.send(context.name, partition, transaction.number if transaction else None)
        if transaction is not None:
            transaction.partitions.add(partition)
        try:
            future: asyncio.Future[Any] = await producer.send(MAIN, b"%d" % op.value, partition=partition)
        except KafkaError:
            op.outcome = "fail"
            raise
        future.add_done_callback(partial(self._done, op, transaction))
        return future

    def _done(self, op: SendOp, transaction: TransactionOp | None, future: asyncio.Future[Any]) -> None:
        if future.cancelled() or future.exception() is not None:
            return  # nobody knows
        offset = future.result().offset
        op.outcome = "ok"
        if offset >= 0:
            op.offset = offset
            self._context.recorder.ack(MAIN, op.partition, offset)
        if transaction is not None:
            transaction.written.add(op.partition)


class IdempotentProducer:
    """Sends several values at a time, each until it is acknowledged."""

    def __init__(self, context: Context) -> None:
        self._context: Final = context
        self._sends: Final = Sends(context)

    async def run(self) -> None:
        """Produce until the campaign stops."""
        context = self._context
        while not context.stop.is_set:
            producer = producer_of(context)
            try:
                async with started(producer):
                    while not context.stop.is_set:
                        await self._produce(producer)
            except KafkaError as error:
                failed(context, error, producer)
                await context.back_off()

    async def _produce(self, producer: AIOKafkaProducer) -> None:
        context = self._context
        count = context.rng.randint(1, 4)
        places = [context.rng.randrange(context.partition_count) for _ in range(count)]
        sent = [await self._sends.send(producer, place) for place in places]
        if context.rng.random() < 0.5:
            await asyncio.gather(*sent)
            context.succeeded()
        await context.pause()


class OpenTransaction:
    """Whether a transaction is open, so that a crash in it can be counted."""

    def __init__(self, context: Context) -> None:
        self.is_open = False
        self._context: Final = context
        context.process.when_killed.append(self._killed)

    def _killed(self) -> None:
        if self.is_open and not self._context.stop.is_set:
            self._context.recorder.note("aiokafka: transaction aborted by a crash")

    async def commit(self, producer: AIOKafkaProducer, op: TransactionOp | None = None) -> None:
        """Commit it."""
        loop = asyncio.get_running_loop()
        if op is not None:
            op.outcome = "unknown"
        asked_s = loop.time()
        try:
            await producer.commit_transaction()
        finally:
            if loop.time() - asked_s > SLOW_COMMIT_S:
                self._context.recorder.note("aiokafka: commit during a fault")
        self.is_open = False
        if op is not None:
            op.outcome = "ok"


class TransactionalProducer:
    """Writes to the main topic in transactions, and aborts a third of them."""

    def __init__(self, context: Context) -> None:
        self._context: Final = context
        self._sends: Final = Sends(context)
        self._open: Final = OpenTransaction(context)

    async def run(self) -> None:
        """Write until the campaign stops."""
        context = self._context
        while True:
            producer = producer_of(context, context.name)
            try:
                async with started(producer):  # the start ends what the producer before has left open
                    while not context.stop.is_set:
                        await self._one(producer)
                        await context.pause()
                    return
            except KafkaError as error:
                failed(context, error, producer)
                await context.back_off()
            self._open.is_open = False

    async def _one(self, producer: AIOKafkaProducer) -> None:
        context = self._context
        await producer.begin_transaction()
        # The only way to learn the id by which the log names the producer.
        op = context.recorder.begin(MAIN, producer._txn_manager.producer_id)  # noqa: SLF001
        self._open.is_open = True
        places = [index for index in range(context.partition_count) if context.rng.random() < 0.7]
        sent = [await self._sends.send(producer, place, op) for place in places for _ in range(2)]
        await asyncio.gather(*sent)
        if context.rng.random() < 0.2:
            await asyncio.sleep(context.rng.uniform(0.2, 2.0))
        if context.rng.random() < 1 / 3:
            await producer.abort_transaction()
            context.recorder.note("aiokafka: transaction aborted")
        else:
            await self._open.commit(producer, op)
            context.recorder.note("aiokafka: transaction committed")
        self._open.is_open = False
        context.succeeded()


class Rebalances(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka's classes have no types
    """Lets a consumer go on from what is committed, after each rebalance."""

    def __init__(self, context: Context) -> None:
        self._context: Final = context
        self.count = 0

    async def on_partitions_revoked(self, revoked: object) -> None:
        """Count it."""
        if revoked:
            self._context.recorder.note("aiokafka: rebalance")

    async def on_partitions_assigned(self, assigned: object) -> None:
        """Note that positions are new."""
        del assigned
        self.count += 1


class Copier:
    """Copies the main topic exactly once: it reads, writes and commits its offsets in one transaction.

    There is one copier, with one transactional id. aiokafka can neither tell the coordinator its generation nor wait
    for offsets that a transaction still changes, so it begins anew after each rebalance: to take the transactional id
    again ends what was open before, and only then it reads its offsets.
    """

    def __init__(self, context: Context) -> None:
        self._context: Final = context
        self._producer: AIOKafkaProducer | None = None
        self._open: Final = OpenTransaction(context)

    async def run(self) -> None:
        """Copy until the campaign stops."""
        context = self._context
        while not context.stop.is_set:
            rebalances = Rebalances(context)
            consumer = consumer_of(context, group=COPY_GROUP)
            consumer.subscribe([MAIN], listener=rebalances)
            try:
                async with started(consumer):
                    while not context.stop.is_set:
                        await self._live(consumer, rebalances)
            except KafkaError as error:
                failed(context, error, self._producer)
                self._open.is_open = False
                await context.back_off()
        async with started(producer_of(context, context.name)):
            return  # nothing is open at the end

    async def _live(self, consumer: AIOKafkaConsumer, rebalances: Rebalances) -> None:
        """Copy until the next rebalance."""
        context = self._context
        producer = self._producer = producer_of(context, context.name)
        async with started(producer):
            count = rebalances.count
            if consumer.assignment():
                await consumer.seek_to_committed()
            while not context.stop.is_set and rebalances.count == count:
                batches = await consumer.getmany(timeout_ms=200, max_records=20)
                if rebalances.count != count:
                    return
                records = in_order(batches)
                if not records:
                    context.succeeded()
                    continue
                context.recorder.polled.extend(polled(context, records, is_subscribed=True))
                await self._copy(producer, records)
                context.succeeded()

    async def _copy(self, producer: AIOKafkaProducer, records: Sequence[Any]) -> None:
        context = self._context
        await producer.begin_transaction()
        self._open.is_open = True
        sent = [await producer.send(COPY, record.value, partition=record.partition) for record in records]
        ends = {TopicPartition(MAIN, record.partition): record.offset + 1 for record in records}
        await asyncio.gather(*sent)
        await producer.send_offsets_to_transaction(ends, COPY_GROUP)
        await self._open.commit(producer)
        context.recorder.note("aiokafka: transaction copied")


class GroupMember:
    """A member of a group that commits what it has handled."""

    def __init__(self, context: Context) -> None:
        self._context: Final = context

    async def run(self) -> None:
        """Read until the campaign stops."""
        context = self._context
        while not context.stop.is_set:
            consumer = consumer_of(context, group=AUTO_GROUP)
            consumer.subscribe([MAIN], listener=Rebalances(context))
            try:
                async with started(consumer):
                    while not context.stop.is_set:
                        await self._handle(consumer)
            except KafkaError as error:
                failed(context, error)
                await context.back_off()

    async def _handle(self, consumer: AIOKafkaConsumer) -> None:
        context = self._context
        records = in_order(await consumer.getmany(timeout_ms=200, max_records=context.rng.choice((1, 20, 200))))
        found = polled(context, records, is_subscribed=True)
        context.recorder.polled.extend(found)
        context.recorder.handed.extend(found)
        if records and context.rng.random() < 0.7:
            try:
                await consumer.commit()
                context.recorder.note("aiokafka: offsets committed")
            except KafkaError as error:
                failed(context, error)
        context.succeeded()


class AssignedReader:
    """Reads all partitions of the main topic from their start, without a gap."""

    def __init__(self, context: Context) -> None:
        self._context: Final = context
        self._positions: Final = {TopicPartition(MAIN, index): 0 for index in range(context.partition_count)}

    async def run(self) -> None:
        """Read until the campaign stops."""
        context = self._context
        while not context.stop.is_set:
            consumer = consumer_of(context)
            consumer.assign(list(self._positions))
            try:
                async with started(consumer):
                    for place, position in self._positions.items():
                        consumer.seek(place, position)
                    while not context.stop.is_set:
                        await self._read(consumer)
            except KafkaError as error:
                failed(context, error)
                await context.back_off()

    async def _read(self, consumer: AIOKafkaConsumer) -> None:
        context = self._context
        records = in_order(await consumer.getmany(timeout_ms=200))
        context.recorder.polled.extend(polled(context, records, is_subscribed=False))
        for record in records:
            self._positions[TopicPartition(MAIN, record.partition)] = record.offset + 1
        if records:
            context.succeeded()
        if context.rng.random() < 0.5:
            await asyncio.sleep(context.rng.uniform(0.0, 0.6))
