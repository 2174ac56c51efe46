"""Three nodes of the in-house broker side by side with three of Apache Kafka: `just bench-broker --nodes 3`.

Every node is broker and controller, factor 3, `min.insync.replicas` 2. CPU seconds are those of all nodes together.
A failover begins with a cluster of its own, whose leader is also active controller and group coordinator where that is
said; a producer sends every few milliseconds, and the figure is the longest time in which no record was acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Self

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from hailbus_broker.client import Client
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.describe_quorum_request import DescribeQuorumRequest, PartitionData, TopicData
from hailbus_broker.protocol.definitions.find_coordinator_request import FindCoordinatorRequest

from tests.bench.bench_broker import (
    APACHE_KAFKA,
    CONDITIONS,
    NAMES,
    PAGE_BYTES,
    SMALL_BATCHES,
    Bar,
    Case,
    Report,
    client_of,
    consume,
    create,
    delete,
    end_to_end,
    group_sync,
    listener_of,
    no_sync,
    produce,
    serves,
    wait_until,
)
from tests.bench.report import cpu_s
from tests.support import free_port

NODES = 3
SETTINGS = {
    "default.replication.factor": str(NODES),
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": str(NODES),
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": str(NODES),
    "transaction.state.log.min.isr": "2",
    "group.initial.rebalance.delay.ms": "0",
    "log.segment.delete.delay.ms": "500",
}
FURTHER_PORTS = (1, 2, 10, 11, 12)
"""Nodes listen on three ports beginning with the first, Apache Kafka's controllers on those ten above."""
LATENCY_RATES = (1000, 5000)
SEND_EVERY_S = 0.005
SETTLE_S = 3.0
"""A failover begins after so long under load, and is given `RECOVERY_S` to end."""
RECOVERY_S = 15.0
SUSPEND_S = 20.0


@dataclass(slots=True, kw_only=True)
class Cluster:
    """Three nodes, each a process."""

    name: str
    directory: Path
    settings: dict[str, str]
    port: int
    addresses: list[str] = field(default_factory=list)
    pids: dict[int, int] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None

    @property
    def bootstrap(self) -> str:
        return ",".join(self.addresses)

    def start(self) -> None:
        """Start all nodes and wait until they serve."""
        if self.name == "hailbus":
            command: list[str | Path] = [Path(sys.executable).parent / "hailbus-broker", "cluster", f"--nodes={NODES}"]
            command += ["--data-dir", self.directory / "data", "--listen", f"127.0.0.1:{self.port}"]
            command += [f"--set={name}={value}" for name, value in self.settings.items()]
            with (self.directory / "cluster.log").open("ab") as log:
                self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
            assert self.process.stdout is not None
            line = self.process.stdout.readline()
            assert line.startswith("bootstrap="), (self.directory / "cluster.log").read_text()[-2000:]
            self.addresses = line.removeprefix("bootstrap=").strip().split(",")
        else:
            properties = self.directory / "more.properties"
            properties.write_text("".join(f"{name}={value}\n" for name, value in self.settings.items()))
            command = [APACHE_KAFKA, "start", "--nodes", str(NODES), "--port", str(self.port)]
            command += ["--dir", self.directory, "--properties", properties]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            self.addresses = [f"127.0.0.1:{self.port + number}" for number in range(NODES)]
        admin = AdminClient(client_of(self))  # alive until the answer has come
        brokers = admin.describe_cluster().result().nodes
        self.pids = {broker.id: listener_of(broker.port) for broker in brokers}
        assert len(self.pids) == NODES, brokers

    def stop(self) -> None:
        for pid in self.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        if self.process is not None:
            self.process.terminate()
            self.process.wait(60)
            if self.process.stdout is not None:
                self.process.stdout.close()
        else:
            subprocess.run([APACHE_KAFKA, "stop", "--dir", self.directory], check=False, capture_output=True)

    def cpu_s(self) -> float:
        """CPU seconds that all nodes have used so far."""
        return sum(cpu_s(pid) for pid in self.pids.values())

    def rss_mb(self) -> float:
        """Memory of the largest node."""
        sizes = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.pids.values()]
        return max(sizes) * PAGE_BYTES / 1e6

    def active_controller(self) -> int:
        """The node that leads the quorum."""

        async def ask() -> int:
            partition = PartitionData(partition_index=0)
            topic = TopicData(topic_name="__cluster_metadata", partitions=[partition])
            client = Client(self.addresses[0], "bench", timeout_s=10)
            try:
                answer = await client.ask(ApiKey.DESCRIBE_QUORUM, 1, DescribeQuorumRequest(topics=[topic]))
            finally:
                client.close()
            return int(answer.topics[0].partitions[0].leader_id)

        return asyncio.run(ask())

    def group_at(self, node_id: int) -> str:
        """The name of a group whose coordinator is a node."""

        async def ask() -> str:
            client = Client(self.addresses[0], "bench", timeout_s=10)
            try:
                deadline = time.monotonic() + 60
                while time.monotonic() < deadline:
                    names = [f"group-{number}" for number in range(32)]
                    request = FindCoordinatorRequest(key_type=0, coordinator_keys=names)
                    answer = await client.ask(ApiKey.FIND_COORDINATOR, 4, request)
                    found = [one.key for one in answer.coordinators if not one.error_code and one.node_id == node_id]
                    if found:
                        return str(found[0])
                    await asyncio.sleep(0.1)
            finally:
                client.close()
            raise SystemExit(f"no group has its coordinator on node {node_id}")

        return asyncio.run(ask())


