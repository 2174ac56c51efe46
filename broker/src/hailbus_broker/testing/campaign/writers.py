"""Clients of the other topics: a compacted one, one whose front is deleted, and topics that come and go."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from hailbus_broker.client import RefusedError, UnreachableError, accept
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.create_topics_request import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from hailbus_broker.protocol.definitions.delete_records_request import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from hailbus_broker.protocol.definitions.delete_topics_request import DeleteTopicsRequest
from hailbus_broker.protocol.definitions.metadata_request import MetadataRequest
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.records import build_batch
from hailbus_broker.testing.campaign.context import LATEST, TopicReader, failed, list_offsets
from hailbus_broker.testing.campaign.producers import (
    TransactionalSession,
    base_offset_of,
    may_be_refused,
    new_producer_id,
    produce_request,
    records_of,
)
from hailbus_broker.testing.campaign.recorder import TABLE, TRIMMED, KeyOp, TrimmedOp
from hailbus_broker.testing.history import Deleted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hailbus_broker.client import Client
    from hailbus_broker.testing.campaign.context import Context

KEY_COUNT: Final = 6


async def create_topic(
    client: Client, name: str, partition_count: int, configs: Mapping[str, str], *, replication_factor: int = 1
) -> None:
    """Create a topic.

    Raises:
        UnreachableError: No response came.
        RefusedError: It was not created.
    """
    topic = CreatableTopic(
        name=name,
        num_partitions=partition_count,
        replication_factor=replication_factor,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
    )
    response = await client.ask(ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
    accept(response.topics[0].error_code, f"CreateTopics of {name}")


async def topic_names(client: Client) -> set[str]:
    """Return the topics that the metadata lists.

    Raises:
        UnreachableError: No response came.
    """
    response = await client.ask(ApiKey.METADATA, 8, MetadataRequest(topics=None, allow_auto_topic_creation=False))
    return {topic.name for topic in response.topics if not topic.error_code}


class _Sequential:
    """An idempotent producer with one batch in flight, which it sends until it is acknowledged."""

    def __init__(self, context: Context, client: Client, topic: str) -> None:
        self._context: Final = context
        self._client: Final = client
        self._topic: Final = topic
        self._identity = (-1, -1)
        self._sequences: Final[dict[int, int]] = {}

    async def produce(self, partition: int, key: bytes | None, value: bytes | None) -> int:
        """Write one record and return its offset; -1 if the broker has it and has forgotten where."""
        if self._identity[0] < 0:
            self._identity = await new_producer_id(self._context, self._client)
        sequence = self._sequences.get(partition, 0)
        batch = build_batch(
            records_of(self._context, [value], key),
            producer_id=self._identity[0],
            producer_epoch=self._identity[1],
            base_sequence=sequence,
        )
        while True:
            try:
                response = await self._client.ask(ApiKey.PRODUCE, 9, produce_request(self._topic, partition, batch))
                offset = base_offset_of(response, f"Produce to {self._topic}")
            except RefusedError as error:
                if error.code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                    offset = -1
                else:
                    failed(self._context, error)
                    await self._context.back_off()
                    continue
            except UnreachableError:
                await self._context.back_off()
                continue
            self._sequences[partition] = sequence + 1
            if offset >= 0:
                self._context.recorder.ack(self._topic, partition, offset)
            return offset


class TableWriter:
    """Writes values and tombstones to keys of its own in the compacted topic."""

    def __init__(self, context: Context) -> None:
        self._context: Final = context
        self._producer: Final = _Sequential(context, context.client(), TABLE)

    async def run(self) -> None:
        """Write until the campaign stops."""
        context = self._context
        while not context.stop.is_set:
            op = draw_key_op(context)
            value = encode_value(op)
            offset = await self._producer.produce(partition_of(context, op.key), op.key.encode(), value)
            op.outcome = "ok"
            op.offset = offset if offset >= 0 else None
            context.succeeded()
            await context.pause()


def draw_key_op(context: Context, transaction: int | None = None) -> KeyOp:
    """Decide about the next write to the compacted topic, and note it."""
    key = f"{context.name}/{context.rng.randrange(KEY_COUNT)}"
    value = None if context.rng.random() < 0.25 else next(context.recorder.values)
    op = KeyOp(key=key, value=value, transaction=transaction)
    context.recorder.key_ops.append(op)
    return op


def encode_value(op: KeyOp) -> bytes | None:
    """Return the bytes of a value.

    A few of them fill a segment, so that compaction has work; their lengths differ, so that it joins segments.
    """
    return None if op.value is None else b"%0*d" % (20 + op.value % 4 * 50, op.value)


def partition_of(context: Context, key: str) -> int:
    """Return the partition of a key."""
    return sum(key.encode()) % context.partition_count


class TransactionalTableWriter:
    """Writes to keys of its own in the compacted topic in transactions, and aborts a third of them."""

    def __init__(self, context: Context) -> None:
        self._context: Final = context
        self._session: Final = TransactionalSession(context, context.client(), context.name, context.rng.random() < 0.5)

    async def run(self) -> None:
        """Write until the campaign stops."""
        context, session = self._context, self._session
        await session.init()
        while not context.stop.is_set:
            transaction = context.recorder.begin(TABLE, session.producer_id)
            try:
                for _ in range(context.rng.randint(1, 3)):
                    op = draw_key_op(context, transaction.number)
                    records = records_of(context, [encode_value(op)], op.key.encode())
                    op.offset = await session.produce(TABLE, partition_of(context, op.key), records)
                    op.outcome = "ok"
                if context.rng.random() < 0.25:  # others fill segments behind it, and compaction must leave them alone
                    await asyncio.sleep(context.rng.uniform(1, 3))
                if context.rng.random() < 1 / 3:
                    await session.end(is_commit=False)
                else:
                    transaction.outcome = "unknown"
                    await session.end(is_commit=True)
                    transaction.outcome = "ok"
                    context.succeeded()
            except (UnreachableError, RefusedError) as error:
                if not may_be_refused(error):
                    failed(context, error)
                await session.init()
            await context.pause()
        await session.init()


class Trimmer:
    """Writes to a topic and deletes records from its front; retention by size deletes there, too."""

    def __init__(self, context: Context) -> None:
        self._context: Final = context
        self._client: Final = context.client()
        self._producer: Final = _Sequential(context, self._client, TRIMMED)

    async def run(self) -> None:
        """Write and delete until the campaign stops."""
        context = self._context
        while not context.stop.is_set:
            partition = context.rng.randrange(context.partition_count)
            op = TrimmedOp(partition=partition, value=next(context.recorder.values))
            context.recorder.trimmed.append(op)
            offset = await self._producer.produce(partition, None, b"%0200d" % op.value)
            op.offset = offset if offset >= 0 else None
            try:
                if context.rng.random() < 0.15:
                    await self._delete(partition)
                if context.rng.random() < 0.3:
                    await self._look(partition)
            except (UnreachableError, RefusedError) as error:
                failed(context, error, ErrorCode.OFFSET_OUT_OF_RANGE)
                await context.back_off()
            context.succeeded()
            await context.pause()

    async def _delete(self, partition: int) -> None:
        context = self._context
        end = (await list_offsets(self._client, TRIMMED, [partition], [LATEST]))[partition, LATEST]
        before = context.rng.randint(max(end - 6, 0), end)
        context.recorder.asked_deletions.append((partition, before))
        request = DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(
                    name=TRIMMED, partitions=[DeleteRecordsPartition(partition_index=partition, offset=before)]
                )
            ],
            timeout_ms=5_000,
        )
        response = await self._client.ask(ApiKey.DELETE_RECORDS, 1, request)
        accept(response.topics[0].partitions[0].error_code, "DeleteRecords")
        context.recorder.deleted.append(
            Deleted(place=(TRIMMED, partition), offset=before, answered_at=context.recorder.event())
        )
        context.recorder.note("records deleted")

    async def _look(self, partition: int) -> None:
        """Fetch at the end: the response says where the partition begins."""
        end = (await list_offsets(self._client, TRIMMED, [partition], [LATEST]))[partition, LATEST]
        reader = TopicReader(self._context, self._client, TRIMMED, is_committed=False)
        reader.positions[partition] = end
        await reader.poll(max_wait_ms=0)


class TopicMaker:
    """Creates a topic, writes to it, deletes it and creates it again: nothing of its former life may be there."""

    def __init__(self, context: Context) -> None:
        self._context: Final = context
        self._client: Final = context.client()
        self._watcher: Final = context.client()
        self._listed = ""  # the topic that the metadata has listed, and that nobody has deleted since
        self._is_certain = True

    async def run(self) -> None:
        """Create and delete until the campaign stops."""
        context = self._context
        number = 0
        while not context.stop.is_set:
            if not self._is_certain:
                number += 2  # a request without a response may still arrive, and would surprise the next life
                self._is_certain = True
            name = f"{context.name}-{context.life}-{number // 2}"  # each name twice
            number += 1
            if not await self._settle(name, is_there=True):
                continue
            written = []
            client = _Sequential(context, self._client, name)
            for _ in range(context.rng.randint(1, 3)):
                written.append(next(context.recorder.values))
                await client.produce(0, None, b"%d" % written[-1])
            await self._read_back(name, written, identity=f"{name}, number {number}")
            if not await self._settle(name, is_there=False):
                continue
            context.succeeded()
            await context.pause()

    async def _settle(self, name: str, *, is_there: bool) -> bool:
        """Create or delete a topic, and see that the metadata agrees; False when the campaign stops before."""
        context = self._context
        is_done = False
        while not context.stop.is_set:
            try:
                if is_there:
                    await self._create(name)
                else:
                    self._listed = ""
                    request = DeleteTopicsRequest(topic_names=[name], timeout_ms=10_000)
                    response = await self._client.ask(ApiKey.DELETE_TOPICS, 4, request)
                    accept(response.responses[0].error_code, "DeleteTopics")
                is_done = True
            except (UnreachableError, RefusedError) as error:
                failed(context, error, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                self._is_certain &= isinstance(error, RefusedError)
                code = error.code if isinstance(error, RefusedError) else ErrorCode.NONE
                is_done |= code is ErrorCode.TOPIC_ALREADY_EXISTS and is_there
                is_done |= code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not is_there
            if is_done:
                try:
                    names = await topic_names(self._client)
                except UnreachableError:
                    await context.back_off()
                    continue
                if (name in names) != is_there and self._is_certain:
                    state = "created" if is_there else "deleted"
                    context.recorder.fail(f"{name} was {state}; the metadata lists {sorted(names)}")
                context.recorder.note("topic created" if is_there else "topic deleted")
                return True
            await context.back_off()
        return False

    async def _create(self, name: str) -> None:
        """Create a topic, and look at the metadata meanwhile: a topic that they list has to last."""
        creating = asyncio.ensure_future(create_topic(self._client, name, 1, {}))
        try:
            was_listed = self._listed == name
            while not creating.done():
                await asyncio.wait([creating], timeout=0.02)
                if name in await topic_names(self._watcher):
                    self._listed = name
        except UnreachableError:
            self._watcher.close()
        finally:
            await asyncio.wait([creating])
        await creating
        if was_listed:
            self._context.recorder.fail(f"{name} was listed, and then created once more")

    async def _read_back(self, name: str, written: list[int], *, identity: str) -> None:
        context = self._context
        reader = TopicReader(context, self._client, name, is_committed=True, identity=identity)
        reader.positions[0] = 0
        found: list[int] = []
        while len(found) < len(written) and not context.stop.is_set:
            try:
                found += [int(record.value or b"-1") for record in await reader.poll()]
            except (UnreachableError, RefusedError) as error:
                failed(context, error)
                await context.back_off()
            await asyncio.sleep(0.01)
        if found and found != written[: len(found)]:
            context.recorder.fail(f"{name} has {found}, where {written} was written")
