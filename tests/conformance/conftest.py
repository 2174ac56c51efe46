"""Brokers to test: every test of behaviour runs on ours, on our fixture for tests, and on Apache Kafka.

`HAILBUS_TEST_NODES=3` runs them on three nodes of ours and of Apache Kafka. Topics have three replicas then.
"""

import functools
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.testing import ThreadedBroker

from tests.servers import (
    APACHE_PROPERTIES,
    FAST_PROPERTIES,
    of_several_nodes,
    shared_apache_kafka,
    start_apache_kafka,
)
from tests.support import wait_for

from .wire import Wire

NODES = int(os.environ.get("HAILBUS_TEST_NODES", "1"))
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What runs, with one node or several. `kind` is `hailbus`, `fixture` (ours in this process) or `apache`."""

    kind: str
    bootstrap: str

    @property
    def first(self) -> str:
        """The address of one node, for clients that take a single one."""
        return self.bootstrap.split(",")[0]

    @property
    def is_apache(self) -> bool:
        """Whether this is what all others are compared with."""
        return self.kind == "apache"


def hailbus_cluster(directory: Path) -> Iterator[Cluster]:
    command: list[str | Path] = [Path(sys.executable).parent / "hailbus-broker"]
    command += ["serve"] if NODES == 1 else ["cluster", f"--nodes={NODES}"]
    command += ["--listen", "127.0.0.1:0"]
    settings = [f"--set={name}={value}" for name, value in (FAST_PROPERTIES | of_several_nodes(NODES)).items()]
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
    yield Cluster(kind="apache", bootstrap=shared_apache_kafka(nodes=NODES))


def own_apache_cluster(directory: Path) -> Iterator[Cluster]:
    """Start an Apache Kafka for a test that breaks it."""
    started = start_apache_kafka(directory, APACHE_PROPERTIES, nodes=NODES)
    yield Cluster(kind="apache", bootstrap=started.address)
    subprocess.run(started.stop, shell=True, check=True, capture_output=True)  # noqa: S602 our own words


CLUSTERS = {"hailbus": hailbus_cluster, "fixture": fixture_cluster, "apache": apache_cluster}
if NODES > 1:
    del CLUSTERS["fixture"]  # it is one node


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
        wanted = {"name": topic, "configs": listed, **layout(wire, partitions)}
        answer = wire.call(ApiKey.CREATE_TOPICS, 5, topics=[wanted], timeout_ms=20_000)
        assert answer.topics[0].error_code == 0, answer
        wait_for(f"{topic} has leaders", functools.partial(has_leaders, wire, topic, partitions))
        return topic

    return make


def layout(wire: Wire, partitions: int) -> dict[str, Any]:
    """Return how many partitions and replicas a topic has; on several nodes one of them leads all of its partitions."""
    if NODES == 1:
        return {"num_partitions": partitions, "replication_factor": 1}
    brokers = sorted(broker.node_id for broker in wire.call(ApiKey.METADATA, 4, topics=[]).brokers)
    first = next(NUMBERS) % len(brokers)
    replicas = (brokers[first:] + brokers[:first])[:3]
    by_hand = [{"partition_index": index, "broker_ids": replicas} for index in range(partitions)]
    return {"num_partitions": -1, "replication_factor": -1, "assignments": by_hand}


def has_leaders(wire: Wire, topic: str, partitions: int) -> bool:
    """Whether each partition answers: what Metadata says comes a moment before that."""
    return all(wire.list_offset(topic, -1, partition=index).error_code == 0 for index in range(partitions))


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    """A topic of one partition with the broker's defaults."""
    return make_topic()