@contextlib.contextmanager
def cluster_of(name: str, **settings: str) -> Iterator[Cluster]:
    """Run three nodes."""
    directory = Path(tempfile.mkdtemp(prefix=f"bench-{name}-"))
    cluster = Cluster(name=name, directory=directory, settings=SETTINGS | settings, port=free_port(also=FURTHER_PORTS))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(directory, ignore_errors=True)


def both(stack: contextlib.ExitStack, settings: Callable[[str], dict[str, str]]) -> dict[str, Cluster]:
    return {name: stack.enter_context(cluster_of(name, **settings(name))) for name in NAMES}


# ---------------------------------------------------------------------------------------------------- start and memory


def footprint(report: Report, *, rounds: int, quick: bool) -> None:
    """Start of three nodes to serving, and memory of the largest: idle, under load, with 1,000 partitions."""
    report.heading("Three nodes: footprint", "defaults: hailbus syncs before each ack, Apache Kafka does not")
    figures: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for name in NAMES:
            directory = Path(tempfile.mkdtemp(prefix="bench-start-"))
            cluster = Cluster(name=name, directory=directory, settings=SETTINGS, port=free_port(also=FURTHER_PORTS))
            try:
                began = time.monotonic()
                cluster.start()
                wait_until(lambda: all(map(serves, cluster.addresses)), "all nodes serve")  # noqa: B023 called here
                figures.setdefault((name, "start to serving"), []).append(time.monotonic() - began)
                figures.setdefault((name, "start to serving, CPU"), []).append(cluster.cpu_s())
                figures.setdefault((name, "RSS of a node, idle"), []).append(cluster.rss_mb())
                create(cluster, "load", 3)
                produce(cluster, "load", count=50_000 if quick else 200_000, payload=b"x" * 1000, acks="all")
                figures.setdefault((name, "RSS of a node, under load"), []).append(cluster.rss_mb())
            finally:
                cluster.stop()
            shutil.rmtree(directory, ignore_errors=True)
            with cluster_of(name) as other:
                create(other, "wide", 1000)
                figures.setdefault((name, "RSS of a node, 1,000 partitions"), []).append(other.rss_mb())
    for quantity in dict.fromkeys(quantity for _, quantity in figures):
        unit = "MB" if "RSS" in quantity else "s"
        report.add(f"three nodes: {quantity}", unit, figures["hailbus", quantity], figures["apache", quantity])


# ---------------------------------------------------------------------------------------------------- throughput


CASES = tuple(Case(size=1000, has_small_batches=small) for small in (False, True))


