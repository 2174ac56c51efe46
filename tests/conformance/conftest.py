"""Brokers to test: every test of behaviour runs on ours, on our fixture for tests, and on Apache Kafka.

`HAILBUS_APACHE_BOOTSTRAP` names an Apache Kafka that runs already, with the properties below; else one is started.
"""

import functools
import itertools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.testing import ThreadedBroker

from tests.support import free_port, wait_for

from .wire import Wire

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("HAILBUS_SHARED", ROOT.parent / "shared"))
APACHE_KAFKA = SHARED / "apache-kafka" / "kafka"
COMMON_PROPERTIES = {
    # No test waits for more members of a group, or for a session timeout that is made for fleets.
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "200",
    "group.consumer.heartbeat.interval.ms": "500",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    # What is old or superseded is gone while a test waits.
    "log.cleaner.backoff.ms": "200",
    "log.retention.check.interval.ms": "200",
}
"""What all brokers are started with, so that no test waits for what takes its time by default."""

APACHE_PROPERTIES = {
    "log.initial.task.delay.ms": "200",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}
"""The same for waits that only Apache Kafka has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A running broker. `kind` is `hailbus`, `fixture` (ours in this process) or `apache`."""

    kind: str
    bootstrap: str

    @property
    def is_apache(self) -> bool:
        """Whether this is what all others are compared with."""
        return self.kind == "apache"


def apache_kafka_missing() -> str | None:
    """Say why Apache Kafka cannot be started here, or nothing if it can."""
    if not APACHE_KAFKA.exists():
        return "Apache Kafka is compared with where its start script stands beside the clone, and it does not"
    if not shutil.which("java"):
        return "Apache Kafka needs Java 17 or newer, and there is none"
    return None


def hailbus_cluster(directory: Path) -> Iterator[Cluster]:
    command: list[str | Path] = [Path(sys.executable).parent / "hailbus-broker", "serve", "--listen", "127.0.0.1:0"]
    settings = [f"--set={name}={value}" for name, value in COMMON_PROPERTIES.items()]
    with (directory / "broker.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--data-dir", directory / "data", *settings], stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("bootstrap="), (directory / "broker.log").read_text()[-2000:]
        yield Cluster(kind="hailbus", bootstrap=line.strip().removeprefix("bootstrap="))
    finally:
        process.terminate()
        process.wait(30)
        if process.stdout is not None:
            process.stdout.close()


def fixture_cluster(_directory: Path) -> Iterator[Cluster]:
    with ThreadedBroker(COMMON_PROPERTIES) as broker:
        yield Cluster(kind="fixture", bootstrap=broker.bootstrap)


def apache_cluster(directory: Path) -> Iterator[Cluster]:
    if running := os.environ.get("HAILBUS_APACHE_BOOTSTRAP"):
        yield Cluster(kind="apache", bootstrap=running)
        return
    reason = apache_kafka_missing()
    if reason:
        pytest.skip(reason)
    properties = directory / "more.properties"
    wanted = COMMON_PROPERTIES | APACHE_PROPERTIES
    properties.write_text("".join(f"{name}={value}\n" for name, value in wanted.items()))
    where = ["--dir", str(directory / "data")]
    port = free_port()
    subprocess.run([APACHE_KAFKA, "fetch"], check=True, capture_output=True)
    subprocess.run(
        [APACHE_KAFKA, "start", "--port", str(port), *where, "--properties", str(properties)],
        check=True,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"KAFKA_HEAP_OPTS": "-Xms256m -Xmx512m"},
    )
    try:
        yield Cluster(kind="apache", bootstrap=f"127.0.0.1:{port}")
    finally:
        subprocess.run([APACHE_KAFKA, "stop", *where], check=True, capture_output=True)


CLUSTERS = {"hailbus": hailbus_cluster, "fixture": fixture_cluster, "apache": apache_cluster}


@pytest.fixture(scope="session", params=CLUSTERS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker of each kind, started once for all tests."""
    yield from CLUSTERS[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture
def wire(cluster: Cluster) -> Iterator[Wire]:
    """A connection to the broker on which anything can be said."""
    connection = Wire(cluster.bootstrap)
    yield connection
    connection.close()


NUMBERS = itertools.count(1)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name that no other test has: for groups, transactional ids and topics."""
    return f"{request.node.originalname.removeprefix('test_')[:60]}-{next(NUMBERS)}-{time.time_ns() % 10**9}"


MakeTopic = Callable[..., str]


@pytest.fixture
def make_topic(wire: Wire, name: str) -> MakeTopic:
    """Return a function that creates a topic, `make_topic(partitions=1, **{"cleanup.policy": …})`, and names it."""

    def make(partitions: int = 1, **configs: str) -> str:
        topic = f"{name}-{next(NUMBERS)}"
        listed = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        wanted = {"name": topic, "num_partitions": partitions, "replication_factor": 1, "configs": listed}
        answer = wire.call(ApiKey.CREATE_TOPICS, 5, topics=[wanted], timeout_ms=20_000)
        assert answer.topics[0].error_code == 0, answer
        wait_for(f"{topic} has leaders", functools.partial(has_leaders, wire, topic, partitions))
        return topic

    return make


def has_leaders(wire: Wire, topic: str, partitions: int) -> bool:
    """Whether each partition answers: what Metadata says comes a moment before that."""
    asked = [{"partition_index": index, "timestamp": -1} for index in range(partitions)]
    topics = wire.call(ApiKey.LIST_OFFSETS, 7, replica_id=-1, topics=[{"name": topic, "partitions": asked}]).topics
    return all(partition.error_code == 0 for partition in topics[0].partitions)


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    """A topic of one partition with the broker's defaults."""
    return make_topic()
