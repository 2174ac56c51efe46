"""`hailbus quorum`, `hailbus features`, `hailbus elect` and `hailbus reassign` print the same on both brokers."""

from __future__ import annotations

import base64
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from hailbus.cli import app
from hailbus.cli.features import levels_of_release
from hailbus.cli.reassign import alternated, proposed
from typer.testing import CliRunner

from tests.support import wait_for

DIRECTORY = base64.urlsafe_b64encode(bytes(range(16))).decode().rstrip("=")


class Cluster(Protocol):
    @property
    def bootstrap(self) -> str: ...


class Command:
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._runner = CliRunner()

    def __call__(self, *words: str, code: int = 0) -> str:
        result = self._runner.invoke(app, [words[0], "--bootstrap-server", self._bootstrap, *words[1:]])
        assert result.exit_code == code, (words, result.output, result.exception)
        return result.stdout if code == 0 else result.output

    def rows(self, *words: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self(*words, "--json").splitlines()]


@pytest.fixture
def hailbus(cluster: Cluster) -> Command:
    return Command(cluster.bootstrap)


@pytest.fixture
def topic(hailbus: Command) -> Iterator[str]:
    name = f"cluster-{random.randrange(10**9)}"
    hailbus("topics", "--create", "--topic", name, "--partitions", "2", "--json")
    yield name
    hailbus("topics", "--delete", "--topic", name)


def test_the_quorum_is_described_as_by_the_tool_of_apache_kafka(hailbus: Command) -> None:
    (status,) = hailbus.rows("quorum", "describe", "--status")
    leader_id = status["LeaderId"]
    assert leader_id in {voter["id"] for voter in status["CurrentVoters"]}
    assert status["LeaderEpoch"] > 0
    assert status["HighWatermark"] > 0
    assert status["MaxFollowerLag"] >= 0
    lines = hailbus("quorum", "describe", "--status").splitlines()
    assert [re.split(r":\s+", line)[0] for line in lines] == list(status)
    assert lines[1] == f"LeaderId:               {leader_id}"
    rows = hailbus.rows("quorum", "describe", "--replication")
    assert list(rows[0]) == [
        "NodeId",
        "DirectoryId",
        "LogEndOffset",
        "Lag",
        "LastFetchTimestamp",
        "LastCaughtUpTimestamp",
        "Status",
    ]
    assert (rows[0]["NodeId"], rows[0]["Lag"], rows[0]["Status"]) == (leader_id, 0, "Leader")
    readable = hailbus("quorum", "describe", "--replication", "--human-readable").splitlines()
    assert re.search(r"20\d\d-\d\d-\d\dT", readable[1])
    assert "exactly one of --status, --replication" in hailbus("quorum", "describe", code=2)


def test_a_voter_of_the_configuration_cannot_be_removed(hailbus: Command) -> None:
    removal = ("quorum", "remove-controller", "--controller-id", "77", "--controller-directory-id")
    assert hailbus(*removal, DIRECTORY, "--dry-run") == (
        f"DRY RUN of removing  KRaft controller 77 with directory id {DIRECTORY}\n"
    )
    assert "kraft.version feature is 0" in hailbus(*removal, DIRECTORY, code=2)
    assert "no directory id" in hailbus(*removal, "short", code=2)


def test_a_controller_is_added_by_what_its_properties_say(hailbus: Command, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "meta.properties").write_text(f"#\nnode.id=5\ndirectory.id={DIRECTORY}\nversion=1\n")
    config = tmp_path / "controller.properties"
    config.write_text(
        "process.roles=broker,controller\nnode.id=5\ncontroller.listener.names=CONTROLLER\n"
        f"listeners=PLAINTEXT://:9092,CONTROLLER://10.0.0.5:9093\nlog.dirs={data}\n"
    )
    add = ("quorum", "add-controller", "--command-config", str(config))
    assert hailbus(*add, "--dry-run") == (
        f"DRY RUN of adding controller 5 with directory id {DIRECTORY} and endpoints: CONTROLLER://10.0.0.5:9093\n"
    )
    assert "kraft.version feature is 0" in hailbus(*add, code=2)
    (data / "meta.properties").unlink()
    assert f"cannot read {data}/meta.properties" in hailbus(*add, code=2)
    config.write_text("process.roles=broker\n")
    assert "has no node.id" in hailbus(*add, code=2)


def levels_of(hailbus: Command) -> dict[str, tuple[int, int, int]]:
    """Lowest, highest and finalized level of each feature."""
    rows = hailbus.rows("features", "describe")
    names = ("SupportedMinVersion", "SupportedMaxVersion", "FinalizedVersionLevel")
    return {row["Feature"]: (row[names[0]], row[names[1]], row[names[2]]) for row in rows}


