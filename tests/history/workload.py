"""Concurrent clients that write down what they did, while the brokers they talk to fail."""

import asyncio
import contextlib
import faulthandler
import functools
import itertools
import json
import math
import operator
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.errors
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
from hailbus_devtools.tools import apache_kafka

from tests.conformance.wire import Wire, batches
from tests.servers import SHORT_LIVED_JVM

ROOT = Path(__file__).resolve().parents[2]
TOPIC = "history"
COPY = "copy"
AUTO = "auto-commit"
PARTITIONS = 4
LIST = PARTITIONS - 1
"""The partition to which only transactions append: so short that it can be read as a whole again and again."""

DELIVERY_TIMEOUT_MS = 600_000
"""Longer than any outage.

When a client gives up a record that is in flight, it takes a new producer epoch and sends the other records in flight
again. The broker cannot recognise those: librdkafka and the Java client both then write a value twice.
"""

SECONDS = float(os.environ.get("HAILBUS_HISTORY_SECONDS", "40"))
FIRST_VALUE = 100_000_000
"""Clients of other languages count from 0 and stay below it."""
LOST = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
"""Errors after which a consumer with `auto.offset.reset=error` stops: the log does not contain its position."""
LONGER_AT_MOST = 8
"""How many times as long a copier lives at most, after lives in which it committed nothing."""


