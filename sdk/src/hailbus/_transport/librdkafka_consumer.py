"""The consumer over librdkafka: one thread reads, and hands whole batches to the event loop.

All of librdkafka's callbacks run in that thread, inside its calls. A rebalance waits there until the listener has ended
on the event loop.

The thread hands over the library's messages as they are. The event loop reads their fields: most objects of a record,
its headers above all, are made then, and they stay in the cache of the core that handles the record.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as LibraryTopicPartition

from hailbus._transport import Received, TopicPartition, TransportBrokenError, cluster
from hailbus._transport.aiokafka_client import tls_context
from hailbus._transport.cluster import RETRY_BACKOFF_S, ClusterSettings, ConsumerOptions
from hailbus._transport.librdkafka_client import Config, Connection, connect, in_thread, kafka_error, partition_counts
from hailbus._transport.record import Record, new_record
from hailbus.errors import TopicMissingError

__all__ = ["LibrdkafkaConsumer"]

log = logging.getLogger("hailbus.transport")
T = TypeVar("T")
POLL_S = 0.05
"""How long the thread waits inside librdkafka; a commit or a seek waits at most so long for it."""
IDLE_S = 1.0
"""After so long without `poll`, the thread pauses the partitions and only answers rebalances."""
CALL_TIMEOUT_S = 10.0
SEEK_ATTEMPTS = 20
QUEUED_KBYTES = 16_384
EOF = KafkaError._PARTITION_EOF
Messages = Sequence["Message[bytes, bytes]"]
Read = dict[TopicPartition, list[Received]]
_Command = tuple[Callable[[], object], "Future[object]"]


class LibrdkafkaConsumer:
    """A group member, or without a group a reader of all partitions of its topics."""

    def __init__(self, settings: ClusterSettings, options: ConsumerOptions) -> None:
        self._settings = settings
        self._options = options
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connection: Connection | None = None
        self._started: Consumer | None = None
        self._ended: asyncio.Future[None] | None = None
        self._closing = threading.Event()
        # Of the event loop:
        self._waiting: Read = {}
        self._positions: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._leaving: frozenset[TopicPartition] = frozenset()
        self._seeking: set[TopicPartition] = set()
        self._arrived = asyncio.Event()
        self._failure: BaseException | None = None
        # Handed from one to the other, each written by one side only:
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._held: frozenset[TopicPartition] = frozenset()
        self._demand = False
        self._most = 1
        self._wake = threading.Event()
        self._commands: deque[_Command] = deque()
        self._closed = False
        # Of the thread:
        self._stopped_partitions: set[TopicPartition] = set()
        self._said: set[tuple[int, str, int]] = set()

    # ---------------------------------------------------------------------------------------- life

    def _config(self, connection: Connection) -> Config:
        settings, options = self._settings, self._options
        config = connection.config() | {
            # librdkafka wants a group even of those that only read.
            "group.id": options.group if options.group is not None else f"{options.client_id}-reads-alone",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": options.start,
            "isolation.level": "read_committed" if options.read_committed else "read_uncommitted",
            "partition.assignment.strategy": settings.assignor,
            "session.timeout.ms": settings.session_timeout_ms,
            "heartbeat.interval.ms": settings.heartbeat_interval_ms,
            # Also how long a rebalance waits for this member. The thread polls also while nobody asks for records.
            "max.poll.interval.ms": settings.rebalance_timeout_ms,
            "fetch.wait.max.ms": settings.fetch_max_wait_ms,
            "max.partition.fetch.bytes": settings.max_partition_fetch_bytes,
            "fetch.error.backoff.ms": int(RETRY_BACKOFF_S * 1_000),
            "fetch.queue.backoff.ms": 10,
            "queued.max.messages.kbytes": max(QUEUED_KBYTES, 2 * settings.max_partition_fetch_bytes // 1_024),
            "topic.metadata.refresh.interval.ms": 5_000,
            "allow.auto.create.topics": False,
            "check.crcs": True,
            # The only way to learn that nothing but transaction markers is left.
            "enable.partition.eof": options.group is None,
        }
        if options.group is not None and settings.group_instance_id is not None:
            config["group.instance.id"] = settings.group_instance_id
        return config

    @property
    def _client(self) -> Consumer:
        assert self._started is not None, "the consumer has not been started"
        return self._started

    async def start(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        connection = self._connection = Connection(self._settings, self._options.client_id, loop)
        tls_context(self._settings)  # names a file that cannot be used, in terms of our settings
        client = Consumer(self._config(connection))
        try:
            counts = await connect(self._settings, connection, client, self._closing)
            self._started = client  # the listener may use this consumer before `start` returns
            if self._options.group is None:
                await in_thread(lambda: self._assign_all(client, counts))
            else:
                client.subscribe(
                    list(self._options.topics),
                    on_assign=self._on_assign,
                    on_revoke=self._on_revoke,
                    on_lost=self._on_revoke,
                )
        except BaseException:
            self._closing.set()
            self._started = None
            threading.Thread(target=client.close, name="hailbus-librdkafka-close", daemon=True).start()
            raise
        self._ended = loop.create_future()
        threading.Thread(
            target=self._run, args=(client,), name=f"hailbus-read-{self._options.client_id}", daemon=True
        ).start()

    def _assign_all(self, client: Consumer, counts: Mapping[str, int]) -> None:
        """Take all partitions of the topics, from their starts or their ends. Blocks."""
        deadline_s = time.monotonic() + self._settings.connect_timeout_s
        while missing := [topic for topic in self._options.topics if not counts.get(topic)]:
            if time.monotonic() >= deadline_s or self._closing.is_set():
                raise TopicMissingError(topic=missing[0])
            time.sleep(RETRY_BACKOFF_S)
            try:
                counts = partition_counts(client)
            except KafkaException as error:
                log.debug("metadata_failed: %s", error)
        places = [
            LibraryTopicPartition(topic, partition, OFFSET_BEGINNING)
            for topic in self._options.topics
            for partition in range(counts[topic])
        ]
        if self._options.start == "latest":
            for place in places:  # known now, so that nothing that is written from here on is missed
                _, place.offset = client.get_watermark_offsets(place, timeout=CALL_TIMEOUT_S)
        self._assigned = frozenset(TopicPartition(place.topic, place.partition) for place in places)
        client.assign(places)

    async def stop(self) -> None:
        self._closing.set()
        self._wake.set()
        if self._ended is None:
            return
        done, _ = await asyncio.wait({self._ended}, timeout=cluster.STOP_TIMEOUT_S)
        if not done:
            log.warning(
                "consumer_stop_timed_out: the broker does not answer, %s is left alone", self._options.client_id
            )

    @property
    def unreachable_since_s(self) -> float | None:
        return self._connection.reachability.since_s if self._connection is not None else None

    # ---------------------------------------------------------------------------------------- the thread

    def _run(self, client: Consumer) -> None:
        failure: BaseException | None = None
        try:
            while not self._closing.is_set():
                is_asked = self._demand or self._wake.wait(IDLE_S)
                self._wake.clear()
                self._obey()
                if self._demand:
                    self._read(client)
                elif not is_asked:
                    self._only_answer(client)
        except BaseException as error:  # noqa: BLE001 passed to the event loop
            failure = error
        self._tell(self._broke, failure)
        try:
            client.close()
        except Exception as error:  # noqa: BLE001 it is given up anyway
            log.warning("consumer_stop_failed: %r", error)
        self._closed = True
        while self._commands:
            _, done = self._commands.popleft()
            if done.set_running_or_notify_cancel():
                done.set_exception(TransportBrokenError("the consumer has been stopped"))
        self._tell(self._end)

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # the loop has been closed
            self._closing.set()

    def _obey(self) -> None:
        """Carry out what the event loop wants done between two reads."""
        while self._commands:
            command, done = self._commands.popleft()
            if not done.set_running_or_notify_cancel():
                continue  # nobody waits for it any more
            try:
                result = command()
            except BaseException as error:  # noqa: BLE001 passed to the caller
                done.set_exception(error)
            else:
                done.set_result(result)

    def _read(self, client: Consumer) -> None:
        self._stop_and_go(client, self._held)
        first = client.poll(POLL_S)
        if first is None:
            return
        messages = [first, *client.consume(self._most - 1, 0)] if self._most > 1 else [first]
        self._hand_over(messages)

    def _only_answer(self, client: Consumer) -> None:
        """Answer rebalances while nobody asks for records: a call returns none while all partitions are paused."""
        self._stop_and_go(client, self._assigned)
        message = client.poll(0)
        if message is not None:
            self._hand_over([message])

    def _stop_and_go(self, client: Consumer, stopped: frozenset[TopicPartition]) -> None:
        wanted = stopped & self._assigned
        if wanted == self._stopped_partitions:
            return
        go = (self._stopped_partitions - wanted) & self._assigned
        stop = wanted - self._stopped_partitions
        if go:
            client.resume([LibraryTopicPartition(*tp) for tp in go])
        if stop:
            client.pause([LibraryTopicPartition(*tp) for tp in stop])
        self._stopped_partitions = set(wanted)

    def _hand_over(self, messages: Messages) -> None:
        ends: dict[TopicPartition, int] = {}
        if errors := [message for message in messages if message.error() is not None]:
            messages = [message for message in messages if message.error() is None]
            for message in errors:
                self._note(message, ends)
        if messages:
            self._demand = False
            self._said.clear()
        if messages or ends:
            self._tell(self._arrive, messages, ends)

    def _note(self, message: Message[bytes, bytes], ends: dict[TopicPartition, int]) -> None:
        error = message.error()
        assert error is not None
        topic, partition, offset = message.topic() or "", message.partition() or 0, message.offset() or 0
        if error.code() == EOF:
            ends[TopicPartition(topic, partition)] = offset
            return
        if error.fatal():
            raise TransportBrokenError(error.str())
        said = (error.code(), topic, partition)
        if said not in self._said:  # once until records come again
            self._said.add(said)
            log.warning("poll_failed: %s on %s-%d, trying again", error.str(), topic, partition)

    # Rebalances: called by librdkafka in the thread. It takes or gives up the partitions when they return.

    def _on_assign(self, _client: Consumer, places: list[LibraryTopicPartition]) -> None:
        partitions = frozenset(TopicPartition(place.topic, place.partition) for place in places)
        self._assigned |= partitions
        if self._options.listener is not None and not self._closing.is_set():
            self._wait_for(self._options.listener.assigned(partitions))

    def _on_revoke(self, client: Consumer, places: list[LibraryTopicPartition]) -> None:
        partitions = frozenset(TopicPartition(place.topic, place.partition) for place in places)
        if not self._closing.is_set():
            self._wait_for(self._give_up(partitions))
        stopped = partitions & self._stopped_partitions
        if stopped:
            client.resume([LibraryTopicPartition(*tp) for tp in stopped])
            self._stopped_partitions -= stopped
        self._assigned -= partitions

    def _wait_for(self, step: Coroutine[object, object, None]) -> None:
        assert self._loop is not None
        try:
            future = asyncio.run_coroutine_threadsafe(step, self._loop)
        except RuntimeError:  # the loop has been closed
            step.close()
            return
        while not future.done():
            self._obey()  # what the listener itself may want
            try:
                future.exception(timeout=0.02)
            except TimeoutError:
                if self._loop.is_closed():
                    return
            except BaseException:  # noqa: BLE001 cancelled: looked at below
                break
        if future.cancelled():
            return
        if (error := future.exception()) is not None:
            log.error("rebalance_listener_failed: %s", self._options.client_id, exc_info=error)

    # ---------------------------------------------------------------------------------------- the event loop

    async def _give_up(self, partitions: frozenset[TopicPartition]) -> None:
        self._leaving |= partitions
        self._forget(partitions)
        try:
            if self._options.listener is not None:
                await self._options.listener.revoked(partitions)
        finally:
            self._forget(partitions)
            self._leaving -= partitions

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._waiting.pop(partition, None)
            self._positions.pop(partition, None)
            self._ends.pop(partition, None)

    def _arrive(self, messages: Messages, ends: Mapping[TopicPartition, int]) -> None:
        for partition, records in _records(messages).items():
            if partition in self._leaving or partition in self._seeking:
                continue
            self._ends.pop(partition, None)
            if partition in self._waiting:
                self._waiting[partition] += records
            else:
                self._waiting[partition] = records
        self._ends.update((partition, end) for partition, end in ends.items() if partition not in self._seeking)
        self._arrived.set()

    def _broke(self, failure: BaseException | None) -> None:
        if failure is not None:
            self._failure = failure
        self._arrived.set()

    def _end(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    async def poll(self, *, timeout_s: float, max_records: int) -> Mapping[TopicPartition, Sequence[Received]]:
        assert self._loop is not None
        deadline_s = self._loop.time() + timeout_s
        while True:
            if self._failure is not None:
                raise TransportBrokenError(repr(self._failure)) from self._failure
            if found := self._take(max_records):
                return found
            self._most = max_records
            self._arrived.clear()
            self._demand = True
            self._wake.set()
            left_s = deadline_s - self._loop.time()
            if left_s <= 0:
                return {}
            try:
                async with asyncio.timeout(left_s):
                    await self._arrived.wait()
            except TimeoutError:
                return {}

    def _take(self, most: int) -> Read:
        if not self._waiting:
            self._held = frozenset()
            return {}
        taken: Read = {}
        if self._paused:
            self._held = frozenset(self._waiting) & self._paused
        for partition in [tp for tp in self._waiting if tp not in self._paused]:
            records = self._waiting[partition]
            if len(records) > most:
                taken[partition], self._waiting[partition] = records[:most], records[most:]
            else:
                taken[partition] = self._waiting.pop(partition)
            self._positions[partition] = taken[partition][-1].offset + 1
            most -= len(taken[partition])
            if most <= 0:
                break
        return taken

    def pause(self, partition: TopicPartition) -> None:
        # librdkafka's own pause throws away what it has fetched ahead: only a partition with records waits there.
        self._paused.add(TopicPartition(*partition))

    def resume(self, partition: TopicPartition) -> None:
        self._paused.discard(TopicPartition(*partition))
        self._held -= {partition}
        self._arrived.set()

    def assignment(self) -> frozenset[TopicPartition]:
        return self._assigned

    async def _do(self, command: Callable[[], T]) -> T:
        """Let the thread make a call between two reads. librdkafka hangs in calls of other threads while it reads."""
        if self._closed:
            raise TransportBrokenError("the consumer has been stopped")
        done: Future[Any] = Future()  # Any: T, which the deque of all commands does not know
        self._commands.append((command, done))
        self._wake.set()
        result: T = await asyncio.wrap_future(done)
        return result

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> bool:
        if any(partition not in self._assigned for partition in offsets):
            log.info("commit_overtaken_by_rebalance: %s", self._options.client_id)
            return False
        client = self._client
        places = [LibraryTopicPartition(tp[0], tp[1], offset) for tp, offset in offsets.items()]
        try:
            found = await self._do(lambda: client.commit(offsets=places, asynchronous=False))
        except (KafkaException, TransportBrokenError) as error:
            log.warning("commit_failed: %s, the next commit covers it", error)
            return False
        for place in found or ():
            if place.error is not None:
                log.warning("commit_failed: %s, the next commit covers it", place.error)
                return False
        return True

    async def committed(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        client = self._client
        places = [LibraryTopicPartition(*tp) for tp in partitions]
        if not places:
            return {}
        deadline_s = time.monotonic() + self._settings.request_timeout_ms / 1_000
        while True:
            try:
                found = await self._do(lambda: client.committed(places, CALL_TIMEOUT_S))
            except KafkaException as error:
                if not kafka_error(error).retriable() or time.monotonic() > deadline_s:
                    raise TransportBrokenError(str(error)) from error
                await asyncio.sleep(RETRY_BACKOFF_S)
            else:
                return {TopicPartition(tp.topic, tp.partition): tp.offset for tp in found if tp.offset >= 0}

    async def positions(self) -> Mapping[TopicPartition, int]:
        known = {tp: end for tp, end in self._ends.items() if tp not in self._waiting}
        return {tp: max(offset, known.get(tp, 0)) for tp, offset in {**known, **self._positions}.items()}

    async def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        wanted = {TopicPartition(*tp): offset for tp, offset in offsets.items()}
        if not wanted:
            return
        client = self._client
        self._seeking |= wanted.keys()
        try:
            self._forget(wanted)
            await self._do(lambda: self._seek(client, wanted))
            self._forget(wanted)
            self._positions.update(wanted)
        finally:
            self._seeking -= wanted.keys()

    def _seek(self, client: Consumer, offsets: Mapping[TopicPartition, int]) -> None:
        """In the thread, between two reads."""
        for partition, offset in offsets.items():
            if partition not in self._assigned:
                continue  # gone meanwhile: its new owner reads from the committed offset
            place = LibraryTopicPartition(partition.topic, partition.partition, offset)
            for attempt in range(SEEK_ATTEMPTS):
                try:
                    client.seek(place)
                    break
                except KafkaException as error:
                    if attempt + 1 == SEEK_ATTEMPTS:
                        raise TransportBrokenError(f"seek to {offset} on {partition}: {error}") from error
                    time.sleep(RETRY_BACKOFF_S / 2)  # it has not begun to fetch the partition


def _records(messages: Messages) -> Read:
    """The records of messages that are no errors, by partition."""
    read: Read = {}
    topic: str | None = None
    partition: int | None = None
    append: Callable[[Received], None] | None = None
    for message in messages:
        if append is None or message.partition() != partition or message.topic() != topic:
            topic, partition = message.topic(), message.partition()
            assert topic is not None
            assert partition is not None
            append = read.setdefault(TopicPartition(topic, partition), []).append
        kind, timestamp = message.timestamp()
        append(
            new_record(
                Record,
                (
                    topic,
                    partition,
                    message.offset(),
                    timestamp,
                    kind - 1 if kind > 0 else 0,
                    message.key(),
                    message.value(),
                    message.headers() or (),
                ),
            )
        )
    return read
