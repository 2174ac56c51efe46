"""Quorums whose log names the voters, begun by one kind of node and joined by the other.

`uv run just slow tests/conformance/broker/test_dynamic_quorum_with_apache_kafka.py` runs all of them.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.broker.mixed_load import (
    CLUSTER_ID,
    INTERNAL,
    SETTINGS,
    TOPIC,
    Load,
    hailbus,
    leader_of_quorum,
    start,
)
from tests.integration.broker.mixed_nodes import DEADLINE_S, FEATURES, MixedCluster, MixedNode, run_tool
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = [pytest.mark.needs("apache kafka"), pytest.mark.timeout(1200), pytest.mark.slow]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MixedCluster]:
    with MixedCluster(tmp_path) as found:
        yield found


def describe(cluster: MixedCluster, kinds: dict[int, bool]) -> list[MixedNode]:
    """Return combined nodes that find the quorum by its bootstrap servers."""
    nodes = [cluster.add(node_id, is_ours=is_ours) for node_id, is_ours in kinds.items()]
    servers = ",".join(node.controller_address for node in nodes)
    for node in nodes:
        node.settings |= {"controller.quorum.bootstrap.servers": servers, **SETTINGS}
    return nodes


def format_node(node: MixedNode, *flags: str) -> None:
    node.format(CLUSTER_ID, *flags, *(() if node.is_ours else FEATURES))


def voters(node: MixedNode) -> dict[int, str]:
    """Return the directory id of each voter, as a node answers."""
    status: dict[str, Any] = json.loads(hailbus(node.address, "quorum", "describe", "--status", "--json"))
    return {voter["id"]: voter["directoryId"] for voter in status["CurrentVoters"]}


def directory_id(node: MixedNode) -> str:
    lines = (node.data / "meta.properties").read_text().splitlines()
    return next(line.partition("=")[2] for line in lines if line.startswith("directory.id="))


def until_voters(asked: MixedNode, expected: list[MixedNode]) -> None:
    """Wait until a node answers with these voters, and their directories."""
    named = {node.node_id: directory_id(node) for node in expected}
    wait_for(f"the voters {sorted(named)}", lambda: voters(asked) == named, DEADLINE_S)


def until_caught_up(asked: MixedNode, node: MixedNode) -> None:
    """Wait until a controller has the whole metadata log: Apache Kafka adds no voter that is behind."""

    def is_caught_up() -> bool:
        lines = hailbus(asked.address, "quorum", "describe", "--replication", "--json").splitlines()
        found = {line["NodeId"]: line for line in map(json.loads, lines)}
        return node.node_id in found and found[node.node_id]["Lag"] <= 1

    wait_for(f"node {node.node_id} to catch up", is_caught_up, DEADLINE_S)


def change_by_apache(asked: MixedNode, *command: str) -> str:
    """Run Apache Kafka's command until a leader has answered.

    It asks any broker of the cluster, whichever address it is given. A broker of Apache Kafka hands the request to the
    controller that led when it looked last, which refuses once it leads no more; neither broker nor command repeats it.
    """
    said = ""

    def is_answered() -> bool:
        nonlocal said
        said = run_tool("metadata-quorum", "--bootstrap-server", asked.address, *command, check=False)
        return "NotLeaderOrFollowerException" not in said

    wait_for("an answer of the leader", is_answered, DEADLINE_S)
    return said


def add_voter(asked: MixedNode, node: MixedNode, *, by_apache: bool) -> None:
    """Add a controller to the voters, by Apache Kafka's command or by ours."""
    until_caught_up(asked, node)
    words = ("add-controller", "--command-config" if by_apache else "--config", str(node.properties()))
    if by_apache:
        config, command = words[1:], words[0]
        said = change_by_apache(asked, *config, command)
    else:
        said = hailbus(asked.address, "quorum", *words)
    assert f"Added controller {node.node_id} with directory id {directory_id(node)}" in said


