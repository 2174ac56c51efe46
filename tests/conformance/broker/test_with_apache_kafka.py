"""Nodes of Apache Kafka and of this broker in one cluster.

Apache Kafka acknowledges before it syncs, so these tests kill processes and never cut the power.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.broker.mixed_load import (
    INTERNAL,
    PARTITIONS,
    SETTINGS,
    STOPPED,
    TOPIC,
    Load,
    format_all,
    leader_of_quorum,
    start,
)
from tests.integration.broker.mixed_nodes import MixedCluster, MixedNode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = [pytest.mark.needs("apache kafka"), pytest.mark.timeout(1200)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MixedCluster]:
    with MixedCluster(tmp_path) as found:
        yield found


def serve_together(controller: MixedNode, other: MixedNode) -> None:
    """Run clients while a broker beside the controller is killed, comes back, leads again and stops in order."""
    load = Load(controller.address)
    load.create(TOPIC)
    load.run()
    load.until_both_lead()
    load.check()
    load.run()

    other.kill()
    load.until_led_by({1}, TOPIC)
    for topic in (TOPIC, *INTERNAL):
        load.until_in_sync(topic, 1)
    load.check()
    load.run()

    start(other)
    load.until_both_lead()
    load.check()
    load.run()
    load.check()

    assert other.stop() in STOPPED
    assert load.leaders() == {1}
    load.check()
    same_records(controller, other)


def same_records(one: MixedNode, other: MixedNode) -> None:
    """Both directories have the same bytes of a partition."""
    for index in range(PARTITIONS):
        contents = [(node.data / f"{TOPIC}-{index}" / "00000000000000000000.log").read_bytes() for node in (one, other)]
        assert contents[0] == contents[1]
        assert contents[0]


def test_our_broker_follows_leads_and_returns_in_the_quorum_of_apache_kafka(cluster: MixedCluster) -> None:
    apache = cluster.add(1, is_ours=False)
    ours = cluster.add(2, is_ours=True, roles="broker")
    for node in (apache, ours):
        node.settings |= {"controller.quorum.voters": apache.voter, **SETTINGS}
    format_all(apache, ours)
    start(apache, ours)
    serve_together(apache, ours)


@pytest.mark.slow
def test_a_broker_of_apache_kafka_follows_leads_and_returns_under_our_controller(cluster: MixedCluster) -> None:
    ours = cluster.add(1, is_ours=True)
    apache = cluster.add(2, is_ours=False, roles="broker")
    for node in (ours, apache):
        node.settings |= {"controller.quorum.voters": ours.voter, **SETTINGS}
    format_all(ours, apache)
    start(ours, apache)
    serve_together(ours, apache)


def start_voters(cluster: MixedCluster) -> list[MixedNode]:
    """Start a voter of Apache Kafka and two of ours."""
    nodes = [cluster.add(number, is_ours=number != 1) for number in (1, 2, 3)]
    for node in nodes:
        node.settings |= {"controller.quorum.voters": ",".join(one.voter for one in nodes), **SETTINGS}
    format_all(*nodes)
    start(*nodes)
    return nodes


@pytest.mark.slow
def test_voters_of_both_kinds_lead_one_quorum(cluster: MixedCluster) -> None:
    nodes = start_voters(cluster)
    load = Load(",".join(node.address for node in nodes))
    load.create(TOPIC, factor=3)
    kinds = set()
    for number in range(8):
        leader = leader_of_quorum(nodes)
        kinds.add(leader.is_ours)
        load.run()
        load.check()
        leader.kill()
        assert leader_of_quorum(nodes) is not leader
        load.create(f"topic-{number}", partitions=1)
        start(leader)
        load.until_in_sync(TOPIC, 3)
        if len(kinds) == 2:
            break
    assert kinds == {True, False}, "the same kind of node was elected each time"
    load.run()
    load.check()


def test_apache_kafka_serves_the_directory_of_a_single_broker_with_the_same_offsets(cluster: MixedCluster) -> None:
    node = cluster.add(1, is_ours=True)
    as_cluster = {"process.roles": "broker,controller", "controller.quorum.voters": node.voter}
    as_single = {name: "1" if name.endswith("replication.factor") else value for name, value in SETTINGS.items()}
    node.settings = as_single
    start(node)
    load = Load(node.address)
    load.create(TOPIC, factor=1)
    load.run()
    load.check()
    assert node.stop() == 0

    node.is_ours, node.settings = False, as_single | as_cluster
    start(node)
    load.check()
    load.run()
    load.check()
    assert node.stop() in STOPPED

    node.is_ours, node.settings = True, as_single
    start(node)
    load.check()
    load.run()
    load.check()
