"""A cluster of real processes, of the in-house broker or of Apache Kafka, whose nodes start and stop one by one."""

from __future__ import annotations

import base64
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._metadata import ClusterMetadata
from hailbus_devtools.tools import apache_kafka

from tests.needs import need
from tests.servers import SHORT_LIVED_JVM
from tests.support import free_port

System = Literal["hailbus", "apache"]
SETTINGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
}
"""Of every node: factor 3, and two replicas must have what is acknowledged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a node runs and listens.

    Attributes:
        port: Of its broker, as clients and other brokers know it.
        listen_port: Where it listens when a proxy has `port`.
        prefix: The words before its command.
    """

    host: str
    port: int
    controller_port: int
    listen_port: int | None = None
    prefix: Sequence[str] = ()


def loopback_places(count: int) -> dict[int, Place]:
    """Free ports for nodes that share the loopback interface."""
    ports = [free_port(also=(1,)) for _ in range(count)]
    assert len({*ports, *(port + 1 for port in ports)}) == 2 * count, ports
    return {
        node_id: Place(host="127.0.0.1", port=port, controller_port=port + 1) for node_id, port in enumerate(ports, 1)
    }


@dataclass(slots=True, kw_only=True)
class Node:
    """One node, through many lives."""

    node_id: int
    place: Place
    system: System
    directory: Path
    process: subprocess.Popen[bytes] | None = None
    lives: int = 0
    is_suspended: bool = field(default=False)

    @property
    def address(self) -> str:
        return f"{self.place.host}:{self.place.port}"

    @property
    def properties(self) -> Path:
        return self.directory / "server.properties"

    @property
    def log_path(self) -> Path:
        return self.directory / "node.log"

    def run(self, *words: str | Path) -> None:
        """Run a command to its end, in the node's network."""
        done = subprocess.run([*self.place.prefix, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def format(self, cluster_id: str, settings: Mapping[str, str]) -> None:
        """Write the node's settings and format its directory."""
        self.directory.mkdir()
        lines = {
            "node.id": str(self.node_id),
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.directory / "data"),
            **settings,
        }
        self.properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        if self.system == "hailbus":
            self.run(program(), "format", "--cluster-id", cluster_id, "--config", self.properties)
        else:
            self.run(apache_kafka(), "run", "storage", "format", "-t", cluster_id, "-c", self.properties)

    def start(self) -> None:
        """Start the node; it does not serve yet."""
        command: list[str | Path] = [program(), "serve", "--config", self.properties]
        if self.system == "apache":
            command = [apache_kafka(), "run", "kafka.Kafka", self.properties]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.place.prefix, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"KAFKA_HEAP_OPTS": "-Xms256m -Xmx512m"} | SHORT_LIVED_JVM,
            )
        self.lives += 1

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def suspend(self) -> None:
        self.signal(signal.SIGSTOP)
        self.is_suspended = True

    def resume(self) -> None:
        self.signal(signal.SIGCONT)
        self.is_suspended = False

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        """Stop the node in order."""
        assert self.process is not None
        self.process.terminate()
        assert self.process.wait(120) in {0, 143}, self.tail()

    def has_ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def listens(self) -> bool:
        place = self.place
        try:
            socket.create_connection((place.host, place.listen_port or place.port), timeout=5).close()
        except OSError:
            return False
        return True

    def tail(self) -> str:
        return self.log_path.read_text()[-3000:]


def program() -> Path:
    return Path(sys.executable).parent / "hailbus-broker"


