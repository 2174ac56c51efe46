"""The Python clients behind one face, so that one test runs through each of them, and each reads what another wrote."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import aiokafka
import aiokafka.admin
import aiokafka.errors
import aiokafka.structs
import confluent_kafka
import kafka
import kafka.errors
import kafka.structs
from confluent_kafka import KafkaError, KafkaException

T = TypeVar("T")
Reset = Literal["earliest", "latest", "error"]
DEADLINE_S = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A record to write, or as it was read. An offset of -1 is not known yet."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = None
    partition: int = 0
    offset: int = -1


class RefusedError(Exception):
    """The broker said no. `code` is the protocol's error code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"error {code}")
        self.code = code


class Client(Protocol):
    """What every client can do; each has its own way to say it."""

    name: ClassVar[str]

    def __init__(self, bootstrap: str) -> None: ...

    def produce(
        self, topic: str, entries: Sequence[Entry], *, acks: str = "all", idempotent: bool = False, codec: str = "none"
    ) -> list[int]:
        """Write and return the offsets, which are -1 with acks 0."""

    def transact(
        self,
        transactional_id: str,
        topic: str,
        batches: Iterable[tuple[Sequence[bytes], bool]],
        *,
        offsets: tuple[str, int] | None = None,
    ) -> None:
        """Write each batch of values in a transaction and commit or abort it, with the offset of a group if given."""

    def consume(
        self, topic: str, count: int, *, offset: int | None = None, reset: Reset = "error", committed: bool = False
    ) -> list[Entry]:
        """Read at least `count` records of partition 0 from an offset, or from its start."""

    def offsets(self, topic: str, *, timestamp: int) -> tuple[int, int, int]:
        """The first offset, the offset at a time (-1 where there is none), and the end."""

    def commit(self, group: str, topic: str, offset: int, metadata: str) -> None:
        """Commit for partition 0 outside of any generation."""

    def committed(self, group: str, topic: str) -> tuple[int, str]:
        """Offset and metadata that a group has for partition 0; -1 where there is none."""


