"""The producer over librdkafka.

Records are handed to librdkafka one by one, with headers and a delivery callback each: its batch calls drop headers.
The callbacks run in `poll`, which the event loop calls while records are in flight. A thread that polls would have to
take the interpreter's lock from the busy event loop for each record.

librdkafka's idempotent producer keeps a core busy while records wait behind a batch of their partition that is in
flight. So no more records are handed over at once than fit into one batch, and librdkafka waits a millisecond for them.
A few records do not wait: a thread flushes them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as LibraryTopicPartition

from hailbus._transport import Outgoing, TopicPartition, all_or_raise, partitions_unknown, record_bytes
from hailbus._transport.aiokafka_client import tls_context
from hailbus._transport.cluster import RETRY_BACKOFF_S, ClusterSettings
from hailbus._transport.librdkafka_client import (
    Config,
    Connection,
    connect,
    in_thread,
    kafka_error,
    partition_counts,
    translated,
)
from hailbus.errors import DeliveryError, ProducerFencedError, RecordTooLargeError, TopicMissingError

__all__ = ["LibrdkafkaProducer"]

log = logging.getLogger("hailbus.transport")
FILL_MS = 1
"""How long librdkafka waits for a batch to fill, where nothing else is wanted."""
FEW_RECORDS = 50
FLUSH_S = 0.005
BATCH_SHARE = 0.75
"""Of a batch's bytes, so that an estimate that is too low does not begin a second batch."""
AROUND_VALUE_BYTES = 256
"""Key, headers and framing of a usual record."""
POLL_MIN_S = 0.001
POLL_MAX_S = 0.02
POLL_IDLE_S = 1.0
MESSAGE_TIMEOUT_MS = 120_000
TOPIC_APPEARS_S = 5.0
TRANSACTION_STEP_S = 30.0
STOP_TIMEOUT_S = 5.0
QUEUED_RECORDS = 200_000
QUEUED_KBYTES = 262_144
FRAMING_BYTES = 65_536
BESIDE_THE_VALUE_BYTES = 65_536
"""Key, headers and framing of any sensible record: only a value that comes so close to the limit is measured."""

_Callback = Callable[["KafkaError | None", "Message[bytes, bytes]"], None]

