"""Clients that write: idempotent and pipelined, plain, and in transactions of both versions."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.client import RefusedError, UnreachableError, accept
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.add_offsets_to_txn_request import AddOffsetsToTxnRequest
from hailbus_broker.protocol.definitions.add_partitions_to_txn_request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from hailbus_broker.protocol.definitions.end_txn_request import EndTxnRequest
from hailbus_broker.protocol.definitions.find_coordinator_request import FindCoordinatorRequest
from hailbus_broker.protocol.definitions.init_producer_id_request import InitProducerIdRequest
from hailbus_broker.protocol.definitions.produce_request import PartitionProduceData, ProduceRequest, TopicProduceData
from hailbus_broker.protocol.definitions.txn_offset_commit_request import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.records import RecordToWrite, build_batch
from hailbus_broker.testing.campaign.context import TopicReader, failed
from hailbus_broker.testing.campaign.recorder import LOOSE, MAIN
from hailbus_broker.testing.history import Identified, Polled

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hailbus_broker.client import Client, Connection
    from hailbus_broker.testing.campaign.context import Context
    from hailbus_broker.testing.campaign.recorder import SendOp, TransactionOp

PIPELINE_DEPTH: Final = 5
"""As many batches as a broker remembers of each producer."""
FENCED: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})


def produce_request(
    topic: str, partition: int, batch: bytes | bytearray, transactional_id: str | None = None
) -> ProduceRequest:
    """Return a request for one batch, to be answered when it is durable."""
    data = [PartitionProduceData(index=partition, records=bytes(batch))]
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[TopicProduceData(name=topic, partition_data=data)],
    )


def base_offset_of(response: Any, what: str) -> int:
    """Return the base offset that a response to `produce_request` reports.

    Raises:
        RefusedError: The batch was refused.
    """
    result = response.responses[0].partition_responses[0]
    accept(result.error_code, what)
    offset: int = result.base_offset
    return offset


def records_of(context: Context, values: Iterable[bytes | None], key: bytes | None = None) -> list[RecordToWrite]:
    """Make records of the present."""
    now_ms = context.now_ms()
    return [RecordToWrite(key=key, value=value, timestamp=now_ms) for value in values]


async def new_producer_id(context: Context, client: Client) -> tuple[int, int]:
    """Return the id and epoch of an idempotent producer; tries until there is one."""
    while True:
        try:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
            response = await client.ask(ApiKey.INIT_PRODUCER_ID, 3, request)
            accept(response.error_code, "InitProducerId")
            owner = f"request {len(context.recorder.identified)} of {context.name}"
            context.recorder.identified.append(Identified(owner=owner, producer_id=response.producer_id))
            return response.producer_id, response.producer_epoch
        except (UnreachableError, RefusedError) as error:
            failed(context, error)
            await context.back_off()


@dataclass(slots=True, kw_only=True)
class _Batch:
    sequence: int
    ops: list[SendOp]
    data: bytearray
    partition: int


class IdempotentProducer:
    """Sends batches to one partition, several at a time, and sends again what was not acknowledged."""

    def __init__(self, context: Context) -> None:
        self._context: Final = context
        self._client: Final = context.client()
        self._unacked: Final[deque[_Batch]] = deque()
        self._partition: Final = context.rng.randrange(context.partition_count)
        self._next_sequence = 0
        self._identity = (-1, -1)

    async def run(self) -> None:
        """Produce until the campaign stops and everything is acknowledged."""
        self._identity = await new_producer_id(self._context, self._client)
        while not self._context.stop.is_set or self._unacked:
            try:
                await self._pump(await self._client.leader_connection(MAIN, self._partition))
            except (UnreachableError, RefusedError) as error:
                failed(self._context, error, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
                self._client.close()
                await self._context.back_off()

    async def _pump(self, connection: Connection) -> None:
        context = self._context
        asked = deque((batch, self._send(connection, batch)) for batch in self._unacked)
        while not context.stop.is_set or asked:
            if asked and (context.stop.is_set or len(asked) >= PIPELINE_DEPTH):
                await self._client.response(asked[0][1], connection)
            while asked and asked[0][1].done():
                batch, future = asked.popleft()
                self._acked(batch, future.result())
            if not context.stop.is_set and len(asked) < PIPELINE_DEPTH:
                batch = self._new_batch()
                asked.append((batch, self._send(connection, batch)))
                if context.rng.random() < 0.7:  # else the next one follows at once
                    await context.pause()
                    if asked and not asked[0][1].done() and context.rng.random() < 0.5:
                        await self._client.response(asked[0][1], connection)

    def _new_batch(self) -> _Batch:
        context = self._context
        count = context.rng.randint(1, 4)
        ops = [context.recorder.send(context.name, self._partition) for _ in range(count)]
        data = build_batch(
            records_of(context, (b"%d" % op.value for op in ops)),
            producer_id=self._identity[0],
            producer_epoch=self._identity[1],
            base_sequence=self._next_sequence,
        )
        batch = _Batch(sequence=self._next_sequence, ops=ops, data=data, partition=self._partition)
        self._next_sequence += count
        self._unacked.append(batch)
        return batch

    @staticmethod
    def _send(connection: Connection, batch: _Batch) -> asyncio.Future[Any]:
        return connection.send(ApiKey.PRODUCE, 9, produce_request(MAIN, batch.partition, batch.data))

    def _acked(self, batch: _Batch, response: Any) -> None:
        try:
            offset = base_offset_of(response, f"Produce of sequence {batch.sequence}")
        except RefusedError as error:
            if error.code is not ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                raise
            offset = -1  # in the log, at a place that the broker has forgotten
        assert self._unacked[0] is batch, "responses come in the order of their requests"
        self._unacked.popleft()
        for number, op in enumerate(batch.ops):
            op.outcome = "ok"
            op.offset = offset + number if offset >= 0 else None
        if offset >= 0:
            self._context.recorder.ack(MAIN, batch.partition, offset + len(batch.ops) - 1)
        self._context.succeeded()


class PlainProducer:
    """Sends one batch after another without a producer id, each only once."""

    def __init__(self, context: Context) -> None:
        self._context: Final = context
        self._client: Final = context.client()

    async def run(self) -> None:
        """Produce until the campaign stops."""
        context = self._context
        while not context.stop.is_set:
            partition = context.rng.randrange(context.partition_count)
            ops = [context.recorder.send(context.name, partition) for _ in range(context.rng.randint(1, 3))]
            batch = build_batch(records_of(context, (b"%d" % op.value for op in ops)))
            try:
                connection = await self._client.leader_connection(MAIN, partition)
                future = connection.send(ApiKey.PRODUCE, 9, produce_request(MAIN, partition, batch))
                offset = base_offset_of(await self._client.response(future, connection), "Produce")
            except (UnreachableError, RefusedError) as error:
                failed(context, error)
                self._client.moved(MAIN, partition)
                await context.back_off()
                continue
            for number, op in enumerate(ops):
                op.outcome, op.offset = "ok", offset + number
            context.recorder.ack(MAIN, partition, offset + len(ops) - 1)
            context.succeeded()
            await context.pause()


class LooseProducer:
    """Sends to a topic that may lose records, and waits for the leader only. What becomes of them is not judged."""

    def __init__(self, context: Context) -> None:
        self._context: Final = context
        self._client: Final = context.client()

    async def run(self) -> None:
        """Produce until the campaign stops."""
        context = self._context
        while not context.stop.is_set:
            partition = context.rng.randrange(context.partition_count)
            request = produce_request(LOOSE, partition, build_batch(records_of(context, [b"loose"])))
            request.acks = context.rng.choice((1, -1))
            try:
                connection = await self._client.leader_connection(LOOSE, partition)
                base_offset_of(
                    await self._client.response(connection.send(ApiKey.PRODUCE, 9, request), connection), "Produce"
                )
            except (UnreachableError, RefusedError) as error:
                failed(context, error)
                self._client.moved(LOOSE, partition)
                await context.back_off()
                continue
            context.succeeded()
            await context.pause()


@dataclass(slots=True)
class TransactionalSession:
    """A transactional producer: its identity, its sequences, and the steps of a transaction.

    Each step raises `UnreachableError` or `RefusedError` when it did not succeed.

    Attributes:
        is_v2: Whether it speaks transactions v2: the broker adds partitions by itself, and each end brings an epoch.
        added: Partitions that were added to the open transaction, in transactions v1.
        written: Offset of the last batch of the open transaction in each partition.
    """

    context: Context
    client: Client
    transactional_id: str
    is_v2: bool
    timeout_ms: int = 8_000
    producer_id: int = -1
    producer_epoch: int = -1
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)
    added: set[tuple[str, int]] = field(default_factory=set)
    written: dict[tuple[str, int], int] = field(default_factory=dict)

    async def init(self) -> None:
        """Take the transactional id, which ends what a producer before has left open; tries until that is done."""
        while True:
            try:
                await self.client.ask(
                    ApiKey.FIND_COORDINATOR, 2, FindCoordinatorRequest(key=self.transactional_id, key_type=1)
                )
                request = InitProducerIdRequest(
                    transactional_id=self.transactional_id, transaction_timeout_ms=self.timeout_ms
                )
                response = await self.client.ask(ApiKey.INIT_PRODUCER_ID, 4, request)
                accept(response.error_code, "InitProducerId")
            except (UnreachableError, RefusedError) as error:
                failed(self.context, error)
                await self.context.back_off()
                continue
            self._identify(response)
            return

    def _identify(self, response: Any) -> None:
        if (self.producer_id, self.producer_epoch) != (response.producer_id, response.producer_epoch):
            self.producer_id, self.producer_epoch = response.producer_id, response.producer_epoch
            self.sequences.clear()
            given = Identified(owner=self.transactional_id, producer_id=response.producer_id)
            self.context.recorder.identified.append(given)
        self.added.clear()
        self.written.clear()

    async def _add(self, topic: str, partition: int) -> None:
        if self.is_v2 or (topic, partition) in self.added:
            return
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=[partition])],
        )
        for _ in range(20):
            response = await self.client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, request)
            code = response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            if code != ErrorCode.CONCURRENT_TRANSACTIONS:
                break
            await self.context.back_off()
        accept(code, "AddPartitionsToTxn")
        self.added.add((topic, partition))

    async def produce(self, topic: str, partition: int, records: Sequence[RecordToWrite]) -> int:
        """Write one batch in the transaction; sends it again when no response comes. Returns its base offset."""
        await self._add(topic, partition)
        sequence = self.sequences.get((topic, partition), 0)
        batch = build_batch(
            records,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        version = 12 if self.is_v2 else 9
        for attempts_left in reversed(range(20)):
            try:
                request = produce_request(topic, partition, batch, self.transactional_id)
                offset = base_offset_of(await self.client.ask(ApiKey.PRODUCE, version, request), "Produce")
                break
            except UnreachableError:
                if attempts_left < 18:
                    raise
            except RefusedError as error:
                if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS or not attempts_left:
                    raise
            await self.context.back_off()
        self.sequences[topic, partition] = sequence + len(records)
        self.written[topic, partition] = offset
        self.context.recorder.ack(topic, partition, offset + len(records) - 1)
        return offset

    async def commit_offsets(
        self, group: str, topic: str, offsets: Mapping[int, int], generation: int, member_id: str
    ) -> None:
        """Make the offsets of a group part of the transaction."""
        if not self.is_v2:
            request = AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                group_id=group,
            )
            accept((await self.client.ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, request)).error_code, "AddOffsetsToTxn")
        parts = [
            TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
            for index, offset in offsets.items()
        ]
        response = await self.client.ask(
            ApiKey.TXN_OFFSET_COMMIT,
            5 if self.is_v2 else 3,
            TxnOffsetCommitRequest(
                transactional_id=self.transactional_id,
                group_id=group,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                generation_id=generation,
                member_id=member_id,
                topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=parts)],
            ),
        )
        for answered in response.topics:
            for part in answered.partitions:
                accept(part.error_code, "TxnOffsetCommit")

    async def end(self, *, is_commit: bool) -> None:
        """End the transaction; asks again, over a new connection if need be, until there is an answer."""
        for attempts_left in reversed(range(30)):
            request = EndTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                committed=is_commit,
            )
            try:
                response = await self.client.ask(ApiKey.END_TXN, 5 if self.is_v2 else 3, request)
                accept(response.error_code, "EndTxn")
            except UnreachableError:
                self.context.recorder.note("EndTxn without a response")
                if not attempts_left:
                    raise
            except RefusedError as error:
                if error.code not in self.context.waits or not attempts_left:
                    raise
            else:
                self.context.recorder.when_ended(self.transactional_id, self.producer_id, self.written)
                if self.is_v2:
                    self._identify(response)
                self.added.clear()
                self.written.clear()
                return
            await self.context.back_off()


def may_be_refused(error: Exception) -> bool:
    """Whether a step of a transaction may be refused so: it was aborted or fenced meanwhile."""
    return isinstance(error, RefusedError) and (
        error.code in FENCED
        or error.code
        in {
            ErrorCode.INVALID_TXN_STATE,
            ErrorCode.TRANSACTION_ABORTABLE,
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            ErrorCode.OPERATION_NOT_ATTEMPTED,
        }
    )


class TransactionalProducer:
    """Writes to the main topic in transactions, aborts a third of them, and reads in between."""

    def __init__(self, context: Context, *, is_v2: bool) -> None:
        self._context: Final = context
        client = context.client()
        self._session: Final = TransactionalSession(context, client, context.name, is_v2)
        self._reader: Final = TopicReader(context, context.client(), MAIN, is_committed=True)
        self._reader.positions.update(dict.fromkeys(range(context.partition_count), 0))

    async def run(self) -> None:
        """Write until the campaign stops."""
        context = self._context
        await self._session.init()
        while not context.stop.is_set:
            op = context.recorder.begin(MAIN, self._session.producer_id)
            try:
                await self._one(op)
                if op.outcome == "ok":
                    context.succeeded()
            except (UnreachableError, RefusedError) as error:
                if not may_be_refused(error):
                    failed(context, error)
                await self._session.init()
            await context.pause()
        await self._session.init()  # nothing is open at the end

    async def _one(self, op: TransactionOp) -> None:
        context, session = self._context, self._session
        for partition in range(context.partition_count):
            if context.rng.random() < 0.4:
                continue
            for _ in range(context.rng.randint(1, 2)):
                sends = [context.recorder.send(context.name, partition, op.number) for _ in range(2)]
                op.partitions.add(partition)
                records = records_of(context, (b"%d" % send.value for send in sends))
                offset = await session.produce(MAIN, partition, records)
                op.written.add(partition)
                for number, send in enumerate(sends):
                    send.outcome, send.offset = "ok", offset + number
        if context.rng.random() < 0.3:
            await self._read(op)
        if context.rng.random() < 0.2:
            await asyncio.sleep(context.rng.uniform(0.2, 2.0))
        if context.rng.random() < 1 / 3:
            await session.end(is_commit=False)
            context.recorder.note("transaction aborted")
            return
        op.outcome = "unknown"
        await session.end(is_commit=True)
        op.outcome = "ok"
        context.recorder.note("transaction committed")

    async def _read(self, op: TransactionOp) -> None:
        """Read what is committed: never what this transaction has written itself."""
        context = self._context
        found = await self._reader.poll(max_wait_ms=0)
        number = next(context.recorder.ops)
        context.recorder.polled.extend(
            Polled(
                process=f"{context.name}-reader",
                life=context.life,
                partition=record.partition,
                offset=record.offset,
                value=int(record.value or b"-1"),
                op=number,
                transaction=op.number,
            )
            for record in found
        )


class Abandoner:
    """Begins transactions that it never ends: their time-out must end them, or nobody could read on."""

    def __init__(self, context: Context) -> None:
        self._context: Final = context

    async def run(self) -> None:
        """Begin transactions until the campaign stops."""
        context = self._context
        number = 0
        while not context.stop.is_set:
            number += 1
            transactional_id = f"{context.name}-{context.life}-{number}"
            is_v2 = context.rng.random() < 0.5
            session = TransactionalSession(context, context.client(), transactional_id, is_v2, timeout_ms=1_500)
            await session.init()
            op = context.recorder.begin(MAIN, session.producer_id)
            try:
                partition = context.rng.randrange(context.partition_count)
                send = context.recorder.send(transactional_id, partition, op.number)
                op.partitions.add(partition)
                send.offset = await session.produce(MAIN, partition, records_of(context, [b"%d" % send.value]))
                send.outcome = "ok"
            except (UnreachableError, RefusedError) as error:
                if not may_be_refused(error):
                    failed(context, error)
            else:
                context.recorder.note("transaction abandoned")
                context.succeeded()
            session.client.close()
            await asyncio.sleep(context.rng.uniform(2, 6))
