"""`hailbus-broker cluster`: three real processes, as somebody starts and stops them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.integration.broker.process import SERVE
from tests.support import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEADLINE_S = 120


class Cluster:
    """A cluster that runs, and what it has printed."""

    def __init__(self, process: subprocess.Popen[str], bootstrap: str, log_path: Path) -> None:
        self.process = process
        self.bootstrap = bootstrap
        self.log_path = log_path

    def log(self) -> str:
        return self.log_path.read_text()

    def pids(self) -> dict[int, int]:
        """Process ids by node id."""
        until(lambda: self.log().count('"pid"') == 3)
        found = [json.loads(line) for line in re.findall(r"node (\{.*\})", self.log())]
        return {one["node_id"]: one["pid"] for one in found}


def arguments(directory: Path, *more: str) -> list[str]:
    return [sys.executable, "-c", SERVE, "cluster", "--listen", "127.0.0.1:0", "--data-dir", str(directory), *more]


@contextlib.contextmanager
def cluster(directory: Path) -> Iterator[Cluster]:
    log_path = directory.parent / f"{directory.name}.log"
    with (
        log_path.open("wb") as errors,
        subprocess.Popen(arguments(directory), stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            found = re.fullmatch(r"bootstrap=(\S+)\n", process.stdout.readline())
            assert found, log_path.read_text()
            yield Cluster(process, found[1], log_path)
        finally:
            process.terminate()
            process.wait(DEADLINE_S)


def until(condition: Any) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end_s, "the condition has not come true"
        time.sleep(0.05)


def test_three_nodes_start_serve_and_stop(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    with cluster(directory) as running:
        assert len(running.bootstrap.split(",")) == 3
        # Each node knows all of them.
        for address in running.bootstrap.split(","):
            metadata = AdminClient({"bootstrap.servers": address}).list_topics(timeout=DEADLINE_S)
            named = {(broker.id, f"{broker.host}:{broker.port}") for broker in metadata.brokers.values()}
            assert named == set(enumerate(running.bootstrap.split(","), 1))
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        topic = NewTopic("rides", num_partitions=3, replication_factor=3)
        admin.create_topics([topic], operation_timeout=DEADLINE_S)["rides"].result(DEADLINE_S)
        producer = Producer({"bootstrap.servers": running.bootstrap, "acks": "all"})
        errors: list[Any] = []
        for number in range(30):
            producer.produce("rides", str(number), on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(DEADLINE_S) == 0
        assert errors == [None] * 30
        running.process.terminate()
        assert running.process.wait(DEADLINE_S) == 0
    # The same directory is the same cluster.
    with cluster(directory) as running:
        group = {"group.id": "readers", "auto.offset.reset": "earliest"}
        consumer = Consumer({"bootstrap.servers": running.bootstrap, **group})
        consumer.subscribe(["rides"])
        values: list[int] = []

        def has_read_all() -> bool:
            message = consumer.poll(0.5)
            if message is not None and not message.error():
                values.append(int(message.value() or b""))
            return len(values) == 30

        until(has_read_all)
        consumer.close()
        assert sorted(values) == list(range(30))


def test_a_node_that_dies_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    with cluster(tmp_path / "cluster") as running:
        os.kill(running.pids()[2], signal.SIGKILL)
        until(lambda: "node 2 has ended with code -9, the others go on" in running.log())
        host, port = running.bootstrap.split(",")[1].split(":")
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((host, int(port)))  # the command keeps the port for the node
        properties = tmp_path / "cluster" / "node-2.properties"
        assert f"`hailbus-broker serve --config {properties}`" in running.log()
        command = [sys.executable, "-c", SERVE, "serve", "--config", str(properties)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as again:
            assert again.stdout is not None
            assert again.stdout.readline() == f"bootstrap={running.bootstrap.split(',')[1]}\n"
            again.terminate()
            assert again.wait(DEADLINE_S) == 0


def test_a_node_whose_disk_is_full_stops_and_the_others_take_what_it_led(tmp_path: Path) -> None:
    with cluster(tmp_path / "cluster") as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        topic = NewTopic("rides", num_partitions=3, replication_factor=3)
        admin.create_topics([topic], operation_timeout=DEADLINE_S)["rides"].result(DEADLINE_S)
        resource.prlimit(running.pids()[2], resource.RLIMIT_FSIZE, (100_000, 100_000))
        producer = Producer({"bootstrap.servers": running.bootstrap, "acks": "all", "linger.ms": 0})
        errors: list[Any] = []
        for number in range(60):  # each node writes all of them
            producer.produce("rides", bytes(10_000), partition=number % 3, on_delivery=lambda e, _: errors.append(e))
            producer.poll(0.02)
        assert producer.flush(DEADLINE_S) == 0
        assert errors == [None] * 60
        until(lambda: "node 2 has ended with code 1, the others go on" in running.log())
        (told,) = re.findall(r".*log_directory_offline.*", running.log())
        assert '"effect": "this node stops"' in told
        assert "File too large" in told

        def leaders() -> set[int]:
            partitions = admin.list_topics("rides", DEADLINE_S).topics["rides"].partitions
            return {found.leader for found in partitions.values()}

        until(lambda: leaders() <= {1, 3})


def test_mistakes_are_refused_with_a_sentence(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"

    def refusal(*more: str) -> str:
        run = subprocess.run(
            arguments(directory, *more), capture_output=True, text=True, check=False, timeout=DEADLINE_S
        )
        assert run.returncode == 2, run.stderr
        return run.stderr

    assert "sets node.id for each node itself: remove it" in refusal("--set", "node.id=1")
    assert "a cluster has at least one node" in refusal("--nodes", "0")
    with cluster(directory) as running:
        running.process.terminate()
        assert running.process.wait(DEADLINE_S) == 0
    assert "holds a cluster of 3 nodes; give --nodes 3" in refusal("--nodes", "2")
    shutil.rmtree(directory / "node-2")
    assert f"{directory / 'node-2'} is missing or not formatted, and the cluster is not new" in refusal()


def test_a_node_that_waits_for_others_can_be_stopped(tmp_path: Path) -> None:
    port = free_port()
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@127.0.0.1:{port},2@127.0.0.1:1,3@127.0.0.1:2",
        "log.dirs": str(tmp_path / "data"),
    }
    given = [f"--set={name}={value}" for name, value in settings.items()]
    run = [sys.executable, "-c", SERVE]
    refused = subprocess.run([*run, "serve", *given], capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert refused.returncode == 2
    assert "is not formatted: run `hailbus-broker format" in refused.stderr
    subprocess.run([*run, "format", *given], check=True, capture_output=True, timeout=DEADLINE_S)
    log_path = tmp_path / "log"
    with log_path.open("wb") as errors, subprocess.Popen([*run, "serve", *given], stderr=errors) as waiting:
        until(lambda: "registration_not_answered" in log_path.read_text())
        waiting.terminate()
        assert waiting.wait(DEADLINE_S) == 0
