"""A quorum of processes that begins with one controller and grows to three, as somebody does it by commands."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient
from hailbus.cli import app
from hailbus_broker.cli.format import format_directory
from hailbus_broker.runtime.errors import StartError
from typer.testing import CliRunner

from tests.integration.broker.process import SERVE
from tests.support import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEADLINE_S = 120
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end_s, "the condition has not come true"
        time.sleep(0.05)


class Nodes:
    """Three combined nodes, each with a properties file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster_id = CLUSTER_ID
        self.ports = [free_port() for _ in range(6)]
        self.processes: dict[int, subprocess.Popen[str]] = {}
        self.bootstraps: dict[int, str] = {}
        servers = ",".join(f"127.0.0.1:{port}" for port in self.ports[3:])
        for node_id in (1, 2, 3):
            client, controller = self.ports[node_id - 1], self.ports[node_id + 2]
            self.properties(node_id).write_text(
                f"process.roles=broker,controller\nnode.id={node_id}\ncontroller.listener.names=CONTROLLER\n"
                f"listeners=PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}\n"
                f"controller.quorum.bootstrap.servers={servers}\nlog.dirs={folder / f'data{node_id}'}\n"
            )

    def properties(self, node_id: int) -> Path:
        return self.folder / f"node{node_id}.properties"

    def command(self, *words: str) -> subprocess.Popen[str]:
        errors = (self.folder / "errors.log").open("ab")
        with errors:
            return subprocess.Popen(
                [sys.executable, "-c", SERVE, *words], stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def format(self, node_id: int, *flags: str) -> None:
        words = ("format", "--config", str(self.properties(node_id)), "--cluster-id", self.cluster_id, *flags)
        with self.command(*words) as process:
            assert process.wait(DEADLINE_S) == 0, (self.folder / "errors.log").read_text()

    def start(self, *node_ids: int) -> None:
        for node_id in node_ids:
            self.processes[node_id] = self.command("serve", "--config", str(self.properties(node_id)))
        for node_id in node_ids:
            self.wait_for(node_id)

    def wait_for(self, node_id: int) -> None:
        """Wait until a node serves."""
        output = self.processes[node_id].stdout
        assert output is not None
        line = output.readline()
        assert line.startswith("bootstrap="), (self.folder / "errors.log").read_text()
        self.bootstraps[node_id] = line.strip().removeprefix("bootstrap=")

    def kill(self, node_id: int) -> None:
        with self.processes.pop(node_id) as process:
            process.kill()

    def stop_one(self, node_id: int) -> None:
        """Stop a node in order."""
        with self.processes.pop(node_id) as process:
            process.terminate()
            assert process.wait(DEADLINE_S) == 0, (self.folder / "errors.log").read_text()

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.communicate(timeout=DEADLINE_S)

    def hailbus(self, *words: str, node_id: int = 2) -> str:
        arguments = [words[0], "--bootstrap-server", self.bootstraps[node_id], *words[1:]]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, (words, result.output, result.exception)
        return result.stdout

    def brokers(self) -> list[int]:
        """The brokers that node 2 knows."""
        return sorted(AdminClient({"bootstrap.servers": self.bootstraps[2]}).list_topics(timeout=DEADLINE_S).brokers)

    def voters(self) -> dict[int, str]:
        """Directory id of each voter, as any broker says."""
        status: dict[str, Any] = json.loads(self.hailbus("quorum", "describe", "--status", "--json"))
        return {voter["id"]: voter["directoryId"] for voter in status["CurrentVoters"]}


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    found = Nodes(tmp_path)
    try:
        yield found
    finally:
        found.stop()


def test_a_quorum_of_one_grows_to_three_and_loses_its_first(nodes: Nodes) -> None:
    nodes.format(1, "--standalone")
    for node_id in (2, 3):
        nodes.format(node_id, "--no-initial-controllers")
    nodes.start(1, 2, 3)
    assert list(nodes.voters()) == [1]
    for node_id in (2, 3):
        said = nodes.hailbus("quorum", "add-controller", "--command-config", str(nodes.properties(node_id)))
        assert said.startswith(f"Added controller {node_id} with directory id ")
    voters = nodes.voters()
    assert list(voters) == [1, 2, 3]
    nodes.hailbus("topics", "--create", "--topic", "three", "--replication-factor", "3", "--partitions", "1")
    nodes.kill(1)
    # A command asks one of the brokers that its first answer names.
    until(lambda: nodes.brokers() == [2, 3])
    nodes.hailbus("topics", "--create", "--topic", "two", "--replication-factor", "2", "--partitions", "1")
    removal = ("--controller-id", "1", "--controller-directory-id", voters[1])
    nodes.hailbus("quorum", "remove-controller", *removal)
    assert nodes.voters() == {2: voters[2], 3: voters[3]}
    assert nodes.hailbus("topics", "--list").split() == ["three", "two"]


def test_controllers_that_are_formatted_together_are_a_quorum(nodes: Nodes) -> None:
    directories = [urlsafe_b64encode(bytes([node_id] * 16)).decode().rstrip("=") for node_id in (1, 2, 3)]
    named = ",".join(
        f"{node_id}@127.0.0.1:{nodes.ports[node_id + 2]}:{directories[node_id - 1]}" for node_id in (1, 2, 3)
    )
    for node_id in (1, 2, 3):
        nodes.format(node_id, "--initial-controllers", named)
    nodes.start(1, 2, 3)
    assert nodes.voters() == dict(zip((1, 2, 3), directories, strict=True))
    # Partitions move between their brokers.
    nodes.hailbus("topics", "--create", "--topic", "moved", "--replica-assignment", "1,1")
    partitions = [
        {"topic": "moved", "partition": 0, "replicas": [2, 3]},
        {"topic": "moved", "partition": 1, "replicas": [3]},
    ]
    plan = nodes.folder / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": partitions}))
    by_plan = ("--reassignment-json-file", str(plan))
    started = nodes.hailbus("reassign", "--execute", *by_plan)
    assert started.endswith("Successfully started partition reassignments for moved-0,moved-1\n")
    until(lambda: nodes.hailbus("reassign", "--verify", *by_plan).count("is completed") == 2)
    assert nodes.hailbus("reassign", "--list") == "No partition reassignments found.\n"
    said = nodes.hailbus("elect", "--election-type", "preferred", "--path-to-json-file", str(plan))
    assert "Error" not in said
    described = nodes.hailbus("topics", "--describe", "--topic", "moved")
    assert re.findall(r"Leader: (\d)\tReplicas: (\S+)", described) == [("2", "2,3"), ("3", "3")]


@pytest.mark.parametrize(
    ("settings", "initial", "reason"),
    [
        ({"process.roles": "broker"}, None, "is for a controller"),
        ({"process.roles": ""}, None, "is for a controller"),
        ({"controller.quorum.voters": "1@localhost:9093"}, None, "controller.quorum.voters names them, too"),
        ({}, "1", "is not ID@HOST:PORT:DIRECTORY"),
        ({}, "1@localhost:9093", "is not ID@HOST:PORT:DIRECTORY"),
        ({}, "1@localhost:9093:short", "'short' is no directory id"),
        ({}, f"2@localhost:9093:{CLUSTER_ID}", "does not name node 1"),
        ({}, f"1@localhost:9093:{CLUSTER_ID},1@localhost:9094:{CLUSTER_ID}", "names node 1 twice"),
    ],
)
def test_voters_that_make_no_sense_are_not_written(
    tmp_path: Path, settings: dict[str, str], initial: str | None, reason: str
) -> None:
    values = {
        "process.roles": "controller",
        "node.id": "1",
        "controller.listener.names": "CONTROLLER",
        "listeners": "CONTROLLER://localhost:9093",
        "controller.quorum.bootstrap.servers": "localhost:9093",
        "log.dirs": str(tmp_path / "data"),
        **settings,
    }
    if values["process.roles"] != "controller":
        values["listeners"] = "PLAINTEXT://localhost:9092"
    if not values["process.roles"]:
        for name in ("process.roles", "controller.listener.names", "controller.quorum.bootstrap.servers"):
            del values[name]
    with pytest.raises(StartError, match=reason):
        format_directory(
            file_text=None,
            environment={},
            settings=[f"{name}={value}" for name, value in values.items()],
            flags={},
            cluster_id=None,
            ignores_formatted=False,
            is_alone=initial is None,
            initial_controllers=initial,
        )
    assert not (tmp_path / "data").exists()