def test_features_are_described_as_by_the_tool_of_apache_kafka(hailbus: Command) -> None:
    levels = levels_of(hailbus)
    assert levels["transaction.version"] == (0, 2, 2)
    assert levels["kraft.version"] == (0, 1, 0)
    assert levels["metadata.version"][1:] == (30, 30)
    assert all(row["Epoch"] >= 0 for row in hailbus.rows("features", "describe"))
    lines = hailbus("features", "describe").splitlines()
    assert [re.split(r"\s+", line)[1] for line in lines] == sorted(levels)
    of_metadata = next(line for line in lines if "metadata.version" in line)
    assert re.fullmatch(
        r"Feature: metadata\.version {24} SupportedMinVersion: \d\.\d-IV\d         "
        r"SupportedMaxVersion: 4\.3-IV0         FinalizedVersionLevel: 4\.3-IV0         Epoch: \d+",
        of_metadata,
    )
    (status,) = hailbus.rows("quorum", "describe", "--status")
    asked = hailbus("features", "describe", "--node-id", str(status["LeaderId"]))
    assert re.sub(r"Epoch: \d+", "", asked) == re.sub(r"Epoch: \d+", "", "\n".join(lines) + "\n")
    assert "--node-id 4711 is no live broker" in hailbus("features", "describe", "--node-id", "4711", code=2)


def test_a_level_is_lowered_and_raised_again(hailbus: Command) -> None:
    # No other test depends on the level: those of Apache Kafka run on the same broker at the same time.
    feature, before = ("streams.version", 1) if "streams.version" in levels_of(hailbus) else ("transaction.version", 2)
    lower, same = f"{feature}={before - 1}", f"{feature}={before}"
    dry = hailbus("features", "downgrade", "--feature", lower, "--dry-run")
    assert dry == f"{feature} can be downgraded to {before - 1}.\n"
    assert levels_of(hailbus)[feature][2] == before
    assert hailbus("features", "downgrade", "--feature", lower) == f"{feature} was downgraded to {before - 1}.\n"
    try:
        wait_for(
            "the lower level reaches the broker that is asked", lambda: levels_of(hailbus)[feature][2] == before - 1
        )
    finally:
        raised = hailbus("features", "upgrade", "--feature", same)
    assert raised == f"{feature} was upgraded to {before}.\n"
    wait_for("the level as before reaches the broker that is asked", lambda: levels_of(hailbus)[feature][2] == before)
    assert hailbus("features", "disable", "--feature", feature, "--dry-run") == f"{feature} can be disabled.\n"


def test_levels_that_are_refused_change_nothing(hailbus: Command) -> None:
    before = levels_of(hailbus)
    refused = hailbus(
        "features", "upgrade", "--feature", "transaction.version=3", "--feature", "group.version=1", code=1
    )
    assert "Could not upgrade transaction.version to 3. " in refused
    assert "Could not upgrade group.version to 1. " in refused
    assert "Invalid update version 3 for feature transaction.version" in refused
    assert refused.endswith("2 out of 2 operation(s) failed.\n")
    lower = hailbus("features", "upgrade", "--feature", "transaction.version=1", "--dry-run", code=1)
    assert lower.startswith("Can not upgrade transaction.version to 1. ")
    assert "Can't downgrade the version of this feature" in lower
    assert levels_of(hailbus) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("upgrade",), "name at least one feature to upgrade"),
        (("disable",), "name at least one --feature to disable"),
        (("upgrade", "--feature", "group.version"), "'group.version' is not like metadata.version=30"),
        (("downgrade", "--feature", "group.version=one"), "is not like metadata.version=30"),
        (("downgrade", "--feature", "group.version=32768"), "is not like metadata.version=30"),
        (("upgrade", "--feature", "a=1", "--feature", "a=2"), "feature a is named twice"),
        (("upgrade", "--metadata", "4.3", "--feature", "metadata.version=30"), "metadata.version is named twice"),
        (("upgrade", "--metadata", "9.9"), "give a version from 3.3-IV3 to 4.3-IV0"),
        (("upgrade", "--release-version", "4.3", "--metadata", "4.3"), "do not combine it"),
    ],
)
def test_levels_that_make_no_sense_are_not_sent(words: tuple[str, ...], message: str) -> None:
    assert message in Command("127.0.0.1:1")("features", *words, code=2)


