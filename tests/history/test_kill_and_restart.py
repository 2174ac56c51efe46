"""Concurrent clients over real sockets while the broker is killed with SIGKILL and restarted, again and again.

`HAILBUS_HISTORY_SECONDS` sets how long (default 40; `just history` takes 600), `HAILBUS_SEED` replays the same kills.
"""

import contextlib
import faulthandler
import functools
import itertools
import operator
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import kafka
import kafka.errors
import kafka.structs
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from hailbus_broker.testing.history import (
    Committed,
    End,
    History,
    Listed,
    Polled,
    Sent,
    Stored,
    consume_counts,
    violations,
)

from tests.conformance.wire import Wire, batches
from tests.support import free_port

TOPIC = "history"
COPY = "copy"
AUTO = "auto-commit"
PARTITIONS = 4
LIST = PARTITIONS - 1
"""The partition to which only transactions append: so short that it can be read as a whole again and again."""

SETTINGS = [
    "--set=group.initial.rebalance.delay.ms=0",
    # A life of the broker is shorter than the shortest session by default: no dead member would ever be missed.
    "--set=group.min.session.timeout.ms=500",
]
SECONDS = float(os.environ.get("HAILBUS_HISTORY_SECONDS", "40"))


class Broker:
    """The in-house broker on one port and data directory, through many lives."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = f"127.0.0.1:{free_port()}"
        self.lives = 0
        self.slowest_start_s = 0.0
        self.start()

    def start(self) -> None:
        began = time.monotonic()
        command: list[str | Path] = [Path(sys.executable).parent / "hailbus-broker", "serve", "--listen", self.address]
        with (self.directory / "broker.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--data-dir", self.directory / "data", *SETTINGS],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("bootstrap="), (self.directory / "broker.log").read_text()[-3000:]
        self.address = line.strip().removeprefix("bootstrap=")
        self.lives += 1
        self.slowest_start_s = max(self.slowest_start_s, time.monotonic() - began)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.stop()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    running = Broker(tmp_path)
    yield running
    running.stop()


class Workload:
    """Producers, transactional producers and consumers that write down what they did."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.common = {
            "bootstrap.servers": address,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
        self.stopped = threading.Event()
        self.values = itertools.count(1)
        self.transaction_ids = itertools.count(1)
        self.transactions: dict[int, End] = {}
        self.lock = threading.Lock()
        self.sent: list[Sent] = []
        self.polled: list[Polled] = []
        self.offsets: list[Committed] = []
        self.handed: list[tuple[int, Polled]] = []
        self.lists: list[Listed] = []
        self.ops = itertools.count(1)
        self.crashes = 0

    def record(self, send: Sent) -> None:
        with self.lock:
            self.sent.append(send)

    def produce(self, name: str, partition: int) -> None:
        """Send to one partition with an idempotent producer, acks=all, a few hundred in flight."""
        producer = Producer(
            {
                **self.common,
                "enable.idempotence": True,
                "linger.ms": 2,
                "delivery.timeout.ms": 60_000,
                "batch.num.messages": 50,
            }
        )
        window = threading.Semaphore(300)

        def done(value: int, error: KafkaError | None, message: Message) -> None:
            outcome: End = "ok" if error is None else "unknown"
            offset = message.offset() if error is None else None
            self.record(Sent(process=name, partition=partition, value=value, outcome=outcome, offset=offset))
            window.release()

        while not self.stopped.is_set():
            if not window.acquire(timeout=0.05):
                producer.poll(0)
                continue
            value = next(self.values)
            producer.produce(
                TOPIC,
                str(value).encode(),
                partition=partition,
                on_delivery=functools.partial(done, value),
            )
            producer.poll(0.001)
        left = producer.flush(60)
        assert left == 0, f"{name}: {left} sends without an answer"

    def transact(self, name: str, chance: random.Random) -> None:
        """Write to all partitions in transactions; abort a third of them."""
        producer: Producer | None = None
        reader = self.reader(f"{name}-reader")
        reader.assign([TopicPartition(TOPIC, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
        while not self.stopped.is_set():
            try:
                if producer is None:
                    settings = {"transactional.id": name, "transaction.timeout.ms": 20_000, "linger.ms": 0}
                    producer = Producer({**self.common, **settings})
                    producer.init_transactions(30)
                self.one_transaction(name, producer, reader, chance)
            except KafkaException:
                producer = None  # whatever went wrong, a new producer fences this one and ends its transaction
        reader.close()

    def one_transaction(self, name: str, producer: Producer, reader: Consumer, chance: random.Random) -> None:
        number = next(self.transaction_ids)
        self.transactions[number] = "fail"  # nothing is committed before the commit is asked for
        pending: dict[int, int] = {}
        offsets: dict[int, int] = {}
        producer.begin_transaction()
        try:
            for partition in range(PARTITIONS):
                for _ in range(chance.randint(1, 4)):
                    value = next(self.values)
                    pending[value] = partition

                    def done(error: KafkaError | None, message: Message, value: int = value) -> None:
                        if error is None and (offset := message.offset()) is not None:
                            offsets[value] = offset

                    producer.produce(TOPIC, str(value).encode(), partition=partition, on_delivery=done)
            if producer.flush(30):
                raise KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT))
            got = self.poll(reader, f"{name}-reader", 0, 100, 0, transaction=number)
            with self.lock:
                self.polled.extend(got)
            if chance.random() < 1 / 3:
                producer.abort_transaction(30)
            else:
                self.transactions[number] = "unknown"
                producer.commit_transaction(30)
                self.transactions[number] = "ok"
        finally:
            for value, partition in pending.items():
                offset = offsets.get(value)
                outcome: End = "unknown" if offset is None else "ok"
                self.record(
                    Sent(
                        process=name,
                        partition=partition,
                        value=value,
                        outcome=outcome,
                        offset=offset,
                        transaction=number,
                    )
                )

    def reader(self, group: str, **more: Any) -> Consumer:
        return Consumer(
            {
                **self.common,
                "group.id": group,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                **more,
            }
        )

    def poll(
        self,
        consumer: Consumer,
        name: str,
        life: int,
        most: int,
        seconds: float,
        *,
        is_subscribed: bool = False,
        transaction: int | None = None,
    ) -> list[Polled]:
        op = next(self.ops)
        return [
            Polled(
                process=name,
                life=life,
                partition=partition,
                offset=offset,
                value=int(value),
                op=op,
                is_subscribed=is_subscribed,
                transaction=transaction,
            )
            for message in consumer.consume(most, seconds)
            if message.error() is None
            and (partition := message.partition()) is not None
            and (offset := message.offset()) is not None
            and (value := message.value()) is not None
        ]

    def consume(self, name: str, life: int, until: dict[int, int] | None = None, *, topic: str = TOPIC) -> list[Polled]:
        """Read from the start: the partitions in `until` to these ends, or all of them for a while."""
        consumer = self.reader(name)
        wanted = range(PARTITIONS) if until is None else until
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in wanted])
        got: list[Polled] = []
        deadline = time.monotonic() + 60
        while not self.stopped.is_set() if until is None else self.behind(consumer, topic, until):
            assert until is None or time.monotonic() < deadline, f"{name} never reached {until}"
            got += self.poll(consumer, name, life, 500, 0.1)
            if until is None and len(got) > 20_000:
                break  # a new life reads from the start again
        consumer.close()
        return got

    def behind(self, consumer: Consumer, topic: str, until: dict[int, int]) -> bool:
        positions = consumer.position([TopicPartition(topic, partition) for partition in until])
        return any(max(place.offset, 0) < until[place.partition] for place in positions)

    def read_again_and_again(self, name: str) -> None:
        for life in itertools.count():
            if self.stopped.is_set():
                return
            got = self.consume(name, life)
            with self.lock:
                self.polled.extend(got)

    def read_lists(self, name: str) -> None:
        """Read one partition as a whole, each time by a new consumer: a list that only grows."""
        for life in itertools.count():
            if self.stopped.is_set():
                return
            with contextlib.suppress(KafkaException):  # the broker was killed before it told the end
                got = self.consume(name, life, until=end_offsets(self.address, partitions=[LIST]))
                with self.lock:
                    self.polled.extend(got)
                self.lists.append(Listed(process=name, partition=LIST, values=tuple(poll.value for poll in got)))
                self.stopped.wait(len(got) / 2000)  # what is read is bounded by the time that there is

    def commit_by_itself(self, name: str, chance: random.Random) -> None:
        """Be a member of a group that commits by itself, as a process that is killed and started, again and again."""
        command = [sys.executable, str(Path(__file__).with_name("auto_committer.py")), self.address, TOPIC, AUTO]
        for life in itertools.count():
            if self.stopped.is_set():
                return
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
                end = threading.Timer(chance.uniform(2, 8), process.kill)
                end.start()
                assert process.stdout is not None
                for line in process.stdout:
                    if line.endswith("\n"):  # else killed while it wrote: not polled again, so not committed
                        self.take_handed(name, life, line)
                end.cancel()
            assert process.returncode == -signal.SIGKILL, f"{name} ended by itself: {process.returncode}"

    def take_handed(self, name: str, life: int, line: str) -> None:
        """Note what a process was handed by one poll."""
        time_ns, *records = line.split()
        op = next(self.ops)
        got = []
        for record in records:
            partition, offset, value = map(int, record.split(":"))
            got.append(
                Polled(
                    process=name,
                    life=life,
                    partition=partition,
                    offset=offset,
                    value=value,
                    op=op,
                    is_subscribed=True,
                )
            )
        with self.lock:
            self.polled.extend(got)
            self.handed += [(int(time_ns), poll) for poll in got]

    def copy(self, name: str, chance: random.Random) -> None:
        """Copy the topic exactly once, as one of several members of a group; die now and then without a word.

        Through kafka-python: librdkafka 2.16 can wait for ever in `send_offsets_to_transaction` when the connection to
        the coordinator breaks during its first step.
        """
        common = {"bootstrap_servers": self.address, "reconnect_backoff_ms": 20, "reconnect_backoff_max_ms": 200}
        for life in itertools.count():
            if self.stopped.is_set():
                return
            consumer = kafka.KafkaConsumer(
                **common,
                group_id=COPY,
                enable_auto_commit=False,
                isolation_level="read_committed",
                auto_offset_reset="earliest",
                session_timeout_ms=1500,
                heartbeat_interval_ms=300,
                max_poll_interval_ms=20_000,
            )
            consumer.subscribe([TOPIC])
            producer: Any = None
            is_alive = True
            while is_alive and not self.stopped.is_set():
                try:
                    if producer is None:
                        producer = kafka.KafkaProducer(
                            **common,
                            transactional_id=name,
                            max_block_ms=20_000,
                            delivery_timeout_ms=20_000,
                            request_timeout_ms=10_000,
                        )
                        producer.init_transactions()  # ends what a life before has left open, and fences it
                        self.rewind(consumer)
                    crashes = chance.random() < 1 / 40
                    if self.copy_some(name, life, consumer, producer, crashes=crashes) and crashes:
                        self.crashes += 1
                        is_alive = False
                except (kafka.errors.KafkaError, AssertionError):
                    # Nobody knows how the transaction ended: a new producer finds out, and reading goes on from there.
                    self.drop(producer)
                    producer = None
            self.drop(producer)
            consumer.close(autocommit=False, timeout_ms=2000)

    @staticmethod
    def drop(producer: Any) -> None:
        """Let go of a producer without ending its transaction."""
        if producer is not None:
            producer._sender.force_close()  # `close` would first wait for what can no longer be sent
            with contextlib.suppress(kafka.errors.KafkaError):
                producer.close(timeout=0.5)

    @staticmethod
    def rewind(consumer: Any) -> None:
        """Go on reading where the group stands."""
        for place in consumer.assignment():
            offset = consumer.committed(place)
            if offset is None:
                consumer.seek_to_beginning(place)
            else:
                consumer.seek(place, offset)

    def copy_some(self, name: str, life: int, consumer: Any, producer: Any, *, crashes: bool) -> bool:
        """Copy what one poll brings, in a transaction with the offsets; a crash leaves the transaction open."""
        op = next(self.ops)
        got = [
            Polled(
                process=name,
                life=life,
                partition=record.partition,
                offset=record.offset,
                value=int(record.value),
                op=op,
                is_subscribed=True,
            )
            for records in consumer.poll(timeout_ms=200, max_records=300).values()
            for record in records
        ]
        # Now, not when the offsets are sent: a member whose session ends meanwhile forgets its generation, and offsets
        # without one are accepted from anybody.
        member = consumer.group_metadata()
        with self.lock:
            self.polled.extend(got)
        if not got:
            return False
        if member.generation_id < 0:
            raise kafka.errors.IllegalGenerationError("the group has let go of this member since the poll")
        producer.begin_transaction()
        for poll in got:
            producer.send(COPY, str(poll.value).encode(), partition=poll.partition)
        ends = {
            kafka.TopicPartition(TOPIC, poll.partition): kafka.structs.OffsetAndMetadata(poll.offset + 1, "", -1)
            for poll in got
        }
        producer.flush(10)
        manager = producer._transaction_manager
        self.finish(producer, manager.send_offsets_to_transaction(ends, member))
        if not crashes:
            self.finish(producer, manager.begin_commit())
        return True

    @staticmethod
    def finish(producer: Any, result: Any) -> None:
        """Wait for a step of a transaction with a limit, which the methods of kafka-python do not have.

        It forgets a step whose connection turns out to be broken before the request is sent, with any broker: nobody
        sends it again, and its result never comes.
        """
        producer._sender.wakeup()
        if not result.wait(timeout_ms=15_000):
            raise kafka.errors.KafkaTimeoutError("a step of the transaction was not answered")

    def commit_and_look(self, name: str) -> None:
        """Commit rising offsets for a group and read them back: what was acked is not forgotten."""
        consumer = self.reader(name)
        for offset in itertools.count(1):
            if self.stopped.is_set():
                break
            partition = offset % PARTITIONS
            outcome: End = "ok"
            try:
                consumer.commit(offsets=[TopicPartition(TOPIC, partition, offset)], asynchronous=False)
            except KafkaException:
                outcome = "unknown"
            self.note_offset(name, partition, offset, is_read=False, outcome=outcome)
            try:
                (found,) = consumer.committed([TopicPartition(TOPIC, partition)], 10)
            except KafkaException:
                continue
            if found.error is None:
                self.note_offset(name, partition, max(found.offset, -1), is_read=True)
        consumer.close()

    def note_offset(self, group: str, partition: int, offset: int, *, is_read: bool, outcome: End = "ok") -> None:
        self.offsets.append(
            Committed(group=group, partition=partition, offset=offset, is_read=is_read, outcome=outcome)
        )