def throughput(report: Report, *, rounds: int, quick: bool) -> None:
    """MB/s through three nodes and their CPU seconds per GB; neither syncs."""
    report.heading("Three nodes: throughput, factor 3, one partition", CONDITIONS["not synced"])
    figures: dict[tuple[str, str], list[float]] = {}
    with contextlib.ExitStack() as stack:
        clusters = both(stack, no_sync)
        for cluster in clusters.values():
            create(cluster, "warm")
            produce(cluster, "warm", count=30_000 if quick else 100_000, payload=os.urandom(1000), **SMALL_BATCHES)
        for case in CASES:
            count = 80_000 if quick else 200_000
            payload = os.urandom(case.size // 2).hex().encode()
            for number in range(rounds):
                for name, cluster in clusters.items():
                    topic = f"t-{case.has_small_batches}-{number}"
                    create(cluster, topic)
                    gigabytes = case.size * count / 1e9
                    before = cluster.cpu_s()
                    took = produce(cluster, topic, count=count, payload=payload, **case.options)
                    figures.setdefault((name, f"{case}: produce"), []).append(gigabytes * 1000 / took)
                    used = (cluster.cpu_s() - before) / gigabytes
                    figures.setdefault((name, f"{case}: produce, CPU of all nodes"), []).append(used)
                    consume(cluster, topic, count=count)
                    delete(cluster, topic)
    for what in dict.fromkeys(what for _, what in figures):
        unit = "s per GB" if "CPU" in what else "MB/s"
        report.add(f"three nodes: {what}", unit, figures["hailbus", what], figures["apache", what])


# ---------------------------------------------------------------------------------------------------- latency


def latency(report: Report, *, rounds: int, quick: bool) -> None:
    """End to end at fixed rates, linger 0, acks=all, 1 KB, factor 3; one cluster after the other.

    Neither waits for cores that the other's nodes use while they are idle.
    """
    for sync_name, settings in (("not synced", no_sync), ("group fsync", group_sync)):
        report.heading("Three nodes: end-to-end latency, linger 0, acks=all, 1 KB", CONDITIONS[sync_name])
        found: dict[tuple[int, str], list[list[float]]] = {}
        for name in NAMES:
            with cluster_of(name, **settings(name)) as cluster:
                end_to_end(cluster, per_s=1000, seconds=3)
                for per_s in LATENCY_RATES:
                    seconds = 4 if quick else 10
                    runs = [sorted(end_to_end(cluster, per_s=per_s, seconds=seconds)) for _ in range(rounds)]
                    found[per_s, name] = runs
        for per_s in LATENCY_RATES:
            for share, label in ((0.5, "p50"), (0.99, "p99")):
                ours, theirs = ([run[int(len(run) * share)] for run in found[per_s, name]] for name in NAMES)
                report.add(f"three nodes: {per_s:,} messages/s, {sync_name}: {label}", "ms", ours, theirs)


# ---------------------------------------------------------------------------------------------------- failover


class Acks:
    """A producer that sends every few milliseconds, and when its records were acknowledged."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._producer = Producer({**client_of(cluster), "acks": "all", "linger.ms": 0})
        self._topic = topic
        self._at: list[float] = []
        self._failed: list[object] = []
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._send)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_done.set()
        self._thread.join()

    def _delivered(self, error: object, _: object) -> None:
        if error is None:
            self._at.append(time.monotonic())
        else:
            self._failed.append(error)

    def _send(self) -> None:
        due = time.monotonic()
        while not self._is_done.is_set():
            due += SEND_EVERY_S
            with contextlib.suppress(BufferError):
                self._producer.produce(self._topic, b"x" * 100, partition=0, on_delivery=self._delivered)
            self._producer.poll(max(0.0, due - time.monotonic()))
        self._producer.flush(60)

    def longest_gap_s(self, since_s: float) -> float:
        """The longest time without an acknowledgement after a moment.

        Raises:
            SystemExit: A record failed, or none was acknowledged any more.
        """
        if self._failed:
            raise SystemExit(f"{len(self._failed)} records failed: {self._failed[0]}")
        times = [since_s, *(at for at in self._at if at > since_s)]
        if len(times) == 1:
            raise SystemExit("no record was acknowledged after the fault")
        return max(after - before for before, after in pairwise(times))


def failover(report: Report, *, rounds: int, quick: bool) -> None:
    """The longest time without an ack when the leader of a partition is killed, stopped in order, or suspended."""
    report.heading("Three nodes: the leader goes", "default settings of broker and producer; acks=all")
    kinds: dict[str, tuple[Callable[[int], None], bool, float]] = {
        "SIGKILL of a leader": (functools.partial(_signal, number=signal.SIGKILL), False, RECOVERY_S),
        "SIGKILL of leader, controller and coordinator": (
            functools.partial(_signal, number=signal.SIGKILL),
            True,
            RECOVERY_S,
        ),
        "controlled shutdown of a leader": (functools.partial(_signal, number=signal.SIGTERM), False, RECOVERY_S),
        "SIGSTOP of a leader": (functools.partial(_signal, number=signal.SIGSTOP), False, SUSPEND_S),
    }
    for kind, (strike, is_controller, wait_s) in kinds.items():
        gaps: dict[str, list[float]] = {name: [] for name in NAMES}
        for _ in range(1 if quick else rounds):
            for name in NAMES:
                with cluster_of(name) as cluster:
                    gaps[name].append(_gap_s(cluster, strike, is_controller=is_controller, wait_s=wait_s))
        report.add(f"{kind}: longest time without an ack", "s", gaps["hailbus"], gaps["apache"])


def _signal(pid: int, *, number: signal.Signals) -> None:
    os.kill(pid, number)


def _gap_s(cluster: Cluster, strike: Callable[[int], None], *, is_controller: bool, wait_s: float) -> float:
    controller = cluster.active_controller()
    others = sorted(node for node in cluster.pids if node != controller)
    leader = controller if is_controller else others[0]
    replicas = [leader, *(node for node in cluster.pids if node != leader)]
    admin = AdminClient(client_of(cluster))
    topic = NewTopic("failover", 1, replica_assignment=[replicas])
    admin.create_topics([topic])["failover"].result()
    group = cluster.group_at(leader) if is_controller else "bench"
    consumer = Consumer({**client_of(cluster), "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe(["failover"])
    try:
        with Acks(cluster, "failover") as acks:
            until = time.monotonic() + SETTLE_S
            while time.monotonic() < until:
                consumer.poll(0.1)
            struck_s = time.monotonic()
            strike(cluster.pids[leader])
            until = struck_s + wait_s
            while time.monotonic() < until:
                consumer.poll(0.1)
        return acks.longest_gap_s(struck_s)
    finally:
        consumer.close()


PARTS: dict[str, Callable[..., None]] = {
    "footprint": footprint,
    "throughput": throughput,
    "latency": latency,
    "failover": failover,
}

BARS = (
    Bar(what="three nodes: start to serving", limit=1.5),
    Bar(what="three nodes: RSS of a node, idle", limit=60),
    Bar(what="three nodes: RSS of a node, under load", limit=200),
    Bar(what="three nodes: RSS of a node, 1,000 partitions", limit=120),
    *(Bar(what=f"three nodes: {case}: produce, CPU of all nodes", limit=0.5, is_ratio=True) for case in CASES),
    *(
        Bar(what=f"three nodes: {rate} messages/s, {sync_name}: p99", limit=limit)
        for sync_name, limits in (("not synced", (10, 20)), ("group fsync", (20, 40)))
        for rate, limit in zip(("1,000", "5,000"), limits, strict=True)
    ),
    *(
        Bar(what=f"three nodes: {rate} messages/s, not synced: p99", limit=1.0, is_ratio=True)
        for rate in ("1,000", "5,000")
    ),
    Bar(what="SIGKILL of a leader: longest time without an ack", limit=1.5),
    Bar(what="SIGKILL of leader, controller and coordinator: longest time without an ack", limit=2.5),
    Bar(what="controlled shutdown of a leader: longest time without an ack", limit=0.3),
    Bar(what="SIGSTOP of a leader: longest time without an ack", limit=1.0, is_ratio=True),
)