@pytest.mark.parametrize(
    ("release", "levels"),
    [
        # As `kafka-features version-mapping` of Apache Kafka 4.3 prints them.
        ("4.3", (30, 1, 2, 1, 1, 1, 1)),
        ("4.2-IV0", (28, 1, 2, 1, 1, 1, 0)),
        ("4.0", (25, 1, 2, 1, 0, 0, 0)),
        ("4.0-IV0", (22, 1, 0, 1, 0, 0, 0)),
        ("3.9", (21, 1, 0, 0, 0, 0, 0)),
        ("3.3-IV3", (7, 0, 0, 0, 0, 0, 0)),
    ],
)
def test_a_release_has_a_level_of_each_feature(release: str, levels: tuple[int, ...]) -> None:
    names = [
        "metadata.version",
        "kraft.version",
        "transaction.version",
        "group.version",
        "eligible.leader.replicas.version",
        "share.version",
        "streams.version",
    ]
    assert levels_of_release(release) == dict(zip(names, levels, strict=True))


def test_an_election_that_is_not_needed_is_none(hailbus: Command, topic: str, tmp_path: Path) -> None:
    preferred = ("elect", "--election-type", "preferred")
    for kind in ("preferred", "unclean"):
        said = hailbus("elect", "--election-type", kind, "--topic", topic, "--partition", "0")
        assert said == f"Valid replica already elected for partitions {topic}-0\n"
    file = tmp_path / "partitions.json"
    file.write_text(json.dumps({"partitions": [{"topic": topic, "partition": index} for index in (0, 1)]}))
    said = hailbus(*preferred, "--path-to-json-file", str(file))
    assert said == f"Valid replica already elected for partitions {topic}-0, {topic}-1\n"
    hailbus(*preferred, "--all-topic-partitions")
    refused = hailbus(*preferred, "--topic", f"{topic}-gone", "--partition", "0", code=1)
    assert f"Error completing leader election (PREFERRED) for partition: {topic}-gone-0" in refused
    assert "--topic and --partition go together" in hailbus(*preferred, "--topic", topic, code=2)
    assert "is not preferred, unclean" in hailbus(
        "elect", "--election-type", "best", "--topic", topic, "--partition", "0", code=2
    )


def test_partitions_are_reassigned(hailbus: Command, topic: str, tmp_path: Path) -> None:
    assert hailbus("reassign", "--list") == "No partition reassignments found.\n"
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": topic}]}))
    broker = str(hailbus.rows("quorum", "describe", "--status")[0]["LeaderId"])
    move = ("--topics-to-move-json-file", str(topics), "--broker-list")
    current, plan = re.findall(r"^\{.*\}$", hailbus("reassign", "--generate", *move, broker), re.MULTILINE)
    assert json.loads(current) == json.loads(plan)
    assert json.loads(plan)["partitions"] == [
        {"topic": topic, "partition": index, "replicas": [int(broker)], "log_dirs": ["any"]} for index in (0, 1)
    ]
    assert "names 4711" in hailbus("reassign", "--generate", *move, "4711", code=2)
    file = tmp_path / "plan.json"
    file.write_text(plan)
    by_plan = ("--reassignment-json-file", str(file))
    started = hailbus("reassign", "--execute", *by_plan)
    assert json.loads(started.splitlines()[2]) == json.loads(current)
    assert started.endswith(f"Successfully started partition reassignments for {topic}-0,{topic}-1\n")
    assert hailbus("reassign", "--verify", *by_plan).splitlines() == [
        "Status of partition reassignment:",
        f"Reassignment of partition {topic}-0 is completed.",
        f"Reassignment of partition {topic}-1 is completed.",
    ]
    assert hailbus("reassign", "--cancel", *by_plan) == "None of the specified partition reassignments are active.\n"
    file.write_text(plan.replace(f"[{broker}]", "[4711]", 1))
    assert f"{topic}-0" in hailbus("reassign", "--execute", *by_plan, code=2)
    assert f"replica set is {broker} rather than 4711" in hailbus("reassign", "--verify", *by_plan)
    file.write_text("{}")
    assert 'is not like {"version": 1' in hailbus("reassign", "--execute", *by_plan, code=2)
    assert "--reassignment-json-file is needed" in hailbus("reassign", "--execute", code=2)


def test_a_proposal_spreads_leaders_and_replicas_over_racks() -> None:
    order = alternated({1: "a", 2: "a", 3: "b", 4: "b", 5: "c"})
    assert order == [1, 3, 5, 2, 4]
    current = {("t", index): [1, 2] for index in range(10)}
    plan = proposed(current, order)
    leaders = [replicas[0] for replicas in plan.values()]
    assert {leaders.count(broker) for broker in order} == {2}
    held = [broker for replicas in plan.values() for broker in replicas]
    assert {held.count(broker) for broker in order} == {4}