def remove_voter(asked: MixedNode, node: MixedNode, *, by_apache: bool) -> None:
    """Remove a controller from the voters, by Apache Kafka's command or by ours."""
    which = ("--controller-id", str(node.node_id), "--controller-directory-id", directory_id(node))
    if by_apache:
        said = change_by_apache(asked, "remove-controller", *which)
        assert f"KRaft controller {node.node_id} with directory id {directory_id(node)}" in said
    else:
        hailbus(asked.address, "quorum", "remove-controller", *which)


def topics(node: MixedNode) -> list[str]:
    return [name for name in hailbus(node.address, "topics", "--list").split() if name not in INTERNAL]


def until_topics(node: MixedNode, expected: list[str]) -> None:
    wait_for(f"the topics of node {node.node_id}", lambda: topics(node) == expected, DEADLINE_S)


@pytest.mark.parametrize("is_first_ours", [False, True], ids=["begun by Apache Kafka", "begun by ours"])
def test_a_quorum_is_joined_led_and_left_by_voters_of_the_other_kind(
    cluster: MixedCluster, *, is_first_ours: bool
) -> None:
    """Two of the other kind join a quorum of one, so that the death of its first voter makes one of them lead."""
    first, *others = nodes = describe(cluster, {1: is_first_ours, 2: not is_first_ours, 3: not is_first_ours})
    format_node(first, "--standalone")
    for node in others:
        format_node(node, "--no-initial-controllers")
    start(*nodes)
    until_voters(others[0], [first])

    for node in others:
        add_voter(first, node, by_apache=node.node_id == 2)
    until_voters(first, nodes)
    assert leader_of_quorum(nodes) is first
    load = Load(",".join(node.address for node in nodes))
    load.create(TOPIC, factor=3)
    load.run()

    first.kill()
    leader = leader_of_quorum(others)
    assert leader.is_ours is not is_first_ours
    load.create("under-the-second-leader", partitions=1, factor=2)
    load.run()
    load.check()
    start(first)
    load.until_in_sync(TOPIC, 3)
    until_caught_up(leader, first)

    # The leader itself goes, then the last voter of its kind. `hailbus quorum` asks a broker of ours, which finds the
    # leader after a change.
    ours = next(node for node in nodes if node.is_ours)
    other = next(node for node in others if node is not leader)
    remove_voter(ours, leader, by_apache=True)
    until_voters(first, [first, other])
    assert leader_of_quorum(nodes) in (first, other)
    remove_voter(ours, other, by_apache=False)
    until_voters(first, [first])
    assert leader_of_quorum(nodes) is first
    load.create("under-the-last-leader", partitions=1, factor=3)
    load.run()
    load.check()

    # What was removed keeps serving as a broker, and can join again.
    add_voter(ours, others[0], by_apache=True)
    until_voters(first, [first, others[0]])
    expected = [TOPIC, "under-the-last-leader", "under-the-second-leader"]
    for node in nodes:
        until_topics(node, expected)


def test_controllers_of_both_kinds_that_are_formatted_together_are_a_quorum(cluster: MixedCluster) -> None:
    nodes = describe(cluster, {1: False, 2: True, 3: True})
    ids = {node.node_id: urlsafe_b64encode(bytes([node.node_id] * 16)).decode().rstrip("=") for node in nodes}
    named = ",".join(f"{node.voter}:{ids[node.node_id]}" for node in nodes)
    for node in nodes:
        format_node(node, "--initial-controllers", named)
    start(*nodes)
    assert voters(nodes[0]) == ids
    load = Load(",".join(node.address for node in nodes))
    load.create(TOPIC, factor=3)
    kinds: set[bool] = set()
    for number in range(8):
        leader = leader_of_quorum(nodes)
        kinds.add(leader.is_ours)
        load.create(f"topic-{number}", partitions=1, factor=3)
        load.run()
        if kinds == {True, False}:
            break
        leader.kill()
        assert leader_of_quorum(nodes) is not leader
        start(leader)
        load.until_in_sync(TOPIC, 3)
    assert kinds == {True, False}, "the same kind of node was elected each time"
    load.check()
    assert topics(nodes[0]) == topics(nodes[1]) == [TOPIC, *(f"topic-{one}" for one in range(number + 1))]
    assert voters(nodes[1]) == ids
