"""Mistakes with a cluster of real processes: each is refused with a sentence, and nothing acknowledged is lost."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from hailbus.cli import app
from typer.testing import CliRunner

from tests.integration.broker.process import SERVE
from tests.integration.broker.test_cluster_command import DEADLINE_S, Cluster, arguments, cluster, until

if TYPE_CHECKING:
    from pathlib import Path

TOPIC = "rides.v1"
COUNT = 30
METADATA = "__cluster_metadata-0"


def produce(running: Cluster) -> dict[int, bytes]:
    """Write records, and return those that were acknowledged, by offset."""
    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    topic = NewTopic(TOPIC, num_partitions=1, replication_factor=3, config={"min.insync.replicas": "2"})
    admin.create_topics([topic], operation_timeout=DEADLINE_S)[TOPIC].result(DEADLINE_S)
    acknowledged: dict[int, bytes] = {}

    def delivered(error: Any, message: Any) -> None:
        assert error is None, error
        acknowledged[message.offset()] = message.value()

    producer = Producer({"bootstrap.servers": running.bootstrap, "acks": "all"})
    for number in range(COUNT):
        producer.produce(TOPIC, str(number), on_delivery=delivered)
    assert producer.flush(DEADLINE_S) == 0
    assert len(acknowledged) == COUNT
    return acknowledged


def read(running: Cluster) -> dict[int, bytes]:
    """Read the topic from its start."""
    consumer = Consumer({"bootstrap.servers": running.bootstrap, "group.id": "reader"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: dict[int, bytes] = {}

    def has_read_all() -> bool:
        message = consumer.poll(0.5)
        if message is not None and not message.error():
            found[message.offset() or 0] = message.value() or b""
        return len(found) == COUNT

    until(has_read_all)
    consumer.close()
    return found


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SERVE, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S)


def refusal(*words: str) -> str:
    """Return what a broker says that does not start."""
    ended = run(*words)
    assert ended.returncode == 2, (ended.returncode, ended.stderr)
    return ended.stderr


def properties_of(path: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)


def write_properties(path: Path, settings: dict[str, str]) -> None:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))


def hailbus(running: Cluster, *words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, [words[0], "--bootstrap-server", running.bootstrap, *words[1:]])
    return result.exit_code, result.output


def flip(node: Path) -> None:
    """Flip a bit in the middle of a node's metadata log."""
    path = max((node / METADATA).glob("*.log"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_nodes_and_requests_that_a_running_cluster_refuses(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    with cluster(directory) as running:
        acknowledged = produce(running)
        own_id = properties_of(directory / "node-1" / "meta.properties")["cluster.id"]
        strange = {
            **properties_of(directory / "node-2.properties"),
            "log.dirs": str(tmp_path / "strange"),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "initial.broker.registration.timeout.ms": "1500",
        }
        config = tmp_path / "strange.properties"
        # Two nodes with one id.
        twin = {**strange, "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0"}
        write_properties(config, twin)
        assert f"{tmp_path / 'strange'} is not formatted: run `hailbus-broker format" in refusal(
            "serve", "--config", str(config)
        )
        assert run("format", "--config", str(config), "--cluster-id", own_id).returncode == 0
        said = refusal("serve", "--config", str(config))
        assert "another broker with the same node.id is registered and sends heartbeats; give this one another" in said
        # Another cluster's id.
        shutil.rmtree(tmp_path / "strange")
        write_properties(config, {**strange, "process.roles": "broker", "node.id": "4"})
        assert run("format", "--config", str(config), "--cluster-id", "B" * 21 + "Q").returncode == 0
        said = refusal("serve", "--config", str(config))
        assert "its data directory belongs to another cluster than the controllers: correct" in said
        # More replicas than brokers, and a broker that nobody knows.
        code, said = hailbus(running, "topics", "--create", "--topic", "more", "--replication-factor", "4")
        assert code
        assert "only 3 broker(s) are registered. Start more brokers, or ask for 3 at most." in said
        plan = tmp_path / "plan.json"
        moved = [{"topic": TOPIC, "partition": 0, "replicas": [1, 2, 9]}]
        plan.write_text(json.dumps({"version": 1, "partitions": moved}))
        code, said = hailbus(running, "reassign", "--execute", "--reassignment-json-file", str(plan))
        assert code
        assert "includes broker 9, but no such broker is registered. Registered are 1, 2, 3." in said
        assert read(running) == acknowledged


def test_directories_that_are_swapped_or_damaged(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    with cluster(directory) as running:
        acknowledged = produce(running)
        running.process.terminate()
        assert running.process.wait(DEADLINE_S) == 0
    first, second = directory / "node-1", directory / "node-2"

    def swap() -> None:
        first.rename(directory / "aside")
        second.rename(first)
        (directory / "aside").rename(second)

    swap()
    said = refusal("serve", "--config", str(directory / "node-1.properties"))
    assert "the data directory belongs to node 2, this is node 1: start with that node id or another directory" in said
    swap()
    for node in (first, second):
        shutil.copytree(node / METADATA, tmp_path / f"backup-{node.name}")
        flip(node)
    ended = subprocess.run(arguments(directory), capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert ended.returncode == 2
    assert "cannot read the cluster's metadata" in ended.stderr
    assert "restore the file from a backup" in ended.stderr
    for node in (first, second):
        shutil.rmtree(node / METADATA)
        shutil.copytree(tmp_path / f"backup-{node.name}", node / METADATA)
    with cluster(directory) as running:
        assert read(running) == acknowledged
