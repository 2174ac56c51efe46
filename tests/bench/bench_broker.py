"""The in-house broker side by side with Apache Kafka on this machine: one client, the same settings, alternating.

`just bench-broker` runs all of it (about half an hour), `just bench-broker --quick` what the bars speak of (two to
three minutes where nothing else runs), `--only throughput,latency` some, `--nodes 3` three nodes of each. Figures are
medians of the rounds; the ratio is ours over Apache Kafka's. CPU seconds are the broker process's own: a busy machine
changes them little, and times a lot.
"""

import argparse
import contextlib
import functools
import os
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.bench.report import Row, Run, cpu_s  # noqa: E402 - it runs as a script, too
from tests.support import free_port  # noqa: E402 - the path is set before

APACHE_KAFKA = Path(os.environ.get("HAILBUS_SHARED", ROOT.parent / "shared")) / "apache-kafka" / "kafka"
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Serving(Protocol):
    """A broker, or a cluster of them, that clients can use."""

    directory: Path

    @property
    def bootstrap(self) -> str: ...


@dataclass(slots=True, kw_only=True)
class Broker:
    """A running broker process."""

    name: str
    directory: Path
    settings: dict[str, str]
    port: int = field(default_factory=free_port)
    pid: int = 0
    process: subprocess.Popen[str] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        if self.name == "hailbus":
            command: list[str | Path] = [
                Path(sys.executable).parent / "hailbus-broker",
                "serve",
                "--listen",
                self.bootstrap,
            ]
            command += ["--data-dir", self.directory / "data"]
            command += [f"--set={name}={value}" for name, value in self.settings.items()]
            with (self.directory / "broker.log").open("ab") as log:
                self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
            assert self.process.stdout is not None
            line = self.process.stdout.readline()
            assert line.startswith("bootstrap="), (self.directory / "broker.log").read_text()[-2000:]
            self.pid = self.process.pid
            return
        properties = self.directory / "more.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in self.settings.items()))
        subprocess.run(
            [APACHE_KAFKA, "start", "--port", str(self.port), "--dir", self.directory, "--properties", properties],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        self.pid = listener_of(self.port)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(30)
            if self.process.stdout is not None:
                self.process.stdout.close()
        else:
            subprocess.run([APACHE_KAFKA, "stop", "--dir", self.directory], check=False, capture_output=True)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()
        else:
            wait_until(lambda: not Path(f"/proc/{self.pid}").exists(), "the killed process is gone")

    def cpu_s(self) -> float:
        """CPU seconds that it has used so far."""
        return cpu_s(self.pid)

    def peak_rss_mb(self) -> float:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6

    def rss_mb(self) -> float:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * PAGE_BYTES / 1e6


def listener_of(port: int) -> int:
    """Return the process that listens on a port of this machine."""
    inode = None
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            columns = line.split()
            if columns[1].endswith(f":{port:04X}") and columns[3] == "0A":
                inode = columns[9]
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if str(link.readlink()) == f"socket:[{inode}]":
                return int(link.parts[2])
    raise SystemExit(f"nothing listens on port {port}")


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"never came: {what}")
        time.sleep(0.002)


def serves(bootstrap: str) -> bool:
    """Whether the broker answers ApiVersions v0 on a new connection."""
    host, port = bootstrap.split(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 0.5) as connection:
        connection.settimeout(0.5)
        connection.sendall(bytes.fromhex("0000000a 0012 0000 00000001 0000"))
        return len(connection.recv(64)) > 0
    return False


@contextlib.contextmanager
def running(name: str, **settings: str) -> Iterator[Broker]:
    directory = Path(tempfile.mkdtemp(prefix=f"bench-{name}-"))
    defaults = {
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": "4",
        "log.segment.delete.delay.ms": "500",
    }
    broker = Broker(name=name, directory=directory, settings=defaults | settings)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()
        shutil.rmtree(directory, ignore_errors=True)


def no_sync(name: str) -> dict[str, str]:
    """What makes the broker leave syncing to the operating system, as Apache Kafka does by default."""
    return {"log.flush.interval.messages": str(2**63 - 1)} if name == "hailbus" else {}


def group_sync(name: str) -> dict[str, str]:
    """What makes the broker sync before it acks: ours by default, for Apache Kafka after each append."""
    return {} if name == "hailbus" else {"log.flush.interval.messages": "1"}