class Workload:
    """Producers, transactional producers and consumers that write down what they did."""

    def __init__(
        self,
        address: str,
        *,
        rate: float | None = None,
        may_be_stale: bool = False,
        life_s: tuple[float, float] = (2, 8),
        each: int = 2,
        socket_timeout_ms: int | None = None,
    ) -> None:
        """Prepare the clients of one or several brokers.

        Args:
            address: Brokers, `HOST:PORT` each, with commas.
            rate: Sends per second and producer; as many as there can be if not given.
            may_be_stale: Whether a leader that has been replaced may serve readers for a while. Then a reader of a list
                may be shown an older state of it.
            life_s: When a member of a group is killed, counted from the first records that it is handed. A copier lives
                longer after lives in which it committed nothing.
            each: How many clients there are of each kind that can have several.
            socket_timeout_ms: After which a client gives up a broker that does not answer; librdkafka's default if not
                given.
        """
        self.address = address
        self.rate = rate
        self.may_be_stale = may_be_stale
        self.life_s = life_s
        self.each = each
        self.common = {
            "bootstrap.servers": address,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
        if socket_timeout_ms is not None:
            self.common["socket.timeout.ms"] = socket_timeout_ms
        self.stopped = threading.Event()
        self.values = itertools.count(FIRST_VALUE)
        self.transaction_ids = itertools.count(1)
        self.transactions: dict[int, End] = {}
        self.lock = threading.Lock()
        self.sent: list[Sent] = []
        self.polled: list[Polled] = []
        self.offsets: list[Committed] = []
        self.handed: list[tuple[int, Polled]] = []
        self.lists: list[Listed] = []
        self.ops = itertools.count(1)
        self.copies = 0
        self.uncopied: Counter[tuple[str, int]] = Counter()
        self.stale_lists = 0
        self.failures: list[BaseException] = []
        self.threads: list[threading.Thread] = []

    def start(self, target: Callable[..., object], *arguments: object) -> None:
        """Run a client in a thread of its own; what it raises is in `failures`."""

        def run() -> None:
            try:
                target(*arguments)
            except BaseException as failure:  # noqa: BLE001 - shown by the main thread
                self.failures.append(failure)

        thread = threading.Thread(target=run, daemon=True, name=f"{target.__name__} {arguments[:1]}")
        thread.start()
        self.threads.append(thread)

    def start_all(self, seed: int) -> None:
        """Start the clients."""
        for partition in range(LIST):
            self.start(self.produce, f"producer-{partition}", partition)
        for number in range(1, self.each + 1):
            self.start(self.transact, f"transactions-{number}", random.Random(seed + number))
            self.start(self.read_again_and_again, f"consumer-{number}")
            self.start(self.copy, f"{COPY}-{number}", random.Random(seed + 10 + number))
            self.start(self.read_lists, f"list-{number}")
            self.start(self.commit_by_itself, f"{AUTO}-{number}", random.Random(seed + 20 + number))
        self.start(self.commit_and_look, "offsets")

    def progress(self) -> Counter[str]:
        """Count what has been acknowledged: sends by partition, transactions, and transactions that copied records."""
        with self.lock:
            found = Counter(
                f"sends to partition {send.partition}"
                for send in self.sent
                if send.outcome == "ok" and send.transaction is None
            )
        found["transactions"] = list(self.transactions.values()).count("ok")
        found["copies"] = self.copies
        return found

    def wait_for_progress(self, *kinds: str, seconds: float = 90) -> None:
        """Wait until more has been acknowledged of some kinds, or of all that `progress` counts."""
        before = self.progress()
        wanted = kinds or (*(f"sends to partition {number}" for number in range(LIST)), "transactions", "copies")

        def missing() -> list[str]:
            now = self.progress()
            return [kind for kind in wanted if now[kind] <= before[kind]]

        deadline = time.monotonic() + seconds
        while not self.failures and (still := missing()):
            assert time.monotonic() < deadline, f"after {seconds:.0f} s nothing more was acknowledged: {still}"
            self.stopped.wait(0.1)
        assert not self.failures, self.failures

    def stop_all(self, seed: int) -> None:
        """Stop the clients and wait until they have ended."""
        self.stopped.set()
        for thread in self.threads:
            thread.join(120)
            if thread.is_alive():
                faulthandler.dump_traceback()
            assert not thread.is_alive(), f"HAILBUS_SEED={seed}: the client {thread.name} never ended"
        assert not self.failures, f"HAILBUS_SEED={seed}: {self.failures[0]!r}"

    def history(self) -> History:
        """End what is still open, read everything from start to end, and return what happened."""
        for name, number in itertools.product(("transactions", COPY), range(1, self.each + 1)):
            # A successor ends what is still open.
            Producer({**self.common, "transactional.id": f"{name}-{number}"}).init_transactions(60)
        self.stopped.clear()
        final = self.consume("final", 0, until=end_offsets(self.address))
        copied = self.consume("final copy", 0, until=end_offsets(self.address, COPY), topic=COPY)
        return History(
            sent=self.sent,
            polled=self.polled,
            final=final,
            transactions=self.transactions,
            offsets=self.offsets,
            copied=copied,
            stored=stored_batches(self.address),
            handed=[poll for _, poll in sorted(self.handed, key=operator.itemgetter(0))],
            lists=self.lists,
        )

    def check(self, history: History, *, seed: int, ran: str) -> None:
        """Print what the clients did; fail if they did too little to prove anything, or if a promise is broken."""
        __tracebackhide__ = True  # a failure would show the history, which takes minutes
        counts = consume_counts(history)
        longest = max((len(found.values) for found in self.lists), default=0)
        lives = {(poll.process, poll.life) for poll in history.handed}
        interrupted = sum(left > 0 for left in self.uncopied.values())
        ended = {end: list(self.transactions.values()).count(end) for end in ("ok", "fail", "unknown")}
        print(
            f"HAILBUS_SEED={seed}: {ran}, {len(self.sent):,} sends, {len(self.polled):,} polls, transactions {ended},"
            f" {len(history.copied):,} copied with {interrupted} kills in a transaction,"
            f" {len(self.offsets):,} offsets committed or read, {len(history.stored):,} batches,"
            f" {len(self.handed):,} handed over to {len(lives)} lives with auto-commit,"
            f" {len(self.lists):,} reads of a list of {longest:,} values and {self.stale_lists} of an older state;"
            f" each value that was read, {min(counts)} to {max(counts)} times"
        )
        assert ended["ok"], "no transaction was committed: the history proves nothing"
        assert history.copied, "nothing was copied: the history does not prove exactly once"
        assert self.lists, "no list was read as a whole"
        assert has_resumed(self.handed), "no life resumed where another had committed"
        broken = violations(history)
        for check, found in broken.items():
            print(f"{check}:", *found, sep="\n  ")
        assert not broken, f"HAILBUS_SEED={seed}: {sorted(broken)}"

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
                "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
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
            producer.poll(0.001 if self.rate is None else 1 / self.rate)
        left = producer.flush(120)
        assert left == 0, f"{name}: {left} sends without an answer"

    def produce_by_aiokafka(self, name: str, partition: int) -> None:
        """Send to one partition with the client that the SDK uses by default."""
        asyncio.run(self.produce_in_loop(name, partition))

    async def produce_in_loop(self, name: str, partition: int) -> None:
        while not self.stopped.is_set():
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=self.address,
                enable_idempotence=True,
                acks="all",
                request_timeout_ms=20_000,
                retry_backoff_ms=50,
                linger_ms=2,
            )
            with contextlib.suppress(aiokafka.errors.KafkaError):  # a new producer continues
                async with producer:
                    while not self.stopped.is_set():
                        await self.send_one(producer, name, partition)

    async def send_one(self, producer: aiokafka.AIOKafkaProducer, name: str, partition: int) -> None:
        """Send one value; note it whatever happens to it."""
        value = next(self.values)
        outcome: End = "unknown"
        offset = None
        try:
            sent = await producer.send_and_wait(TOPIC, str(value).encode(), partition=partition)
            outcome, offset = "ok", sent.offset
        finally:
            self.record(Sent(process=name, partition=partition, value=value, outcome=outcome, offset=offset))
        await asyncio.sleep(0.01 if self.rate is None else 1 / self.rate)

    def produce_by_java(self, name: str) -> None:
        """Send to all partitions with Apache Kafka's verifiable producer; its values count from 0."""
        servers = ["--bootstrap-server", self.address, "--topic", TOPIC]
        offsets: dict[int, Sent] = {}
        with tempfile.NamedTemporaryFile("w", suffix=".properties") as config:
            config.write(f"delivery.timeout.ms={DELIVERY_TIMEOUT_MS}\n")
            config.flush()
            limits = ["--throughput", "20", "--acks", "-1", "--command-config", config.name]
            self.run_java([apache_kafka(), "run", "verifiable-producer", *servers, *limits], name, offsets)
        # Nobody knows how many more it has sent, nor to which partition.
        for value in set(range(max(offsets, default=0) + 1000)) - set(offsets):
            self.record(Sent(process=name, partition=0, value=value, outcome="unknown"))

    def run_java(self, command: list[str | Path], name: str, offsets: dict[int, Sent]) -> None:
        """Run the verifiable producer until all clients stop, and note what it was acknowledged."""
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"KAFKA_HEAP_OPTS": "-Xmx96m"} | SHORT_LIVED_JVM,
        ) as process:
            threading.Thread(target=self.stop_with_the_others, args=(process,), daemon=True).start()
            assert process.stdout is not None
            for line in process.stdout:
                told = json.loads(line) if line.startswith("{") else {}
                if told.get("name") == "producer_send_success":
                    value, partition = int(told["value"]), told["partition"]
                    offsets[value] = Sent(
                        process=name, partition=partition, value=value, outcome="ok", offset=told["offset"]
                    )
                    self.record(offsets[value])

    def stop_with_the_others(self, process: subprocess.Popen[str]) -> None:
        self.stopped.wait()
        process.terminate()

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
                if self.rate is not None:
                    self.stopped.wait(10 / self.rate)
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
        messages = consumer.consume(most, seconds)
        # librdkafka retries after other errors.
        lost = [str(error) for message in messages if (error := message.error()) is not None and error.code() in LOST]
        assert not lost, f"{name}: {lost}"
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
            for message in messages
            if message.error() is None
            and (partition := message.partition()) is not None
            and (offset := message.offset()) is not None
            and (value := message.value()) is not None
        ]

    def consume(
        self,
        name: str,
        life: int,
        until: dict[int, int] | None = None,
        *,
        topic: str = TOPIC,
        patience_s: float = 60,
    ) -> list[Polled]:
        """Read from the start: the partitions in `until` to these ends, or all of them for a while."""
        consumer = self.reader(name)
        wanted = range(PARTITIONS) if until is None else until
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in wanted])
        got: list[Polled] = []
        deadline = time.monotonic() + patience_s
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
            if self.rate is not None:
                self.stopped.wait(len(got) / 400)  # the history must fit in memory

    def read_lists(self, name: str) -> None:
        """Read one partition as a whole, each time by a new consumer: a list that only grows."""
        for life in itertools.count():
            if self.stopped.is_set():
                return
            with contextlib.suppress(KafkaException):  # the broker was killed before it told the end
                ends = end_offsets(self.address, partitions=[LIST])
                # While brokers fail it may take any time; a reader that never ends is found when the clients stop.
                got = self.consume(name, life, until=ends, patience_s=math.inf)
                with self.lock:
                    self.polled.extend(got)
                self.note_list(name, tuple(poll.value for poll in got))
                # What is read is bounded by the time that there is.
                self.stopped.wait(max(len(got) / 2000, 0 if self.rate is None else 4 / self.rate))

    def note_list(self, name: str, values: tuple[int, ...]) -> None:
        """Note a list that was read as a whole, unless it may be an older state of it and is."""
        before = next((found.values for found in reversed(self.lists) if found.process == name), ())
        if self.may_be_stale and len(values) < len(before) and before[: len(values)] == values:
            self.stale_lists += 1
        else:
            self.lists.append(Listed(process=name, partition=LIST, values=values))

    def commit_by_itself(self, name: str, chance: random.Random) -> None:
        """Be a member of a group that commits by itself, as a process that is killed and started, again and again."""
        arguments = [TOPIC, AUTO]
        for life, (time_ns, records) in self.lives("auto_committer", arguments, chance):
            got = self.take_polled(name, life, records)
            with self.lock:
                self.handed += [(time_ns, poll) for poll in got]

    def copy(self, name: str, chance: random.Random) -> None:
        """Copy the topic exactly once, as one of several members of a group that are killed and started.

        Through kafka-python: librdkafka 2.16 can wait for ever in `send_offsets_to_transaction` when the connection to
        the coordinator breaks during its first step.
        """
        arguments = [TOPIC, COPY, name]
        for life, (_, records) in self.lives("copier", arguments, chance):
            if records:
                self.take_polled(name, life, records)
                self.uncopied[name, life] += 1
            else:
                self.uncopied[name, life] = 0
                with self.lock:
                    self.copies += 1

    def lives(
        self, script: str, arguments: list[str], chance: random.Random
    ) -> Iterator[tuple[int, tuple[int, list[str]]]]:
        """Run a client as a process that is killed and started, and yield its life, and the time and words of a line.

        kafka-python keeps connecting in threads of its own when one of its steps never ends. Its clients are therefore
        processes, which can be killed.
        """
        command = [sys.executable, "-m", f"tests.history.{script}", self.address, *arguments]
        fruitless = 0  # lives in a row that ended before a commit was told
        for life in itertools.count():
            if self.stopped.is_set():
                return
            with (
                tempfile.TemporaryFile("w+") as log,
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT) as process,
            ):
                has_begun = threading.Event()
                # On a busy machine no life may be long enough for a commit.
                end = (process, has_begun, chance.uniform(*self.life_s) * min(2**fruitless, LONGER_AT_MOST))
                fruitless += script == "copier"
                threading.Thread(target=self.end_life, args=end, daemon=True).start()
                assert process.stdout is not None
                for line in process.stdout:
                    if line.endswith("\n"):  # else killed while it wrote, so it did nothing with what it was handed
                        time_ns, *words = line.split()
                        fruitless = fruitless if words else 0
                        yield life, (int(time_ns), words)
                        has_begun.set()
                if process.wait() != -signal.SIGKILL:
                    log.seek(0)
                    raise AssertionError(f"{script} ended by itself: {process.returncode}\n{log.read()[-3000:]}")

    def end_life(self, process: subprocess.Popen[str], has_begun: threading.Event, life_s: float) -> None:
        """Kill a process some time after its first line: a busy machine takes long to start it."""
        while not has_begun.wait(0.1) and not self.stopped.is_set() and process.poll() is None:
            pass
        self.stopped.wait(life_s)
        process.kill()

    def take_polled(self, name: str, life: int, records: list[str]) -> list[Polled]:
        """Note what a process was handed by one poll."""
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
        return got

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
            if self.rate is not None:
                self.stopped.wait(1 / self.rate)
        consumer.close()

    def note_offset(self, group: str, partition: int, offset: int, *, is_read: bool, outcome: End = "ok") -> None:
        self.offsets.append(
            Committed(group=group, partition=partition, offset=offset, is_read=is_read, outcome=outcome)
        )


def stored_batches(address: str) -> list[Stored]:
    """Every batch of the topic in the log of its leader."""
    metadata = AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(TOPIC, timeout=30)
    found = []
    for partition in range(PARTITIONS):
        leader = metadata.brokers[metadata.topics[TOPIC].partitions[partition].leader]
        wire = Wire(f"{leader.host}:{leader.port}")
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


def create_topics(address: str, *, replicas: int = 1) -> None:
    """Create the topics of the clients."""
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_topics([NewTopic(topic, PARTITIONS, replicas) for topic in (TOPIC, COPY)]).values():
        future.result()


def has_resumed(handed: Sequence[tuple[int, Polled]]) -> bool:
    """Whether a consumer that commits by itself was killed, and its next life began where it had committed."""
    first = {
        (poll.process, poll.life): poll.offset for _, poll in sorted(handed, key=operator.itemgetter(0), reverse=True)
    }
    return any(life and offset for (_, life), offset in first.items())
