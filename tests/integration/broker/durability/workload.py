"""What clients do to the broker that is recorded: everything that writes, by librdkafka."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource  # type: ignore[attr-defined]  # re-exported there
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.integration.broker.durability.calls import Call, parse, traced_broker
from tests.support import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.broker.durability.calls import TracedBroker

SETTINGS: Final = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.backoff.ms": "50",
    "log.flush.offset.checkpoint.interval.ms": "250",
    "log.retention.check.interval.ms": "200",
    "log.segment.bytes": "4096",
    "metadata.log.max.record.bytes.between.snapshots": "3000",
}
SERVE: Final = "from hailbus_broker.cli import main; main()"


@dataclass(kw_only=True)
class Recording:
    """The calls of several lives of a broker on one directory.

    Attributes:
        directory: That they worked on.
        lives: The calls of each.
        acked: What the clients were told: values by topic, partition and offset.
    """

    directory: Path
    lives: list[list[Call]] = field(default_factory=list)
    acked: dict[tuple[str, int, int], bytes] = field(default_factory=dict)


class Clients:
    """Real clients of one life."""

    def __init__(self, broker: TracedBroker, recording: Recording, life: int) -> None:
        self.broker = broker
        self.recording = recording
        self.life = life
        self.count = 0
        self.base: dict[str, Any] = {"bootstrap.servers": broker.bootstrap}
        self.admin = AdminClient(self.base)
        self.plain = Producer({**self.base, "acks": "all", "linger.ms": 0})

    def create(self, *topics: str, partitions: int = 1, **configs: str) -> None:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        new = [NewTopic(topic, partitions, 1, config=named) for topic in topics]
        for future in self.admin.create_topics(new).values():
            future.result(30)

    def configure(self, topic: str, count: int) -> None:
        for number in range(count):
            resource = ConfigResource(
                ConfigResource.Type.TOPIC,
                topic,
                incremental_configs=[
                    ConfigEntry("retention.ms", str(10**9 + number), incremental_operation=AlterConfigOpType.SET)
                ],
            )
            for future in self.admin.incremental_alter_configs([resource]).values():
                future.result(30)

    def value(self) -> bytes:
        """One that is never sent twice."""
        self.count += 1
        return b"life %d, record %04d" % (self.life, self.count)

    def produce(
        self,
        topic: str,
        count: int,
        *,
        keys: int = 0,
        partition: int = 0,
        producer: Producer | None = None,
        size: int = 0,
        at_once: int = 3,
    ) -> None:
        """Send records, a few at a time, and wait until each few are acknowledged."""
        producer = producer or self.plain
        for number in range(count):
            value = self.value() + b"." * size
            key = b"key %d" % (number % keys) if keys else None
            producer.produce(topic, value, key=key, partition=partition, on_delivery=self._delivered)
            if number % at_once == at_once - 1:
                assert producer.flush(30) == 0
        assert producer.flush(30) == 0

    def _delivered(self, error: Any, message: Any) -> None:
        assert error is None, error
        self.recording.acked[message.topic(), message.partition(), message.offset()] = message.value()

    def transact(self, producer: Producer, topic: str, group: Consumer, *, offset: int, is_commit: bool) -> None:
        producer.begin_transaction()
        self.produce(topic, 3, producer=producer)
        metadata = group.consumer_group_metadata()
        producer.send_offsets_to_transaction([TopicPartition("plain", 0, offset)], metadata)
        if is_commit:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)

    def wait_for_an_answer(self) -> None:
        """Return when the recording holds the calls of all answers before.

        A client has an answer before strace has seen the call return that sent it. The broker's event loop sends the
        next answer after that, so one more answer shows that the calls before it are recorded.
        """
        self.admin.list_topics(timeout=30)

    def wait_for_line(self, event: str, count: int = 1) -> None:
        wait_for(f"{event} in the broker's log", lambda: self.broker.log().count(event) >= count)


def record(directory: Path, *, adapter: str = "") -> Recording:
    """Record a broker through a SIGKILL, a recovery, a stop in order, a clean start and another SIGKILL.

    Args:
        directory: An empty one, for everything.
        adapter: Python that changes the broker's disk adapter before it serves.
    """
    recording = Recording(directory=directory / "data")
    with ExitStack() as stack:
        for life, (work, end) in enumerate(
            [(first_life, signal.SIGKILL), (second_life, signal.SIGTERM), (third_life, signal.SIGKILL)]
        ):
            trace = directory / f"life-{life}.trace"
            source = adapter + SERVE
            broker = stack.enter_context(traced_broker(recording.directory, trace, SETTINGS, source=source))
            clients = Clients(broker, recording, life)
            work(clients)
            clients.wait_for_an_answer()
            broker.end(end)
            recording.lives.append(list(parse(trace)))
    return recording


def record_produce_only(directory: Path, *, adapter: str) -> Recording:
    """Record one topic and a few records, on a disk adapter that was changed."""
    recording = Recording(directory=directory / "data")
    trace = directory / "life.trace"
    with traced_broker(recording.directory, trace, SETTINGS, source=adapter + SERVE) as broker:
        clients = Clients(broker, recording, 0)
        clients.create("plain")
        clients.produce("plain", 4)
        clients.wait_for_an_answer()
        broker.end(signal.SIGKILL)
    recording.lives.append(list(parse(trace)))
    return recording


def first_life(clients: Clients) -> None:
    """Every kind of write, most of them more than once."""
    clients.create("plain", "doomed", "trimmed", partitions=2)
    clients.create("keyed", cleanup_policy="compact", min_cleanable_dirty_ratio="0.01", segment_bytes="1024")
    clients.create("expiring", retention_bytes="2000", segment_bytes="1024")
    clients.create("moved")
    clients.produce("plain", 9)
    clients.produce("plain", 6, partition=1)
    clients.produce("doomed", 5)
    clients.produce("keyed", 30, keys=4, size=80)
    clients.produce("expiring", 9, size=400, at_once=1)
    idempotent = Producer({**clients.base, "enable.idempotence": True, "linger.ms": 0})
    clients.produce("plain", 6, producer=idempotent)
    group = Consumer(
        {**clients.base, "group.id": "readers", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    )
    group.subscribe(["plain"])
    read = group.poll(30)
    assert read is not None
    for offset in (1, 2, 3):
        group.commit(offsets=[TopicPartition("plain", 1, offset)], asynchronous=False)
    mover = Producer({**clients.base, "transactional.id": "mover", "linger.ms": 0})
    mover.init_transactions(30)
    for number in range(4):
        clients.transact(mover, "moved", group, offset=number + 1, is_commit=number % 2 == 0)
    clients.produce("trimmed", 9)
    for offset in (2, 5):
        for future in clients.admin.delete_records([TopicPartition("trimmed", 0, offset)]).values():
            future.result(30)
    clients.admin.create_partitions([NewPartitions("trimmed", 3)])["trimmed"].result(30)
    clients.produce("trimmed", 2, partition=2, producer=Producer({**clients.base, "linger.ms": 0}))
    clients.admin.delete_topics(["doomed"])["doomed"].result(30)
    clients.create("doomed")
    clients.produce("doomed", 3, producer=Producer({**clients.base, "linger.ms": 0}))
    clients.wait_for_line("log_compacted")
    clients.wait_for_line("segments_deleted")
    clients.configure("plain", 12)  # so much metadata that a snapshot is due
    clients.wait_for_line("metadata_snapshot_written")
    clients.produce("plain", 6)
    clients.produce("plain", 20, size=400)  # several segments
    mover.begin_transaction()
    clients.produce("moved", 2, producer=mover)  # and left open
    group.close()


def second_life(clients: Clients) -> None:
    """After SIGKILL: what was written before is synced before anybody is told of it."""
    group = Consumer(
        {**clients.base, "group.id": "readers", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    )
    group.subscribe(["plain"])
    assert group.poll(30) is not None
    group.commit(offsets=[TopicPartition("plain", 1, 5)], asynchronous=False)
    clients.produce("plain", 6)
    mover = Producer({**clients.base, "transactional.id": "mover", "linger.ms": 0})
    mover.init_transactions(30)
    clients.transact(mover, "moved", group, offset=9, is_commit=True)
    clients.produce("keyed", 12, keys=4, size=80)
    clients.admin.delete_topics(["doomed"])["doomed"].result(30)
    group.close()


def third_life(clients: Clients) -> None:
    """After a stop in order: nothing is read again, and that it was clean is forgotten first."""
    clients.produce("plain", 6)
    clients.create("late")
    clients.produce("late", 3)