class AioKafka:
    """aiokafka."""

    name: ClassVar[str] = "aiokafka"

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        async def guarded() -> T:
            try:
                return await coroutine
            except aiokafka.errors.KafkaError as error:
                raise RefusedError(getattr(error, "errno", -1)) from error

        return asyncio.run(guarded())

    def produce(
        self, topic: str, entries: Sequence[Entry], *, acks: str = "all", idempotent: bool = False, codec: str = "none"
    ) -> list[int]:
        async def work() -> list[int]:
            async with aiokafka.AIOKafkaProducer(
                bootstrap_servers=self.bootstrap,
                acks="all" if acks == "all" else int(acks),
                enable_idempotence=idempotent,
                compression_type=None if codec == "none" else codec,
                max_request_size=10_000_000,
            ) as producer:
                sent = [
                    await producer.send(
                        topic,
                        entry.value,
                        key=entry.key,
                        partition=entry.partition,
                        timestamp_ms=entry.timestamp,
                        headers=list(entry.headers),
                    )
                    for entry in entries
                ]
                done = [await future for future in sent]
                return [-1 if acks == "0" else item.offset for item in done]

        return self.run(work())

    def transact(
        self,
        transactional_id: str,
        topic: str,
        batches: Iterable[tuple[Sequence[bytes], bool]],
        *,
        offsets: tuple[str, int] | None = None,
    ) -> None:
        async def work() -> None:
            async with aiokafka.AIOKafkaProducer(
                bootstrap_servers=self.bootstrap, transactional_id=transactional_id
            ) as producer:
                for values, commits in batches:
                    await producer.begin_transaction()
                    for value in values:
                        await producer.send_and_wait(topic, value, partition=0)
                    if offsets is not None:
                        group, offset = offsets
                        where = {aiokafka.TopicPartition(topic, 0): offset}
                        await producer.send_offsets_to_transaction(where, group)
                    await (producer.commit_transaction() if commits else producer.abort_transaction())

        self.run(work())

    async def consumer(self, topic: str, **more: Any) -> aiokafka.AIOKafkaConsumer:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap, enable_auto_commit=False, fetch_max_wait_ms=100, **more
        )
        await consumer.start()
        consumer.assign([aiokafka.TopicPartition(topic, 0)])
        return consumer

    def consume(
        self, topic: str, count: int, *, offset: int | None = None, reset: Reset = "error", committed: bool = False
    ) -> list[Entry]:
        async def work() -> list[Entry]:
            consumer = await self.consumer(
                topic,
                auto_offset_reset="none" if reset == "error" else reset,
                isolation_level="read_committed" if committed else "read_uncommitted",
            )
            place = aiokafka.TopicPartition(topic, 0)
            try:
                if offset is None:
                    await consumer.seek_to_beginning(place)
                else:
                    consumer.seek(place, offset)
                found: list[Entry] = []
                deadline = time.monotonic() + DEADLINE_S
                while len(found) < count:
                    assert time.monotonic() < deadline, found
                    for records in (await consumer.getmany(timeout_ms=200)).values():
                        found += [self.entry(record) for record in records]
                return found
            finally:
                await consumer.stop()

        return self.run(work())

    @staticmethod
    def entry(record: Any) -> Entry:
        return Entry(
            value=record.value,
            key=record.key,
            headers=tuple(record.headers),
            timestamp=record.timestamp,
            partition=record.partition,
            offset=record.offset,
        )

    def offsets(self, topic: str, *, timestamp: int) -> tuple[int, int, int]:
        async def work() -> tuple[int, int, int]:
            place = aiokafka.TopicPartition(topic, 0)
            consumer = await self.consumer(topic)
            try:
                first = await consumer.beginning_offsets([place])
                at = (await consumer.offsets_for_times({place: timestamp}))[place]
                end = await consumer.end_offsets([place])
                return first[place], -1 if at is None else at.offset, end[place]
            finally:
                await consumer.stop()

        return self.run(work())

    def commit(self, group: str, topic: str, offset: int, metadata: str) -> None:
        async def work() -> None:
            consumer = await self.consumer(topic, group_id=group)
            try:
                value = aiokafka.structs.OffsetAndMetadata(offset, metadata)
                await consumer.commit({aiokafka.TopicPartition(topic, 0): value})
            finally:
                await consumer.stop()

        self.run(work())

    def committed(self, group: str, topic: str) -> tuple[int, str]:
        async def work() -> tuple[int, str]:
            admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
            await admin.start()
            try:
                place = aiokafka.TopicPartition(topic, 0)
                found = (await admin.list_consumer_group_offsets(group, partitions=[place]))[place]
                return found.offset, found.metadata
            finally:
                await admin.close()

        return self.run(work())


