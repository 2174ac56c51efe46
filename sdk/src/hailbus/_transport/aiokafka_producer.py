"""The producer over aiokafka."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Mapping, Sequence

import aiokafka
from aiokafka import errors as kafka_errors

from hailbus._transport import (
    Outgoing,
    TopicPartition,
    aiokafka_private,
    all_or_raise,
    partitions_unknown,
    record_bytes,
)
from hailbus._transport.aiokafka_client import connected, connection, translated
from hailbus._transport.cluster import RETRY_BACKOFF_S, ClusterSettings
from hailbus._transport.reachability import Reachability
from hailbus._transport.repeated_lines import aiokafka_lines
from hailbus.errors import DeliveryError, ProducerFencedError, RecordTooLargeError, TopicMissingError

__all__ = ["AiokafkaProducer"]

log = logging.getLogger("hailbus.transport")

# After these the client library's sequence numbers and the broker's no longer meet (a broker that lost producer state,
# an expired producer id): only a new producer id can continue. The batch is sent again with the same event ids.
LOST_PRODUCER = (
    kafka_errors.OutOfOrderSequenceNumber,
    kafka_errors.UnknownProducerId,
    kafka_errors.InvalidProducerIdMapping,
    kafka_errors.InvalidProducerEpoch,
    kafka_errors.ProducerFenced,
    kafka_errors.ProducerClosed,
)
# The broker refuses a whole batch although only one of its records may be at fault.
BAD_RECORD = (
    kafka_errors.MessageSizeTooLargeError,
    kafka_errors.RecordListTooLargeError,
    kafka_errors.InvalidTimestampError,
)
BESIDE_THE_VALUE_BYTES = 65_536
"""Key, headers and framing of any sensible record: only a value that comes so close to the limit is measured."""


class AiokafkaProducer:
    """A producer that replaces its client when that client has failed for good."""

    def __init__(self, settings: ClusterSettings, *, client_id: str, transactional_id: str | None) -> None:
        self.retried_count = 0
        self._settings = settings
        self._client_id = client_id
        self._transactional_id = transactional_id
        self._started: aiokafka.AIOKafkaProducer | None = None
        self._replacing = asyncio.Lock()
        self._stopped = False
        self._counts: dict[str, int] = {}
        self._reachability = Reachability(on_return=aiokafka_lines.reached)
        self._sending = 0

    def _make(self) -> aiokafka.AIOKafkaProducer:
        settings = self._settings
        return aiokafka.AIOKafkaProducer(
            **connection(settings, self._client_id),
            acks=settings.acks,
            enable_idempotence=settings.idempotent or self._transactional_id is not None,
            transactional_id=self._transactional_id,
            compression_type=None if settings.compression == "none" else settings.compression,
            linger_ms=settings.linger_ms,
            max_batch_size=settings.max_batch_bytes,
            max_request_size=settings.max_record_bytes,
        )

    @property
    def _client(self) -> aiokafka.AIOKafkaProducer:
        assert self._started is not None, "the producer has not been started"
        return self._started

    async def start(self) -> None:
        client = await connected(
            self._settings, self._make, aiokafka.AIOKafkaProducer.start, aiokafka.AIOKafkaProducer.stop
        )
        self._started = client

    async def stop(self) -> None:
        self._stopped = True
        if self._started is not None:
            await self._close(self._started)

    async def _close(self, client: aiokafka.AIOKafkaProducer) -> None:
        try:
            async with asyncio.timeout(5.0):
                await client.stop()
        except TimeoutError:
            log.warning("producer_stop_timed_out: unsent records of %s were dropped", self._client_id)
            await aiokafka_private.close_producer(client)
        except (kafka_errors.KafkaError, asyncio.InvalidStateError) as error:
            log.warning("producer_stop_failed: %r", error)

    async def _replace(self, broken: aiokafka.AIOKafkaProducer) -> None:
        async with self._replacing:
            if self._started is not broken or self._stopped:
                return
            log.warning("producer_replaced: %s gets a new producer id", self._client_id)
            fresh = self._make()
            try:
                await fresh.start()
            except BaseException:
                await self._close(fresh)
                raise
            self._started = fresh
        await self._close(broken)

    @property
    def unreachable_since_s(self) -> float | None:
        client = self._started
        if client is None or self._stopped:
            return None
        now_s = asyncio.get_running_loop().time()
        if aiokafka_private.is_connected(client):
            return self._reachability.observe(is_connected=True, now_s=now_s)
        # An idle producer has no connection until its first send, which says nothing about the broker.
        if self._sending or aiokafka_private.has_connections(client):
            return self._reachability.observe(is_connected=False, now_s=now_s)
        return self._reachability.since_s

    def known_partition_count(self, topic: str) -> int | None:
        return self._counts.get(topic)

    async def partition_count(self, topic: str) -> int:
        client = self._client
        answered_ms = aiokafka_private.metadata_answered_ms(client)
        self._sending += 1
        try:
            partitions = await client.partitions_for(topic)
        except kafka_errors.UnknownTopicOrPartitionError as error:
            if aiokafka_private.metadata_answered_ms(client) == answered_ms:  # nobody has said so
                raise partitions_unknown(topic) from error
            raise TopicMissingError(topic=topic) from error
        except kafka_errors.KafkaError as error:
            raise translated(error, topic, None) from error
        finally:
            self._sending -= 1
        self._counts[topic] = len(partitions)
        return len(partitions)

    async def send(self, topic: str, partition: int, records: Sequence[Outgoing]) -> Sequence[int]:
        return all_or_raise(await self.send_each(topic, partition, records))

    async def send_each(self, topic: str, partition: int, records: Sequence[Outgoing]) -> Sequence[int | DeliveryError]:
        self._sending += 1
        try:
            return await self._send_each(topic, partition, records)
        finally:
            self._sending -= 1

    async def _send_each(
        self, topic: str, partition: int, records: Sequence[Outgoing]
    ) -> Sequence[int | DeliveryError]:
        outcomes: list[int | DeliveryError] = []
        limit = self._settings.max_record_bytes
        most = len(records)  # in one batch; fewer while a record that the broker refuses is being found
        while len(outcomes) < len(records):
            start = end = len(outcomes)
            client = self._client
            builder = client.create_batch()
            now_ms = time.time_ns() // 1_000_000
            while end < len(records) and end - start < most:
                key, value, headers = records[end]
                if value is not None and len(value) > limit - BESIDE_THE_VALUE_BYTES:
                    size = record_bytes(records[end])
                    if size > limit:
                        if end == start:
                            outcomes.append(RecordTooLargeError(topic=topic, size_bytes=size, limit_bytes=limit))
                        break  # what came before it goes first
                if builder.append(timestamp=now_ms, key=key, value=value, headers=headers) is None:
                    break
                end += 1
            if end == start:
                continue
            builder.close()
            count = end - start
            try:
                metadata = await (await client.send_batch(builder, topic, partition=partition))
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 the client library raises bare KafkaError and AssertionError too
                if isinstance(error, BAD_RECORD):
                    if self._transactional_id is not None:  # others are replaced when the next batch is out of order
                        aiokafka_private.return_sequence_numbers(client, topic, partition, count)
                    if count > 1:
                        most = (count + 1) // 2
                    else:
                        outcomes.append(RecordTooLargeError(topic=topic, size_bytes=record_bytes(records[start])))
                        most = len(records)
                    continue
                failure = await self._recovered(client, error, topic, partition, count=count)
                if failure is not None:
                    outcomes += [failure] * (len(records) - start)
                continue
            base = metadata.offset if metadata is not None else -1
            outcomes.extend(range(base, base + count) if base >= 0 else [-1] * count)
        return outcomes

    async def _recovered(
        self, client: aiokafka.AIOKafkaProducer, error: Exception, topic: str, partition: int, *, count: int
    ) -> DeliveryError | None:
        """Make the next attempt possible, or return what the caller must know.

        Raises:
            ProducerFencedError: Another producer has taken over the transactional id.
        """
        if self._transactional_id is not None:
            if isinstance(error, (kafka_errors.ProducerFenced, kafka_errors.InvalidProducerEpoch)):
                raise ProducerFencedError(transactional_id=self._transactional_id) from error
            return _caused(error, topic, partition)
        if self._stopped:
            return _caused(error, topic, partition)
        if isinstance(error, LOST_PRODUCER) or aiokafka_private.sender_ended(client):
            log.warning("producer_lost: %r on %s-%d", error, topic, partition)
            try:
                await self._replace(client)
            except (kafka_errors.KafkaError, OSError) as failure:
                log.warning("producer_replacement_failed: %r", failure)
                await asyncio.sleep(1.0)
            self.retried_count += 1
            return None
        if isinstance(error, (kafka_errors.KafkaTimeoutError, kafka_errors.UnknownTopicOrPartitionError)) or getattr(
            error, "retriable", False
        ):
            log.warning("produce_retried: %r on %s-%d, %d records", error, topic, partition, count)
            await asyncio.sleep(RETRY_BACKOFF_S)
            self.retried_count += 1
            return None
        return _caused(error, topic, partition)

    async def begin(self) -> None:
        await self._in_transaction(self._client.begin_transaction())

    async def send_offsets(self, offsets: Mapping[TopicPartition, int], group: str) -> None:
        await self._in_transaction(
            self._client.send_offsets_to_transaction(
                {aiokafka.TopicPartition(*tp): offset for tp, offset in offsets.items()}, group
            )
        )

    async def commit(self) -> None:
        await self._in_transaction(self._client.commit_transaction())

    async def abort(self) -> None:
        await self._in_transaction(self._client.abort_transaction())

    async def _in_transaction(self, step: Awaitable[None]) -> None:
        try:
            await step
        except (kafka_errors.ProducerFenced, kafka_errors.InvalidProducerEpoch) as error:
            raise ProducerFencedError(transactional_id=self._transactional_id or "") from error
        except (kafka_errors.KafkaError, AssertionError) as error:  # the latter: a commit on its way cannot be aborted
            raise translated(error, "", None) from error


def _caused(error: Exception, topic: str, partition: int) -> DeliveryError:
    found = translated(error, topic, partition)
    found.__cause__ = error
    return found