def stored_batches(address: str) -> list[Stored]:
    """Every batch of the topic, as it stands in the log."""
    found = []
    wire = Wire(address)
    for partition in range(PARTITIONS):
        offset = 0
        while views := batches(wire.fetch(TOPIC, offset, partition=partition).records):
            found += [Stored.of(partition, view) for view in views]
            offset = views[-1].header.next_offset
    wire.close()
    return found


def end_offsets(address: str, topic: str = TOPIC, partitions: Sequence[int] = range(PARTITIONS)) -> dict[int, int]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "ends", "log_level": 0})
    try:
        return {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=30)[1] for p in partitions}
    finally:
        consumer.close()


def create_topics(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in (TOPIC, COPY)]).values():
        future.result()


def has_resumed(handed: Sequence[tuple[int, Polled]]) -> bool:
    """Whether a consumer that commits by itself was killed, and its next life began where it had committed."""
    first = {
        (poll.process, poll.life): poll.offset for _, poll in sorted(handed, key=operator.itemgetter(0), reverse=True)
    }
    return any(life and offset for (_, life), offset in first.items())


# kafka-python forgets a socket that it was connecting when its producer is closed by force.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.timeout(SECONDS + 300)
def test_no_promise_is_broken_while_the_broker_is_killed(broker: Broker) -> None:
    seed = int(os.environ.get("HAILBUS_SEED", random.SystemRandom().randrange(1 << 32)))
    chance = random.Random(seed)
    create_topics(broker.address)
    work = Workload(broker.address)
    failures: list[BaseException] = []

    def guarded(target: object, *arguments: object) -> threading.Thread:
        def run() -> None:
            try:
                target(*arguments)  # type: ignore[operator]  # one of the workload's methods
            except BaseException as failure:  # noqa: BLE001 - shown by the main thread
                failures.append(failure)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    threads = [guarded(work.produce, f"producer-{p}", p) for p in range(PARTITIONS) if p != LIST]
    threads += [guarded(work.transact, f"transactions-{n}", random.Random(seed + n)) for n in (1, 2)]
    threads += [guarded(work.read_again_and_again, f"consumer-{n}") for n in (1, 2)]
    threads += [guarded(work.copy, f"copy-{n}", random.Random(seed + 10 + n)) for n in (1, 2)]
    threads += [guarded(work.commit_and_look, "offsets")]
    threads += [guarded(work.read_lists, f"list-{n}") for n in (1, 2)]
    threads += [guarded(work.commit_by_itself, f"{AUTO}-{n}", random.Random(seed + 20 + n)) for n in (1, 2)]
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends and not failures:
        threading.Event().wait(chance.uniform(0.5, 4))  # how long this life of the broker lasts
        broker.kill()
        broker.start()
    # On a busy machine no life of the broker may have been long enough for a commit.
    latest = time.monotonic() + 60
    while not has_resumed(work.handed) and time.monotonic() < latest and not failures:
        threading.Event().wait(0.2)
    work.stopped.set()
    for thread in threads:
        thread.join(120)
        if thread.is_alive():
            faulthandler.dump_traceback()
        assert not thread.is_alive(), f"HAILBUS_SEED={seed}: a client never ended"
    assert not failures, f"HAILBUS_SEED={seed}: {failures[0]!r}"
    for name in ("transactions-1", "transactions-2"):  # a successor ends what is still open
        Producer({**work.common, "transactional.id": name}).init_transactions(60)
    work.stopped.clear()
    final = work.consume("final", 0, until=end_offsets(broker.address))
    copied = work.consume("final copy", 0, until=end_offsets(broker.address, COPY), topic=COPY)
    history = History(
        sent=work.sent,
        polled=work.polled,
        final=final,
        transactions=work.transactions,
        offsets=work.offsets,
        copied=copied,
        stored=stored_batches(broker.address),
        handed=[poll for _, poll in sorted(work.handed, key=operator.itemgetter(0))],
        lists=work.lists,
    )
    counts = consume_counts(history)
    longest = max((len(found.values) for found in work.lists), default=0)
    lives = {(poll.process, poll.life) for poll in history.handed}
    ended = {end: list(work.transactions.values()).count(end) for end in ("ok", "fail", "unknown")}
    print(
        f"HAILBUS_SEED={seed}: {broker.lives} lives, slowest start {broker.slowest_start_s:.2f} s,"
        f" {len(work.sent):,} sends, {len(work.polled):,} polls, transactions {ended}, {len(copied):,} copied with"
        f" {work.crashes} crashes, {len(work.offsets):,} offsets committed or read, {len(history.stored):,} batches,"
        f" {len(work.handed):,} handed over to {len(lives)} lives with auto-commit,"
        f" {len(work.lists):,} reads of a list of {longest:,} values;"
        f" each value that was read, {min(counts)} to {max(counts)} times"
    )
    assert ended["ok"], "no transaction was committed: the history proves nothing"
    assert copied, "nothing was copied: the history does not prove exactly once"
    assert work.lists, "no list was read as a whole"
    assert has_resumed(work.handed), "no life resumed where another had committed"
    assert violations(history) == {}, f"HAILBUS_SEED={seed} HAILBUS_HISTORY_SECONDS={SECONDS:.0f}"