class ConfluentKafka:
    """confluent-kafka: librdkafka."""

    name: ClassVar[str] = "confluent-kafka"

    def __init__(self, bootstrap: str) -> None:
        self.common: dict[str, Any] = {"bootstrap.servers": bootstrap, "log_level": 0}

    def produce(
        self, topic: str, entries: Sequence[Entry], *, acks: str = "all", idempotent: bool = False, codec: str = "none"
    ) -> list[int]:
        more = {"acks": acks, "enable.idempotence": idempotent, "compression.type": codec, "linger.ms": 5}
        producer = confluent_kafka.Producer({**self.common, **more, "message.max.bytes": 10_000_000})
        offsets: list[int] = []
        errors: list[KafkaError] = []

        def done(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                errors.append(error)
            else:
                offsets.append(-1 if acks == "0" else message.offset())

        for entry in entries:
            producer.produce(
                topic,
                entry.value,
                entry.key,
                entry.partition,
                on_delivery=done,
                timestamp=entry.timestamp or 0,
                headers=list(entry.headers),
            )
        assert producer.flush(DEADLINE_S) == 0
        if errors:
            raise RefusedError(errors[0].code())
        return offsets

    def transact(
        self,
        transactional_id: str,
        topic: str,
        batches: Iterable[tuple[Sequence[bytes], bool]],
        *,
        offsets: tuple[str, int] | None = None,
    ) -> None:
        producer = confluent_kafka.Producer({**self.common, "transactional.id": transactional_id, "linger.ms": 0})
        try:
            producer.init_transactions(DEADLINE_S)
            for values, commits in batches:
                producer.begin_transaction()
                for value in values:
                    producer.produce(topic, value, partition=0)
                assert producer.flush(DEADLINE_S) == 0
                if offsets is not None:
                    group, offset = offsets
                    reader = confluent_kafka.Consumer({**self.common, "group.id": group})
                    place = confluent_kafka.TopicPartition(topic, 0, offset)
                    producer.send_offsets_to_transaction([place], reader.consumer_group_metadata(), DEADLINE_S)
                    reader.close()
                (producer.commit_transaction if commits else producer.abort_transaction)(DEADLINE_S)
        except KafkaException as error:
            raise RefusedError(error.args[0].code()) from error

    def consume(
        self, topic: str, count: int, *, offset: int | None = None, reset: Reset = "error", committed: bool = False
    ) -> list[Entry]:
        consumer = confluent_kafka.Consumer(
            {
                **self.common,
                "group.id": "reader",
                "enable.auto.commit": False,
                "auto.offset.reset": reset,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "fetch.wait.max.ms": 100,
            }
        )
        begin = confluent_kafka.OFFSET_BEGINNING if offset is None else offset
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, begin)])
        found: list[Entry] = []
        deadline = time.monotonic() + DEADLINE_S
        try:
            while len(found) < count:
                assert time.monotonic() < deadline, found
                for message in consumer.consume(1000, 0.1):
                    if error := message.error():
                        if error.code() == KafkaError._AUTO_OFFSET_RESET:
                            raise RefusedError(KafkaError.OFFSET_OUT_OF_RANGE)
                        raise RefusedError(error.code())
                    found.append(self.entry(message))
            return found
        finally:
            consumer.close()

    @staticmethod
    def entry(message: Any) -> Entry:
        return Entry(
            value=message.value(),
            key=message.key(),
            headers=tuple(message.headers() or ()),
            timestamp=message.timestamp()[1],
            partition=message.partition(),
            offset=message.offset(),
        )

    def offsets(self, topic: str, *, timestamp: int) -> tuple[int, int, int]:
        consumer = confluent_kafka.Consumer({**self.common, "group.id": "reader"})
        try:
            place = confluent_kafka.TopicPartition(topic, 0, timestamp)
            first, end = consumer.get_watermark_offsets(place, DEADLINE_S)
            (at,) = consumer.offsets_for_times([place], DEADLINE_S)
            # librdkafka says "end" where no record is that new.
            return first, -1 if at.offset == confluent_kafka.OFFSET_END else at.offset, end
        finally:
            consumer.close()

    def commit(self, group: str, topic: str, offset: int, metadata: str) -> None:
        consumer = confluent_kafka.Consumer({**self.common, "group.id": group})
        try:
            place = confluent_kafka.TopicPartition(topic, 0, offset, metadata.removesuffix("\0"))
            consumer.commit(offsets=[place], asynchronous=False)
        except KafkaException as error:
            raise RefusedError(error.args[0].code()) from error
        finally:
            consumer.close()

    def committed(self, group: str, topic: str) -> tuple[int, str]:
        consumer = confluent_kafka.Consumer({**self.common, "group.id": group})
        try:
            (found,) = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], DEADLINE_S)
            return (-1, "") if found.offset < 0 else (found.offset, found.metadata or "")
        finally:
            consumer.close()


