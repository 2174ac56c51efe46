"""Brokers to test: every test of behaviour runs on ours, on our fixture for tests, and on Apache Kafka."""

import functools
import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.testing import ThreadedBroker

from tests.servers import APACHE_PROPERTIES, FAST_PROPERTIES, shared_apache_kafka, start_apache_kafka
from tests.support import wait_for

from .wire import Wire

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A running broker. `kind` is `hailbus`, `fixture` (ours in this process) or `apache`."""

    kind: str
    bootstrap: str

    @property
    def is_apache(self) -> bool:
        """Whether this is what all others are compared with."""
        return self.kind == "apache"


def hailbus_cluster(directory: Path) -> Iterator[Cluster]:
    command: list[str | Path] = [Path(sys.executable).parent / "hailbus-broker", "serve", "--listen", "127.0.0.1:0"]
    settings = [f"--set={name}={value}" for name, value in FAST_PROPERTIES.items()]
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
    with ThreadedBroker(FAST_PROPERTIES) as broker:
        yield Cluster(kind="fixture", bootstrap=broker.bootstrap)


def apache_cluster(_directory: Path) -> Iterator[Cluster]:
    yield Cluster(kind="apache", bootstrap=shared_apache_kafka())


def own_apache_cluster(directory: Path) -> Iterator[Cluster]:
    """Start an Apache Kafka for a test that breaks it."""
    started = start_apache_kafka(directory, APACHE_PROPERTIES)
    yield Cluster(kind="apache", bootstrap=started.address)
    subprocess.run(started.stop, shell=True, check=True, capture_output=True)  # noqa: S602 our own words


CLUSTERS = {"hailbus": hailbus_cluster, "fixture": fixture_cluster, "apache": apache_cluster}


@pytest.fixture(scope="session", params=CLUSTERS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker of each kind: ours are started anew for each file, Apache Kafka once for the whole run."""
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