class Cluster:
    """Nodes that are broker and controller, and brokers that were added to them."""

    def __init__(
        self, system: System, directory: Path, places: Mapping[int, Place], settings: Mapping[str, str]
    ) -> None:
        if system == "apache":
            need("apache kafka")
            subprocess.run([apache_kafka(), "fetch"], check=True, capture_output=True)
        self.system: System = system
        self.directory = directory
        self.settings = {**SETTINGS, **settings}
        self.cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A", 1)
        self.voters = ",".join(f"{number}@{place.host}:{place.controller_port}" for number, place in places.items())
        self.nodes: dict[int, Node] = {}
        self.admin: AdminClient | None = None
        for node_id, place in places.items():
            self.add(node_id, place, is_controller=True)

    def add(self, node_id: int, place: Place, *, is_controller: bool) -> Node:
        """Format a node that does not run yet."""
        listeners = f"PLAINTEXT://{place.host}:{place.listen_port or place.port}"
        if is_controller:
            listeners += f",CONTROLLER://{place.host}:{place.controller_port}"
        roles = {
            "process.roles": "broker,controller" if is_controller else "broker",
            "listeners": listeners,
            "controller.quorum.voters": self.voters,
        }
        directory = self.directory / f"node-{node_id}"
        node = Node(node_id=node_id, place=place, system=self.system, directory=directory)
        node.format(self.cluster_id, self.settings | roles)
        self.nodes[node_id] = node
        return node

    @property
    def bootstrap(self) -> str:
        return ",".join(node.address for node in self.nodes.values())

    def start(self) -> None:
        for node in self.nodes.values():
            node.start()
        self.wait_until_whole()

    def metadata(self) -> ClusterMetadata | None:
        """What the brokers say; nothing when none answers."""
        if self.admin is None:
            self.admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0, "socket.timeout.ms": 5000})
        try:
            return self.admin.list_topics(timeout=5)
        except KafkaException:
            return None

    def why_not_whole(self) -> str:
        """Return which broker says what is missing; nothing if all nodes serve and every replica is in sync."""
        for node in self.nodes.values():
            assert not node.has_ended(), f"node {node.node_id} has ended:\n{node.tail()}"
            if not node.listens():  # it was killed and is back so soon that the others still count on it
                return f"node {node.node_id} does not listen yet"
        found = self.metadata()
        if found is None:
            return "no broker answers"
        missing = [
            f"{topic.topic}-{partition.id} has leader {partition.leader} and ISR {partition.isrs}"
            for topic in found.topics.values()
            for partition in topic.partitions.values()
            if partition.leader < 0 or set(partition.isrs) != set(partition.replicas)
        ]
        if set(found.brokers) != set(self.nodes):
            missing.insert(0, f"the brokers are {sorted(found.brokers)}")
        return f"{found.orig_broker_name} says: {'; '.join(missing)}" if missing else ""

    def wait_until_whole(self, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while why := self.why_not_whole():
            assert time.monotonic() < deadline, f"after {seconds:.0f} s the cluster is not whole: {why}"
            time.sleep(0.2)

    def leader(self, topic: str, partition: int) -> int:
        """The node that leads a partition."""
        found = self.metadata()
        assert found is not None
        return int(found.topics[topic].partitions[partition].leader)

    def stop(self) -> None:
        """Stop all nodes at once; kill those that do not."""
        for node in self.nodes.values():
            if not node.has_ended():
                node.resume()
                node.signal(signal.SIGTERM)
        for node in self.nodes.values():
            if node.process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    node.process.wait(20)
            node.kill()


@contextlib.contextmanager
def cluster(
    system: System, directory: Path, places: Mapping[int, Place], settings: Mapping[str, str] | None = None
) -> Iterator[Cluster]:
    """A cluster that runs until the block ends."""
    made = Cluster(system, directory, places, settings or {})
    try:
        made.start()
        yield made
    finally:
        made.stop()


def restart_one_by_one(running: Cluster, rng: random.Random) -> None:
    """Stop each node in order, start it, and wait until the cluster is whole, before the next one.

    Begins when the cluster is whole: a process that still starts dies of SIGTERM, and does not stop in order.
    """
    running.wait_until_whole()
    for node in rng.sample(list(running.nodes.values()), len(running.nodes)):
        node.stop()
        node.start()
        running.wait_until_whole()