class KafkaPython:
    """kafka-python."""

    name: ClassVar[str] = "kafka-python"

    def __init__(self, bootstrap: str) -> None:
        self.common: dict[str, Any] = {"bootstrap_servers": bootstrap}

    @staticmethod
    def guarded(work: Callable[[], T]) -> T:
        try:
            return work()
        except kafka.errors.KafkaError as error:
            raise RefusedError(getattr(error, "errno", -1)) from error

    def produce(
        self, topic: str, entries: Sequence[Entry], *, acks: str = "all", idempotent: bool = False, codec: str = "none"
    ) -> list[int]:
        producer = kafka.KafkaProducer(
            **self.common,
            acks="all" if acks == "all" else int(acks),
            enable_idempotence=idempotent,
            compression_type=None if codec == "none" else codec,
            max_request_size=10_000_000,
        )

        def work() -> list[int]:
            sent = [
                producer.send(
                    topic,
                    entry.value,
                    key=entry.key,
                    headers=list(entry.headers),
                    partition=entry.partition,
                    timestamp_ms=entry.timestamp,
                )
                for entry in entries
            ]
            done = [future.get(DEADLINE_S) for future in sent]
            return [-1 if acks == "0" else item.offset for item in done]

        try:
            return self.guarded(work)
        finally:
            producer.close()

    def transact(
        self,
        transactional_id: str,
        topic: str,
        batches: Iterable[tuple[Sequence[bytes], bool]],
        *,
        offsets: tuple[str, int] | None = None,
    ) -> None:
        producer = kafka.KafkaProducer(**self.common, transactional_id=transactional_id)

        def work() -> None:
            producer.init_transactions()
            for values, commits in batches:
                producer.begin_transaction()
                for value in values:
                    producer.send(topic, value, partition=0).get(DEADLINE_S)
                if offsets is not None:
                    group, offset = offsets
                    where = {kafka.TopicPartition(topic, 0): kafka.structs.OffsetAndMetadata(offset, "", -1)}
                    producer.send_offsets_to_transaction(where, group)
                (producer.commit_transaction if commits else producer.abort_transaction)()

        try:
            self.guarded(work)
        finally:
            producer.close()

    def consumer(self, topic: str, **more: Any) -> Any:
        consumer = kafka.KafkaConsumer(**self.common, enable_auto_commit=False, fetch_max_wait_ms=100, **more)
        consumer.assign([kafka.TopicPartition(topic, 0)])
        return consumer

    def consume(
        self, topic: str, count: int, *, offset: int | None = None, reset: Reset = "error", committed: bool = False
    ) -> list[Entry]:
        consumer = self.consumer(
            topic,
            auto_offset_reset="none" if reset == "error" else reset,
            isolation_level="read_committed" if committed else "read_uncommitted",
        )
        place = kafka.TopicPartition(topic, 0)

        def work() -> list[Entry]:
            if offset is None:
                consumer.seek_to_beginning(place)
            else:
                consumer.seek(place, offset)
            found: list[Entry] = []
            deadline = time.monotonic() + DEADLINE_S
            while len(found) < count:
                assert time.monotonic() < deadline, found
                for records in consumer.poll(timeout_ms=200).values():
                    found += [AioKafka.entry(record) for record in records]
            return found

        try:
            return self.guarded(work)
        finally:
            consumer.close()

    def offsets(self, topic: str, *, timestamp: int) -> tuple[int, int, int]:
        place = kafka.TopicPartition(topic, 0)
        consumer = self.consumer(topic)
        try:
            at = consumer.offsets_for_times({place: timestamp})[place]
            first, end = consumer.beginning_offsets([place])[place], consumer.end_offsets([place])[place]
            return first, -1 if at is None else at.offset, end
        finally:
            consumer.close()

    def commit(self, group: str, topic: str, offset: int, metadata: str) -> None:
        consumer = self.consumer(topic, group_id=group)
        value = kafka.structs.OffsetAndMetadata(offset, metadata, -1)
        try:
            self.guarded(lambda: consumer.commit({kafka.TopicPartition(topic, 0): value}))
        finally:
            consumer.close()

    def committed(self, group: str, topic: str) -> tuple[int, str]:
        consumer = self.consumer(topic, group_id=group)
        try:
            found = consumer.committed(kafka.TopicPartition(topic, 0), metadata=True)
            return (-1, "") if found is None else (found.offset, found.metadata)
        finally:
            consumer.close()


CLIENTS: dict[str, type[Client]] = {client.name: client for client in (AioKafka, ConfluentKafka, KafkaPython)}