FENCED = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
    }
)
TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
PASSING = frozenset(
    {
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)


class _Sending:
    """Records of one batch that are in flight: what became of each.

    It is used again for another batch once all of them are decided: making a callback costs as much as calling it.
    """

    __slots__ = ("_callbacks", "_done", "has_errors", "left", "outcomes")

    def __init__(self) -> None:
        self.left = 0
        self.has_errors = False
        self.outcomes: list[int | KafkaError] = []
        self._callbacks: list[_Callback] = []
        self._done: asyncio.Future[None]

    def begin(self, count: int, loop: asyncio.AbstractEventLoop) -> Sequence[_Callback]:
        """Expect so many delivery reports; what librdkafka is to call with the one of each record."""
        self.left = count
        self.has_errors = False
        self.outcomes = [-1] * count
        self._done = loop.create_future()
        callbacks = self._callbacks
        callbacks += [partial(self._delivered, index) for index in range(len(callbacks), count)]
        return callbacks

    def _delivered(self, index: int, error: KafkaError | None, message: Message[bytes, bytes]) -> None:
        """Take a delivery report from librdkafka."""
        done = self._done  # now, as the event loop may begin another batch as soon as nothing is left
        if error is None:
            offset = message.offset()
            self.outcomes[index] = offset if offset is not None and offset >= 0 else -1  # unknown with acks=0
        else:
            self.outcomes[index] = error
            self.has_errors = True
        self.left -= 1
        if not self.left:
            # A flush or the end of a transaction polls in a thread of its own.
            done.get_loop().call_soon_threadsafe(_finish, done)

    def refused(self, index: int, error: KafkaError) -> None:
        """Note that librdkafka has not taken a record."""
        self.outcomes[index] = error
        self.has_errors = True
        self.left -= 1
        if not self.left:
            _finish(self._done)

    def cut(self, count: int) -> None:
        """Note that only the first records are in flight."""
        self.left -= len(self.outcomes) - count
        del self.outcomes[count:]
        if not self.left:
            _finish(self._done)

    async def decided(self) -> None:
        """Wait until every record is delivered or refused."""
        await self._done


def _finish(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


class LibrdkafkaProducer:
    """A producer that replaces its client when that client has failed for good."""

    def __init__(self, settings: ClusterSettings, *, client_id: str, transactional_id: str | None) -> None:
        self.retried_count = 0
        self._settings = settings
        self._client_id = client_id
        self._transactional_id = transactional_id
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connection: Connection | None = None
        self._started: Producer | None = None
        self._replacing = asyncio.Lock()
        self._stopping = threading.Event()
        self._counts: dict[str, int] = {}
        self._metadata_of: dict[str, object] = {}
        self._in_flight = 0
        self._poll_s = POLL_MIN_S
        self._timer: asyncio.TimerHandle | None = None
        self._has_transaction = False
        self._flush_wanted = threading.Event()
        self._idle: list[_Sending] = []
        """Those without records in flight."""

    # ---------------------------------------------------------------------------------------- life

    def _config(self, connection: Connection) -> Config:
        settings = self._settings
        config = connection.config() | {
            "acks": settings.acks,
            "enable.idempotence": settings.idempotent or self._transactional_id is not None,
            "compression.type": settings.compression,
            "linger.ms": settings.linger_ms or FILL_MS,
            "batch.size": settings.max_batch_bytes,
            # The limit of one record is checked before; this one is of requests, with everything around the records.
            "message.max.bytes": max(settings.max_record_bytes, settings.max_batch_bytes) + FRAMING_BYTES,
            "queue.buffering.max.messages": QUEUED_RECORDS,
            "queue.buffering.max.kbytes": QUEUED_KBYTES,
            "topic.metadata.refresh.interval.ms": 60_000,
        }
        if self._transactional_id is not None:
            config["transactional.id"] = self._transactional_id
        else:
            config["message.timeout.ms"] = MESSAGE_TIMEOUT_MS
            if not settings.idempotent:
                config["max.in.flight.requests.per.connection"] = 1  # or a retry would overtake
        return config

    @property
    def _client(self) -> Producer:
        assert self._started is not None, "the producer has not been started"
        return self._started

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = Connection(self._settings, self._client_id, self._loop)
        tls_context(self._settings)  # names a file that cannot be used, in terms of our settings
        client = Producer(self._config(self._connection))
        try:
            connection = self._connection
            self._counts = await connect(self._settings, connection, client, self._stopping)
            if self._transactional_id is not None:
                await self._in_transaction(lambda: client.init_transactions(TRANSACTION_STEP_S))
        except BaseException:
            self._stopping.set()
            raise
        self._started = client
        self._serve()
        if not self._settings.linger_ms:
            threading.Thread(target=self._flush, name=f"hailbus-flush-{self._client_id}", daemon=True).start()

    def _flush(self) -> None:
        """In a thread: send what waits for company, whenever that is wanted."""
        while not self._stopping.is_set():
            self._flush_wanted.wait()
            self._flush_wanted.clear()
            if not self._stopping.is_set():
                try:
                    self._client.flush(FLUSH_S)
                except KafkaException as error:
                    log.debug("flush_failed: %s", error)  # fatal: the delivery reports say so

    async def stop(self) -> None:
        self._stopping.set()
        self._flush_wanted.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        client = self._started
        if client is None:
            return

        def close() -> int:
            if self._has_transaction:
                try:
                    client.abort_transaction(STOP_TIMEOUT_S)
                except KafkaException as error:
                    log.info("transaction_left_open: %s: %s", self._transactional_id, error)
            try:
                return client.flush(STOP_TIMEOUT_S)
            except KafkaException as error:  # fenced: nothing of it will be written any more
                log.info("producer_stop_failed: %s: %s", self._client_id, error)
                return 0

        left = await in_thread(close)
        if left:
            log.warning("producer_stop_timed_out: %d unsent records of %s were dropped", left, self._client_id)
            client.purge()
            client.poll(0)
        self._has_transaction = False

    async def _replace(self, broken: Producer) -> None:
        async with self._replacing:
            if self._started is not broken or self._stopping.is_set():
                return
            log.warning("producer_replaced: %s gets a new producer id", self._client_id)
            assert self._connection is not None
            self._started = Producer(self._config(self._connection))
        broken.purge()
        broken.poll(0)  # the records that were purged are decided

    @property
    def unreachable_since_s(self) -> float | None:
        return self._connection.reachability.since_s if self._connection is not None else None

    # ---------------------------------------------------------------------------------------- callbacks

    def _serve(self) -> None:
        """Call the callbacks that are due, and come again: soon while records are in flight."""
        assert self._loop is not None
        if self._stopping.is_set() or self._started is None:
            return
        if self._started.poll(0):
            self._poll_s = POLL_MIN_S
        elif self._in_flight:
            self._poll_s = min(self._poll_s * 1.5, POLL_MAX_S)
        self._timer = self._loop.call_later(self._poll_s if self._in_flight else POLL_IDLE_S, self._serve)

    def _serve_soon(self) -> None:
        assert self._loop is not None
        self._poll_s = POLL_MIN_S
        if self._timer is None or self._timer.when() > self._loop.time() + POLL_MIN_S:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(POLL_MIN_S, self._serve)

    # ---------------------------------------------------------------------------------------- topics

    def known_partition_count(self, topic: str) -> int | None:
        return self._counts.get(topic)

    async def partition_count(self, topic: str) -> int:
        loop = asyncio.get_running_loop()
        client = self._client
        deadline_s = loop.time() + TOPIC_APPEARS_S
        while True:
            try:
                self._counts |= await in_thread(lambda: partition_counts(client))
            except KafkaException as error:
                if topic not in self._counts and loop.time() >= deadline_s:
                    if kafka_error(error).code() in PASSING:
                        raise partitions_unknown(topic) from error
                    raise translated(kafka_error(error), topic, None) from error
            if topic in self._counts:
                return self._counts[topic]
            if loop.time() >= deadline_s:
                raise TopicMissingError(topic=topic)
            await asyncio.sleep(RETRY_BACKOFF_S)

    # ---------------------------------------------------------------------------------------- sending

    async def send(self, topic: str, partition: int, records: Sequence[Outgoing]) -> Sequence[int]:
        return all_or_raise(await self.send_each(topic, partition, records))

    async def send_each(self, topic: str, partition: int, records: Sequence[Outgoing]) -> Sequence[int | DeliveryError]:
        limit = self._settings.max_record_bytes
        near = limit - BESIDE_THE_VALUE_BYTES
        refused: dict[int, DeliveryError] = {}
        for index, record in enumerate(records):
            if record[1] is not None and len(record[1]) > near and (size := record_bytes(record)) > limit:
                refused[index] = RecordTooLargeError(topic=topic, size_bytes=size, limit_bytes=limit)
        if not refused:
            return await self._send_each(topic, partition, records)
        sent = iter(
            await self._send_each(
                topic, partition, [record for index, record in enumerate(records) if index not in refused]
            )
        )
        return [refused[index] if index in refused else next(sent) for index in range(len(records))]

    async def _send_each(
        self, topic: str, partition: int, records: Sequence[Outgoing]
    ) -> Sequence[int | DeliveryError]:
        client = self._client
        found, has_errors = await self._flown(client, topic, partition, records)
        if not has_errors:
            return cast("list[int]", found)
        outcomes: list[int | DeliveryError] = []
        again: list[int] = []
        too_large: list[int] = []
        for index, outcome in enumerate(found):
            if isinstance(outcome, int):
                outcomes.append(outcome)
                continue
            failure = self._decided(outcome, topic, partition, records[index])
            if isinstance(failure, RecordTooLargeError):
                too_large.append(index)
            elif failure is None:
                again.append(index)
            outcomes.append(failure if failure is not None else -1)
        if too_large and len(records) > 1:
            # The broker refuses a whole batch although only one of its records may be at fault.
            middle = (len(too_large) + 1) // 2
            for part in (too_large[:middle], too_large[middle:]):
                repeated = await self._send_each(topic, partition, [records[index] for index in part])
                for index, decided in zip(part, repeated, strict=True):
                    outcomes[index] = decided
        if again:
            error = found[again[0]]
            assert isinstance(error, KafkaError)
            self.retried_count += 1
            log.warning("produce_retried: %s on %s-%d, %d records", error.str(), topic, partition, len(again))
            if error.fatal() or error.code() == KafkaError._PURGE_QUEUE:
                await self._replace(client)
            await asyncio.sleep(RETRY_BACKOFF_S)
            repeated = await self._send_each(topic, partition, [records[index] for index in again])
            for index, decided in zip(again, repeated, strict=True):
                outcomes[index] = decided
        return outcomes

    async def _flown(
        self, client: Producer, topic: str, partition: int, records: Sequence[Outgoing]
    ) -> tuple[Sequence[int | KafkaError], bool]:
        """Hand records to librdkafka a batch at a time; the delivery report of each, and whether one is an error."""
        assert self._loop is not None
        most_bytes = int(BATCH_SHARE * self._settings.max_batch_bytes)
        produce = client.produce
        outcomes: list[int | KafkaError] = []
        has_errors = False
        self._in_flight += 1
        try:
            while len(outcomes) < len(records):
                start, left_bytes = len(outcomes), most_bytes
                sending = self._idle.pop() if self._idle else _Sending()
                callbacks = sending.begin(len(records) - start, self._loop)
                for index in range(start, len(records)):
                    key, value, headers = records[index]
                    left_bytes -= AROUND_VALUE_BYTES + (len(value) if value is not None else 0)
                    if left_bytes < 0 and index > start:
                        sending.cut(index - start)
                        break
                    pairs = headers if type(headers) is list else list(headers)
                    while True:
                        try:
                            produce(topic, value, key, partition, callbacks[index - start], headers=pairs)
                        except BufferError:  # most often, records of a broker that is away
                            client.poll(0)
                            await asyncio.sleep(POLL_MIN_S)
                        except KafkaException as error:
                            sending.refused(index - start, kafka_error(error))
                            break
                        else:
                            break
                if sending.left <= FEW_RECORDS:
                    self._flush_wanted.set()
                self._serve_soon()
                await sending.decided()
                outcomes += sending.outcomes
                has_errors = has_errors or sending.has_errors
                self._idle.append(sending)  # not when this call is cancelled: reports are still to come then
        finally:
            self._in_flight -= 1
        return outcomes, has_errors

    def _decided(self, error: KafkaError, topic: str, partition: int, record: Outgoing) -> DeliveryError | None:
        """What the caller must know; None when the record is to be sent again.

        Raises:
            ProducerFencedError: Another producer has taken over the transactional id.
        """
        code = error.code()
        if code in TOO_LARGE:
            return RecordTooLargeError(topic=topic, size_bytes=record_bytes(record))
        if self._transactional_id is not None:
            if code in FENCED:
                raise ProducerFencedError(transactional_id=self._transactional_id)
            return translated(error, topic, partition)
        if self._stopping.is_set():
            return translated(error, topic, partition)
        is_lost = error.fatal() or code in {KafkaError._FATAL, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}
        return None if is_lost or code in PASSING or error.retriable() else translated(error, topic, partition)

    # ---------------------------------------------------------------------------------------- transactions

    async def begin(self) -> None:
        try:
            self._client.begin_transaction()
        except KafkaException as error:
            raise self._transaction_error(kafka_error(error)) from error
        self._has_transaction = True

    async def send_offsets(self, offsets: Mapping[TopicPartition, int], group: str) -> None:
        client = self._client
        metadata = await self._group_metadata(group)
        places = [LibraryTopicPartition(tp.topic, tp.partition, offset) for tp, offset in offsets.items()]
        await self._in_transaction(lambda: client.send_offsets_to_transaction(places, metadata, TRANSACTION_STEP_S))

    async def commit(self) -> None:
        client = self._client
        await self._in_transaction(lambda: client.commit_transaction(TRANSACTION_STEP_S))
        self._has_transaction = False

    async def abort(self) -> None:
        client = self._client
        await self._in_transaction(lambda: client.abort_transaction(TRANSACTION_STEP_S))
        self._has_transaction = False

    async def _in_transaction(self, step: Callable[[], None]) -> None:
        while True:
            try:
                await in_thread(step)
            except KafkaException as error:
                found = kafka_error(error)
                if found.retriable() and not found.txn_requires_abort() and not self._stopping.is_set():
                    await asyncio.sleep(RETRY_BACKOFF_S)
                    continue
                raise self._transaction_error(found) from error
            else:
                return

    def _transaction_error(self, error: KafkaError) -> DeliveryError:
        if error.code() in FENCED:
            return ProducerFencedError(transactional_id=self._transactional_id or "")
        return translated(error, "", None)

    async def _group_metadata(self, group: str) -> object:
        """A group's id in librdkafka's form, which only a consumer can make; this one never joins."""
        if group not in self._metadata_of:
            assert self._connection is not None
            config = {
                name: value
                for name, value in self._connection.config().items()
                if name not in {"error_cb", "stats_cb", "statistics.interval.ms"}
            }

            def ask() -> object:
                consumer = Consumer(config | {"group.id": group})
                try:
                    found: object = consumer.consumer_group_metadata()
                    return found
                finally:
                    consumer.close()

            self._metadata_of[group] = await in_thread(ask)
        return self._metadata_of[group]
