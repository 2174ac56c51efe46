"""Apache Kafka's command-line tools administer three of our brokers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from base64 import b64decode
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hailbus_devtools.tools import apache_kafka

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.needs("apache kafka", "javac"), pytest.mark.timeout(600)]

CLASSES = {
    "topics": "org.apache.kafka.tools.TopicCommand",
    "metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "features": "org.apache.kafka.tools.FeatureCommand",
    "cluster": "org.apache.kafka.tools.ClusterTool",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
}
SOURCE = Path(__file__).resolve().parents[1] / "clients" / "java" / "Tools.java"
NODES = 3
DEADLINE_S = 120


class Tools:
    """The tools, in a JVM that runs one after another."""

    def __init__(self, jvm: subprocess.Popen[str], bootstrap: str) -> None:
        self._jvm = jvm
        self.bootstrap = bootstrap

    def __call__(self, tool: str, *arguments: str, fails: bool = False) -> str:
        """Run a tool against the brokers, and return what it prints."""
        assert self._jvm.stdin is not None
        assert self._jvm.stdout is not None
        where = ("--bootstrap-server", self.bootstrap)
        # The option belongs to the tool, before a subcommand, except for kafka-cluster.
        words = [CLASSES[tool], *((*arguments, *where) if tool == "cluster" else (*where, *arguments))]
        self._jvm.stdin.write("\t".join(words) + "\n")
        self._jvm.stdin.flush()
        code, _, printed = self._jvm.stdout.readline().strip().partition("\t")
        text = b64decode(printed).decode()
        assert (code != "0") == fails, f"{words}: {code}\n{text}"
        return text


class Cluster:
    """A cluster of the command `hailbus-broker cluster`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log_path = directory / "cluster.log"
        command = [str(Path(sys.executable).parent / "hailbus-broker"), "cluster", f"--nodes={NODES}"]
        command += ["--listen", "127.0.0.1:0", "--data-dir", str(directory / "data")]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("bootstrap="), self.log_path.read_text()[-2000:]
        self.bootstrap = line.strip().removeprefix("bootstrap=")

    def address(self, node_id: int) -> str:
        address: str = self.bootstrap.split(",")[node_id - 1]
        return address

    def kill(self, node_id: int) -> None:
        until(lambda: self.log_path.read_text().count('"pid"') == NODES)
        found = [json.loads(line) for line in re.findall(r"node (\{.*\})", self.log_path.read_text())]
        os.kill(next(one["pid"] for one in found if one["node_id"] == node_id), signal.SIGKILL)

    def stop(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=DEADLINE_S)


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end_s, "the condition has not come true"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    found = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture(scope="module")
def tools(cluster: Cluster) -> Iterator[Tools]:
    subprocess.run([apache_kafka(), "fetch"], check=True, capture_output=True)
    jars = subprocess.run([apache_kafka(), "classpath"], check=True, capture_output=True, text=True).stdout.strip()
    command = ["java", "-XX:TieredStopAtLevel=1", "-Xmx256m", "-cp", jars, str(SOURCE)]
    with (
        (cluster.directory / "tools.log").open("wb") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True) as jvm,
    ):
        yield Tools(jvm, cluster.bootstrap)
        jvm.communicate(timeout=DEADLINE_S)


@pytest.fixture(scope="module")
def rides(tools: Tools) -> str:
    """The topic that the tests work on: partition 0 has its replicas on 1, 2 and 3, and so on."""
    assert "Created topic rides." in tools(
        "topics", "--create", "--topic", "rides", "--replica-assignment", "1:2:3,2:3:1,3:1:2"
    )
    return "rides"


def partitions(tools: Tools, topic: str) -> dict[int, tuple[int, list[int], list[int]]]:
    """Leader, replicas and ISR of each partition, as kafka-topics describes them."""
    described = tools("topics", "--describe", "--topic", topic)
    found = re.findall(r"Partition: (\d+)\s+Leader: (\S+)\s+Replicas: (\S+)\s+Isr: (\S*)", described)
    return {
        int(index): (int(leader), [int(one) for one in replicas.split(",")], sorted(int(one) for one in isr.split(",")))
        for index, leader, replicas, isr in found
    }


def test_topics(tools: Tools, rides: str) -> None:
    assert partitions(tools, rides) == {
        0: (1, [1, 2, 3], [1, 2, 3]),
        1: (2, [2, 3, 1], [1, 2, 3]),
        2: (3, [3, 1, 2], [1, 2, 3]),
    }
    assert tools("topics", "--describe", "--under-replicated-partitions") == ""
    too_many = tools(
        "topics", "--create", "--topic", "wide", "--partitions", "1", "--replication-factor", "4", fails=True
    )
    assert "replication factor" in too_many
    tools("topics", "--create", "--topic", "short", "--partitions", "2", "--replication-factor", "2")
    assert all(len(replicas) == 2 for _, replicas, _ in partitions(tools, "short").values())
    tools("topics", "--delete", "--topic", "short")
    assert "short" not in tools("topics", "--list").split()