def client_of(broker: Serving) -> dict[str, str | int | float | bool]:
    """What all clients have in common; that a killed broker is away is no news."""
    return {"bootstrap.servers": broker.bootstrap, "log_level": 0}


def create(broker: Serving, topic: str, partitions: int = 1) -> None:
    admin = AdminClient(client_of(broker))
    admin.create_topics([NewTopic(topic, partitions, -1)])[topic].result()


def delete(broker: Serving, topic: str) -> None:
    """Delete a topic and wait until its files are gone, so that the next one is written to memory in use.

    In a virtual machine that touches memory for the first time the host's work for it, up to 2 s per GB, counts as the
    CPU time of the writer.
    """
    admin = AdminClient(client_of(broker))  # alive until the answer has come
    admin.delete_topics([topic])[topic].result()

    def is_gone() -> bool:
        return not any(name.startswith(f"{topic}-0") for _, names, _ in os.walk(broker.directory) for name in names)

    wait_until(is_gone, f"the files of {topic} are gone")


def produce(broker: Serving, topic: str, *, count: int, payload: bytes, **options: object) -> float:
    """Produce and wait for all acks. Returns seconds."""
    producer = Producer({**client_of(broker), "queue.buffering.max.messages": 500_000, **options})
    failed: list[object] = []

    def done(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    began = time.perf_counter()
    for number in range(count):
        while True:
            try:
                producer.produce(topic, payload, partition=0, on_delivery=done)
                break
            except BufferError:
                producer.poll(0.01)
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush(120)
    assert not failed, failed[0]
    return time.perf_counter() - began


def consume(broker: Serving, topic: str, *, count: int, offset: int = OFFSET_BEGINNING) -> float:
    """Read so many records. Returns seconds."""
    consumer = Consumer(
        {
            **client_of(broker),
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 1,
            "queued.max.messages.kbytes": 65_536,
        }
    )
    consumer.assign([TopicPartition(topic, 0, offset)])
    got = 0
    began = time.perf_counter()
    while got < count:
        got += len(consumer.consume(10_000, 1))
    took = time.perf_counter() - began
    consumer.close()
    return took


class Report:
    """The figures of both brokers and their ratio, ours over Apache Kafka's."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def heading(self, title: str, condition: str) -> None:
        self.run.table(title, condition=condition, columns=("hailbus", "Apache Kafka", "ratio"))

    def add(self, what: str, unit: str, ours: list[float], theirs: list[float]) -> None:
        self.run.add(what, unit, ours, theirs, [statistics.median(ours) / statistics.median(theirs)])


NAMES = ("hailbus", "apache")
CONDITIONS = {"not synced": "neither broker syncs before the ack", "group fsync": "both brokers sync before each ack"}


def both(stack: contextlib.ExitStack, settings: Callable[[str], dict[str, str]]) -> dict[str, Broker]:
    return {name: stack.enter_context(running(name, **settings(name))) for name in NAMES}


LATENCY_RATES = (1000, 10_000)
SMALL_BATCHES: dict[str, object] = {"linger.ms": 0, "batch.size": 16_384}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One way to produce and consume."""

    size: int
    acks: str = "all"
    codec: str = "none"
    has_small_batches: bool = False

    @property
    def options(self) -> dict[str, object]:
        batches = SMALL_BATCHES if self.has_small_batches else {}
        return {"acks": self.acks, "compression.type": self.codec, **batches}

    def __str__(self) -> str:
        batches = "16 KiB" if self.has_small_batches else "default batches"
        return f"{self.size:,} B, acks={self.acks}, {self.codec}, {batches}"


BAR_CASES = tuple(Case(size=size, has_small_batches=small) for size in (100, 1000) for small in (False, True))
MORE_CASES = (
    *(Case(size=size, acks="1") for size in (100, 1000)),
    *(Case(size=10_000, acks=acks) for acks in ("1", "all")),
    *(Case(size=1000, codec=codec) for codec in ("lz4", "zstd")),
)


def warm_up(brokers: dict[str, Broker], count: int) -> None:
    """Connections, page cache, and for the JVM's compiler thousands of requests of either kind."""
    for broker in brokers.values():
        create(broker, "warm")
        produce(broker, "warm", count=count, payload=os.urandom(1000), **SMALL_BATCHES)
        consume(broker, "warm", count=count)


def throughput(report: Report, *, rounds: int, quick: bool) -> None:
    """MB/s through the machine and broker CPU seconds per GB, produced and consumed."""
    for sync_name, settings in (("not synced", no_sync), ("group fsync", group_sync)):
        if sync_name == "group fsync" and quick:
            continue  # `fsync` has what the bar speaks of
        report.heading("Throughput: confluent-kafka, one partition", CONDITIONS[sync_name])
        with contextlib.ExitStack() as stack:
            brokers = both(stack, settings)
            warm_up(brokers, 60_000 if quick else 200_000)
            for case in BAR_CASES if quick else (*BAR_CASES, *MORE_CASES):
                total = 80_000_000 if quick or sync_name == "group fsync" else 300_000_000
                count = min(400_000, total // case.size)
                figures: dict[tuple[str, str], list[float]] = {}
                payload = os.urandom(case.size // 2).hex().encode()
                for number in range(rounds):
                    for name, broker in brokers.items():
                        topic = f"t-{case.size}-{case.acks}-{case.codec}-{case.has_small_batches}-{number}"
                        create(broker, topic)
                        gigabytes = case.size * count / 1e9
                        before = broker.cpu_s()
                        took = produce(broker, topic, count=count, payload=payload, **case.options)
                        figures.setdefault((name, "produce"), []).append(gigabytes * 1000 / took)
                        figures.setdefault((name, "produce, CPU"), []).append((broker.cpu_s() - before) / gigabytes)
                        before = broker.cpu_s()
                        took = consume(broker, topic, count=count)
                        figures.setdefault((name, "consume"), []).append(gigabytes * 1000 / took)
                        figures.setdefault((name, "consume, CPU"), []).append((broker.cpu_s() - before) / gigabytes)
                        delete(broker, topic)
                for quantity in ("produce", "produce, CPU", "consume", "consume, CPU"):
                    unit = "s per GB" if quantity.endswith("CPU") else "MB/s"
                    ours, theirs = figures["hailbus", quantity], figures["apache", quantity]
                    report.add(f"{case}, {sync_name}: {quantity}", unit, ours, theirs)
            peaks = [[brokers[name].peak_rss_mb()] for name in NAMES]
            report.add(f"highest RSS under this load, {sync_name}", "MB", *peaks)


def fsync(report: Report, *, rounds: int, quick: bool) -> None:
    """Producing with a sync before each ack against the same without, alternating."""
    report.heading("Synced against not synced: 1,000 B, acks=all, 16 KiB batches", "both, as named")
    figures: dict[tuple[str, str], list[float]] = {}
    count = 60_000 if quick else 200_000
    with contextlib.ExitStack() as stack:
        brokers = {
            (name, kind): stack.enter_context(running(name, **settings(name)))
            for name in NAMES
            for kind, settings in (("not synced", no_sync), ("synced", group_sync))
        }
        for broker in brokers.values():
            create(broker, "synced")
            produce(broker, "synced", count=20_000, payload=os.urandom(1000), **SMALL_BATCHES)
        for _ in range(max(rounds, 3)):
            for key, broker in brokers.items():
                took = produce(broker, "synced", count=count, payload=os.urandom(1000), **SMALL_BATCHES)
                figures.setdefault(key, []).append(count / 1000 / took)
    for kind in ("not synced", "synced"):
        report.add(f"{kind}: produce", "MB/s", figures["hailbus", kind], figures["apache", kind])
    shares = []
    for name in NAMES:
        pairs = zip(figures[name, "synced"], figures[name, "not synced"], strict=True)
        shares.append([synced / unsynced for synced, unsynced in pairs])
    report.add("synced as a share of not synced", "", *shares)


def growth(report: Report, *, rounds: int, quick: bool, large_log_gb: float) -> None:
    """What a message costs at the end of an empty and of a large log, and a start with that log after SIGKILL."""
    del rounds
    report.heading(f"An empty log and one of {large_log_gb:g} GB: 1,000 B, 16 KiB batches", CONDITIONS["not synced"])
    figures: dict[tuple[str, str], float] = {}
    count = 30_000 if quick else 100_000
    payload = os.urandom(1000)
    for name in NAMES:
        with running(name, **no_sync(name)) as broker:
            warm_up({name: broker}, count)
            for topic in ("empty", "large"):
                create(broker, topic)
                if topic == "large":
                    filling = os.urandom(100_000)
                    options = {"queue.buffering.max.kbytes": 200_000}
                    produce(broker, topic, count=int(large_log_gb * 10_000), payload=filling, **options)
                end = int(large_log_gb * 10_000) if topic == "large" else 0
                before = broker.cpu_s()
                produce(broker, topic, count=count, payload=payload, **SMALL_BATCHES)
                figures[name, f"produce to the {topic} log, CPU"] = (broker.cpu_s() - before) / count * 1e6
                before = broker.cpu_s()
                consume(broker, topic, count=count, offset=end)
                figures[name, f"consume the end of the {topic} log, CPU"] = (broker.cpu_s() - before) / count * 1e6
            figures[name, "RSS with the large log"] = broker.rss_mb()
            broker.kill()
            figures[name, "serving after SIGKILL, large log"] = start_to_serving(broker)
    for what in dict.fromkeys(what for _, what in figures):
        unit = "µs per message" if what.endswith("CPU") else "MB" if what.startswith("RSS") else "s"
        report.add(what, unit, [figures["hailbus", what]], [figures["apache", what]])


def start_to_serving(broker: Broker) -> float:
    """Start a broker and return the seconds until it answers."""
    began = time.monotonic()
    starter = threading.Thread(target=broker.start)
    starter.start()
    wait_until(functools.partial(serves, broker.bootstrap), "the broker serves")
    took = time.monotonic() - began
    starter.join()
    return took


def end_to_end(broker: Serving, *, per_s: int, seconds: float) -> list[float]:
    """Latencies in ms of single records at a fixed rate, counted from when each was due to be sent."""
    topic = f"latency-{per_s}-{time.monotonic_ns()}"
    create(broker, topic)
    consumer = Consumer(
        {
            **client_of(broker),
            "group.id": "latency",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    producer = Producer({**client_of(broker), "acks": "all", "linger.ms": 0})
    total = int(per_s * seconds)
    latencies: list[float] = []

    def send() -> None:
        began = time.monotonic_ns() + 200_000_000
        for number in range(total):
            due = began + number * 1_000_000_000 // per_s
            producer.poll(0)
            if (left := due - time.monotonic_ns()) > 0:
                time.sleep(left / 1e9)  # a poll shorter than a millisecond would be a busy loop
            producer.produce(topic, str(due).encode().ljust(1000), partition=0)
        producer.flush(60)

    sender = threading.Thread(target=send)
    sender.start()
    deadline = time.monotonic() + seconds + 120
    while len(latencies) < total:
        assert time.monotonic() < deadline, f"{len(latencies)} of {total} records came"
        message = consumer.poll(0.05)  # not `consume`, which waits until it has as many as were asked for
        if message is not None and (value := message.value()) is not None:
            latencies.append((time.monotonic_ns() - int(value)) / 1e6)
    sender.join()
    consumer.close()
    delete(broker, topic)
    return latencies[total // 5 :]  # the first fifth warms up


def latency(report: Report, *, rounds: int, quick: bool) -> None:
    """End to end at fixed rates, linger 0, acks=all, 1 KB, both ways; no coordinated omission."""
    for sync_name, settings in (("not synced", no_sync), ("group fsync", group_sync)):
        if sync_name == "group fsync" and quick:
            continue
        report.heading("End-to-end latency: linger 0, acks=all, 1 KB", CONDITIONS[sync_name])
        _latency(report, settings, sync_name, rounds=rounds, quick=quick)


def _latency(
    report: Report, settings: Callable[[str], dict[str, str]], sync_name: str, *, rounds: int, quick: bool
) -> None:
    """Measure one broker after the other: neither waits for cores that the other uses while it is idle."""
    found: dict[tuple[int, str], list[list[float]]] = {}
    used: dict[tuple[int, str], list[float]] = {}
    seconds = 4 if quick else 10
    for name in NAMES:
        with running(name, **settings(name)) as broker:
            end_to_end(broker, per_s=1000, seconds=3)
            for per_s in LATENCY_RATES:
                for _ in range(rounds):
                    before = broker.cpu_s()
                    found.setdefault((per_s, name), []).append(sorted(end_to_end(broker, per_s=per_s, seconds=seconds)))
                    spent_us = (broker.cpu_s() - before) / (per_s * seconds) * 1e6
                    used.setdefault((per_s, name), []).append(spent_us)
    for per_s in LATENCY_RATES:
        for share, label in ((0.5, "p50"), (0.99, "p99"), (0.999, "p99.9")):
            ours, theirs = ([run[int(len(run) * share)] for run in found[per_s, name]] for name in NAMES)
            report.add(f"{per_s:,} messages/s, {sync_name}: {label}", "ms", ours, theirs)
        ours, theirs = (used[per_s, name] for name in NAMES)
        report.add(f"{per_s:,} messages/s, {sync_name}: CPU", "µs per message", ours, theirs)


def footprint(report: Report, *, rounds: int, quick: bool) -> None:
    """Start to serving, start to first acked produce, idle memory, serving again after SIGKILL under load."""
    report.heading("Footprint", "defaults: hailbus syncs before each ack, Apache Kafka does not")
    figures: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for name in NAMES:
            directory = Path(tempfile.mkdtemp(prefix="bench-start-"))
            broker = Broker(name=name, directory=directory, settings={})
            began = time.monotonic()
            figures.setdefault((name, "start to serving"), []).append(start_to_serving(broker))
            figures.setdefault((name, "start to serving, CPU"), []).append(broker.cpu_s())
            create(broker, "first")
            produce(broker, "first", count=1, payload=b"x")
            figures.setdefault((name, "start to first acked produce"), []).append(time.monotonic() - began)
            figures.setdefault((name, "idle RSS"), []).append(broker.rss_mb())
            load = threading.Thread(target=quietly, args=(broker, 200_000 if quick else 600_000))
            load.start()
            time.sleep(1)
            broker.kill()
            figures.setdefault((name, "serving again after SIGKILL under load"), []).append(start_to_serving(broker))
            figures.setdefault((name, "serving again, CPU"), []).append(broker.cpu_s())
            load.join()
            figures.setdefault((name, "highest RSS under load"), []).append(broker.peak_rss_mb())
            broker.stop()
            shutil.rmtree(directory, ignore_errors=True)
    for quantity in dict.fromkeys(quantity for _, quantity in figures):
        unit = "MB" if "RSS" in quantity else "s"
        report.add(quantity, unit, figures["hailbus", quantity], figures["apache", quantity])


def quietly(broker: Broker, count: int) -> None:
    """Load whose end does not matter."""
    with contextlib.suppress(KafkaException, AssertionError):
        produce(broker, "first", count=count, payload=b"x" * 1000)


def scale(report: Report, *, rounds: int, quick: bool) -> None:
    """1,000 partitions, 2,000 connections, a storm of commits by 100 groups."""
    del rounds
    partition_bytes = 100_000 if quick else 1_000_000
    report.heading("Scale", "defaults: hailbus syncs before each ack, Apache Kafka does not")
    figures: dict[tuple[str, str], float] = {}
    for name in NAMES:
        with running(name) as broker:
            began = time.monotonic()
            create(broker, "wide", 1000)
            figures[name, "create a topic of 1,000 partitions, s"] = time.monotonic() - began
            figures[name, "RSS with 1,000 partitions, MB"] = broker.rss_mb()
            resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
            before = broker.rss_mb()
            with contextlib.ExitStack() as stack:
                for _ in range(2000):
                    connection = stack.enter_context(socket.create_connection(("127.0.0.1", broker.port)))
                    connection.sendall(bytes.fromhex("0000000a 0012 0000 00000001 0000"))
                    assert connection.recv(64)
                figures[name, "RSS of 2,000 idle connections, MB"] = broker.rss_mb() - before
            create(broker, "committed", 10)
            consumers = [
                Consumer({**client_of(broker), "group.id": f"storm-{n}", "enable.auto.commit": False})
                for n in range(100)
            ]
            used = broker.cpu_s()
            began = time.monotonic()
            for number in range(20):
                offsets = [TopicPartition("committed", partition, number) for partition in range(10)]
                for consumer in consumers:
                    consumer.commit(offsets=offsets, asynchronous=True)
            for consumer in consumers:
                consumer.commit(offsets=[TopicPartition("committed", 0, 99)], asynchronous=False)
            figures[name, "20 commits each by 100 groups, s"] = time.monotonic() - began
            figures[name, "the same, broker CPU s"] = broker.cpu_s() - used
            for consumer in consumers:
                consumer.close()
            fill(broker, "wide", partitions=1000, partition_bytes=partition_bytes)
            broker.kill()
            what = f"serving after SIGKILL, 1,000 partitions of {partition_bytes / 1e6:g} MB"
            figures[name, f"{what}, s"] = start_to_serving(broker)
            figures[name, f"{what}, CPU s"] = broker.cpu_s()
    for what in dict.fromkeys(what for _, what in figures):
        report.add(
            what.rsplit(",", 1)[0], what.rsplit(", ", 1)[1], [figures["hailbus", what]], [figures["apache", what]]
        )


def fill(broker: Broker, topic: str, *, partitions: int, partition_bytes: int) -> None:
    """Put so many bytes into each partition."""
    producer = Producer({**client_of(broker), "queue.buffering.max.messages": 500_000, "linger.ms": 50})
    payload = os.urandom(10_000)
    for partition in range(partitions):
        for _ in range(partition_bytes // len(payload)):
            while True:
                try:
                    producer.produce(topic, payload, partition=partition)
                    break
                except BufferError:
                    producer.poll(0.01)
    assert producer.flush(120) == 0


# The first four have the bars.
PARTS: dict[str, Callable[..., None]] = {
    "footprint": footprint,
    "throughput": throughput,
    "fsync": fsync,
    "latency": latency,
    "scale": scale,
    "growth": growth,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """What a figure has to keep to: our own value, or the ratio of ours to Apache Kafka's."""

    what: str
    limit: float
    is_ratio: bool = False
    is_least: bool = False

    def line(self, row: Row) -> str:
        ours, _, ratio = row.medians
        value = ratio if self.is_ratio else ours
        is_met = value >= self.limit if self.is_least else value <= self.limit
        sign = "≥" if self.is_least else "≤"
        unit = "× Apache Kafka's" if self.is_ratio else row.unit
        return f"{'met   ' if is_met else 'MISSED'} {self.what:<70} {value:10.2f} {sign} {self.limit:g} {unit}"


BARS = (
    Bar(what="start to serving", limit=0.3),
    Bar(what="serving again after SIGKILL under load", limit=1.0),
    Bar(what="idle RSS", limit=80),
    Bar(what="highest RSS under load", limit=200),
    Bar(what="highest RSS under this load, not synced", limit=200),
    *(
        Bar(what=f"{case}, {sync_name}: {quantity}, CPU", limit=limit, is_ratio=True)
        for sync_name in ("not synced", "group fsync")
        for quantity, limit in (("produce", 0.5), ("consume", 1.0))
        for case in BAR_CASES
    ),
    Bar(what="10,000 messages/s, not synced: p99", limit=10),
    Bar(what="1,000 messages/s, not synced: p99", limit=1.0, is_ratio=True),
    Bar(what="synced as a share of not synced", limit=0.7, is_least=True),
)


def main(arguments: Sequence[str]) -> None:
    from tests.bench import bench_cluster  # it builds on this module

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the cases that have a bar, in fewer rounds")
    parser.add_argument("--rounds", type=int, help="alternations of the two brokers (3, with --quick 1)")
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=1, help="so many of each broker")
    parser.add_argument(
        "--only", help=f"some of {','.join(PARTS)}; of three nodes some of {','.join(bench_cluster.PARTS)}"
    )
    parser.add_argument(
        "--large-log-gb", type=float, help="the large log of `growth` (20, with --quick 0.5); needs as much room"
    )
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args(arguments)
    parts = PARTS if options.nodes == 1 else bench_cluster.PARTS
    usual = list(parts)[: 4 if options.quick else None]
    chosen = options.only.split(",") if options.only else usual
    if unknown := set(chosen) - set(parts):
        parser.error(f"--only knows {', '.join(parts)}, not {', '.join(sorted(unknown))}")
    if not APACHE_KAFKA.exists():
        sys.exit("Apache Kafka is compared with: its start script is looked for beside the clone or at HAILBUS_SHARED")
    rounds = options.rounds or (1 if options.quick else 3)
    run = Run(f"just bench-broker {' '.join(arguments)}".strip(), rounds=rounds)
    report = Report(run)
    for name in chosen:
        extra = {}
        if name == "growth":
            extra["large_log_gb"] = options.large_log_gb or (0.5 if options.quick else 20.0)
        parts[name](report, rounds=rounds, quick=options.quick, **extra)
    found = {row.what: row for table in run.tables for row in table.rows}
    print("\nBars")
    for bar in (*BARS, *bench_cluster.BARS):
        if bar.what in found:
            print(bar.line(found[bar.what]))
    if options.json:
        run.write(options.json)


if __name__ == "__main__":
    main(sys.argv[1:])