def test_quorum(tools: Tools) -> None:
    status = tools("metadata-quorum", "describe", "--status")
    assert re.search(r"LeaderId:\s+[123]\n", status)
    assert re.search(r"CurrentVoters:.*\"id\": 1.*\"id\": 2.*\"id\": 3", status)
    replication = tools("metadata-quorum", "describe", "--replication")
    roles = re.findall(r"^(\d)\s.*\s(Leader|Follower|Observer)\s*$", replication, re.MULTILINE)
    assert sorted(node_id for node_id, _ in roles) == ["1", "2", "3"]
    assert sorted(role for _, role in roles) == ["Follower", "Follower", "Leader"]


def test_cluster_and_features(tools: Tools) -> None:
    assert re.search(r"Cluster ID: \S{22}", tools("cluster", "cluster-id"))
    endpoints = tools("cluster", "list-endpoints")
    assert [line.split()[0] for line in endpoints.splitlines()[1:]] == ["1", "2", "3"]
    described = tools("features", "describe")
    assert re.search(r"Feature: transaction.version\s+SupportedMinVersion: 0\s+SupportedMaxVersion: 2", described)
    assert re.search(r"Feature: group.version.*FinalizedVersionLevel: 1", described)
    assert "was downgraded" in tools("features", "downgrade", "--feature", "group.version=0")
    assert re.search(r"Feature: group.version.*FinalizedVersionLevel: 0", tools("features", "describe"))
    assert "was upgraded" in tools("features", "upgrade", "--feature", "group.version=1")


def test_reassignment_and_election(tools: Tools, rides: str, tmp_path: Path) -> None:
    moved = [
        {"topic": rides, "partition": 0, "replicas": [2, 1, 3]},
        {"topic": rides, "partition": 1, "replicas": [3]},
    ]
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": moved}))
    by_plan = ("--reassignment-json-file", str(plan))
    said = tools("reassign-partitions", "--execute", *by_plan)
    assert "Successfully started partition reassignments for rides-0,rides-1" in said
    until(lambda: tools("reassign-partitions", "--verify", *by_plan).count("is completed") == 2)
    assert "No partition reassignments found." in tools("reassign-partitions", "--list")
    before = partitions(tools, rides)
    assert before[0][1] == [2, 1, 3]
    assert before[1] == (3, [3], [3])
    said = tools("leader-election", "--election-type", "PREFERRED", "--topic", rides, "--partition", "0")
    assert "Successfully completed leader election (PREFERRED)" in said or before[0][0] == 2
    assert partitions(tools, rides)[0][0] == 2
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": rides}]}))
    proposed = tools(
        "reassign-partitions", "--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "1,2,3"
    )
    assert "Proposed partition reassignment configuration" in proposed
    to_unknown = [{"topic": rides, "partition": 1, "replicas": [9]}]
    plan.write_text(json.dumps({"version": 1, "partitions": to_unknown}))
    assert "Unknown broker id 9" in tools("reassign-partitions", "--execute", *by_plan, fails=True)


def test_deleted_records(tools: Tools, rides: str, tmp_path: Path) -> None:
    wanted = tmp_path / "delete.json"
    wanted.write_text(json.dumps({"version": 1, "partitions": [{"topic": rides, "partition": 2, "offset": 0}]}))
    assert "partition: rides-2\tlow_watermark: 0" in tools("delete-records", "--offset-json-file", str(wanted))


def test_voters_and_brokers_leave(tools: Tools, cluster: Cluster) -> None:
    """The last test: it takes node 3 away."""
    tools("features", "upgrade", "--feature", "kraft.version=1")
    status = tools("metadata-quorum", "describe", "--status")
    found = re.search(r"CurrentVoters:\s+(\[.*\])", status)
    assert found
    directories = {voter["id"]: voter["directoryId"] for voter in json.loads(found[1])}
    chosen = ("--controller-id", "3", "--controller-directory-id", directories[3])
    assert "KRaft controller 3" in tools("metadata-quorum", "remove-controller", *chosen)
    status = tools("metadata-quorum", "describe", "--status")
    assert re.search(r"CurrentVoters:(?!.*\"id\": 3)", status)
    cluster.kill(3)
    tools.bootstrap = ",".join(cluster.address(node_id) for node_id in (1, 2))
    assert "3 is no longer registered" in tools("cluster", "unregister", "--id", "3")
    endpoints = tools("cluster", "list-endpoints")
    assert [line.split()[0] for line in endpoints.splitlines()[1:]] == ["1", "2"]
