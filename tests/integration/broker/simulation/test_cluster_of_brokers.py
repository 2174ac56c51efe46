"""Nodes join a cluster, are fenced when they die or are silent, and leave it in order."""

from __future__ import annotations

import asyncio

import pytest
from hailbus_broker.client import Client, UnreachableError
from hailbus_broker.cluster.features import SUPPORTED
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.create_topics_request import CreatableTopic, CreateTopicsRequest
from hailbus_broker.protocol.definitions.metadata_request import MetadataRequest
from hailbus_broker.runtime.errors import StartError
from hailbus_broker.testing.simulation import (
    ClusterWorld,
    SimulatedBroker,
    SimulatedNode,
    SimulationError,
    simulated,
    simulated_cluster,
)
from hailbus_broker.testing.simulation.loop import SimulatedLoop

SESSION_S = 9


def fenced(cluster: ClusterWorld) -> dict[int, bool]:
    return {node_id: broker.fenced for node_id, broker in sorted(cluster.image.brokers.items())}


async def create_topic(cluster: ClusterWorld, name: str, *, partitions: int = 1, factor: int = 3) -> None:
    """Have the active controller decide; the request of a client is another test's."""
    await cluster.until(lambda: cluster.active is not None)
    active = cluster.node("active controller")

    async def create() -> None:
        core = active.core
        decision = core.controller.create_topic(name, partition_count=partitions, replication_factor=factor)
        await core.metadata.write(decision.records)

    await active.run(create())
    running = [node for node in cluster.nodes.values() if node.is_up]
    await cluster.until(lambda: all(name in node.core.image.topics for node in running))


@simulated(seeds=range(3))
async def test_three_nodes_come_up_and_each_can_lead() -> None:
    async with simulated_cluster() as cluster:
        assert fenced(cluster) == {1: False, 2: False, 3: False}
        assert cluster.world.loop.now_s < 2
        assert cluster.image.features == {name: last for name, (_, last) in SUPPORTED.items()}
        await cluster.until(lambda: cluster.active is not None)
        await create_topic(cluster, "rides", partitions=3)
        states = [cluster.state_of("rides", index) for index in range(3)]
        assert sorted(state.leader for state in states) == [1, 2, 3]
        assert all(sorted(state.isr) == [1, 2, 3] for state in states)


@simulated(seeds=range(3))
async def test_a_node_that_starts_again_is_not_up_before_it_serves() -> None:
    """What looks at nodes that are up never looks at the server of an earlier process."""
    async with simulated_cluster() as cluster:
        node = cluster.nodes[3]
        earlier = node.server

        def shows_earlier() -> bool:
            return node.is_up and node.server is earlier

        assert shows_earlier()
        node.kill()
        assert not shows_earlier()
        start = asyncio.ensure_future(node.start())
        while not start.done():
            assert not shows_earlier()
            await asyncio.sleep(0)
        await start
        assert node.is_up


@simulated(seeds=range(3))
async def test_a_killed_broker_is_fenced_at_once_and_returns() -> None:
    async with simulated_cluster() as cluster:
        await create_topic(cluster, "rides")
        active = cluster.node("active controller").node_id
        victim = next(node_id for node_id in cluster.nodes if node_id != active)
        epoch = cluster.image.brokers[victim].broker_epoch
        cluster.kill(victim)
        killed_s = cluster.world.loop.now_s
        await cluster.until(lambda: fenced(cluster)[victim])
        # Long before its session ends: its connection closed, and its listener refuses another.
        assert cluster.world.loop.now_s - killed_s < 1
        assert victim not in cluster.state_of("rides").isr
        await cluster.start(victim)
        assert not fenced(cluster)[victim]
        assert cluster.image.brokers[victim].broker_epoch > epoch


@simulated(seeds=range(3))
async def test_the_active_controller_dies_and_is_fenced_by_the_next_at_once() -> None:
    async with simulated_cluster() as cluster:
        await create_topic(cluster, "rides", partitions=3)
        victim = cluster.kill("active controller").node_id
        killed_s = cluster.world.loop.now_s
        await cluster.until(lambda: cluster.active is not None and fenced(cluster)[victim])
        assert cluster.world.loop.now_s - killed_s < SESSION_S / 3
        leaders = {cluster.state_of("rides", index).leader for index in range(3)}
        assert leaders == {1, 2, 3} - {victim}
        await cluster.start(victim)
        assert not any(fenced(cluster).values())


@simulated(seeds=range(3))
async def test_a_broker_whose_machine_lost_power_is_fenced_when_its_session_ends() -> None:
    async with simulated_cluster() as cluster:
        active = cluster.node("active controller").node_id
        victim = next(node_id for node_id in cluster.nodes if node_id != active)
        cluster.kill(victim, power_cut=True)
        cut_s = cluster.world.loop.now_s
        await cluster.until(lambda: fenced(cluster)[victim])
        assert SESSION_S - 2.5 < cluster.world.loop.now_s - cut_s < SESSION_S + 2
        await cluster.start(victim)
        assert not fenced(cluster)[victim]


@simulated(seeds=range(3))
async def test_a_broker_that_stops_gives_its_leaderships_away_first() -> None:
    async with simulated_cluster() as cluster:
        await create_topic(cluster, "rides", partitions=6)
        await cluster.stop(2)
        assert fenced(cluster)[2]
        states = [cluster.state_of("rides", index) for index in range(6)]
        assert {state.leader for state in states} == {1, 3}
        assert all(2 not in state.isr for state in states)
        await cluster.start(2)
        assert fenced(cluster) == {1: False, 2: False, 3: False}


@simulated(seeds=range(2))
async def test_all_nodes_stop_at_once() -> None:
    async with simulated_cluster() as cluster:
        await create_topic(cluster, "rides", partitions=3)
        began_s = cluster.world.loop.now_s
        await asyncio.gather(*(cluster.stop(node_id) for node_id in (1, 2, 3)))
        assert cluster.world.loop.now_s - began_s < 2  # the last ones wait for no controller any more
        await cluster.start()
        assert fenced(cluster) == {1: False, 2: False, 3: False}
        assert "rides" in cluster.image.topics


@simulated(seeds=range(2))
async def test_the_last_node_stops_at_once_and_one_that_is_cut_off_waits_for_the_others() -> None:
    async with simulated_cluster() as cluster:
        cluster.partition({1}, {2, 3})
        began_s = cluster.world.loop.now_s
        await cluster.stop(1)
        assert cluster.world.loop.now_s - began_s >= 3  # the others may run, and may be back in a moment
        cluster.heal()
        await cluster.stop(2)
        began_s = cluster.world.loop.now_s
        await cluster.stop(3)
        assert cluster.world.loop.now_s - began_s < 0.5


@simulated(seeds=range(4))
async def test_all_nodes_die_and_return_without_waiting_for_sessions() -> None:
    async with simulated_cluster() as cluster:
        await create_topic(cluster, "rides", partitions=3)
        for node_id in cluster.nodes:
            cluster.kill(node_id)
        began_s = cluster.world.loop.now_s
        await cluster.start()
        assert cluster.world.loop.now_s - began_s < SESSION_S / 2
        assert fenced(cluster) == {1: False, 2: False, 3: False}
        assert all(cluster.state_of("rides", index).leader in cluster.nodes for index in range(3))


@simulated(seeds=range(2))
async def test_a_cluster_of_one_node() -> None:
    async with simulated_cluster(nodes=1) as cluster:
        await create_topic(cluster, "rides", factor=1)
        cluster.kill(1)
        began_s = cluster.world.loop.now_s
        await cluster.start()
        assert cluster.world.loop.now_s - began_s < SESSION_S / 2
        assert cluster.state_of("rides").leader == 1
        assert not fenced(cluster)[1]


@simulated()
async def test_the_directory_of_a_node_without_roles_opens_as_a_cluster_of_one() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    alone = SimulatedBroker(loop.world, {"node.id": "1"}, name="node1")
    await alone.start()
    client = Client("node1:9092", "test", timeout_s=30)
    topic = CreatableTopic(name="rides", num_partitions=1, replication_factor=1)
    await client.ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic], timeout_ms=20_000))
    client.close()
    await alone.stop()
    began_s = loop.now_s
    cluster = ClusterWorld(loop.world, {1: "broker,controller"}, {})
    await cluster.start()
    assert loop.now_s - began_s < SESSION_S / 2
    assert not fenced(cluster)[1]
    assert cluster.state_of("rides").leader == 1
    assert cluster.image.brokers[1].endpoints[0].port == 9092


@simulated(seeds=range(2))
async def test_brokers_apart_from_controllers() -> None:
    async with simulated_cluster(roles=["controller", "controller", "controller", "broker", "broker"]) as cluster:
        assert fenced(cluster) == {4: False, 5: False}
        await create_topic(cluster, "rides", factor=2)
        cluster.kill("leader of rides-0")
        await cluster.until(lambda: sorted(fenced(cluster).values()) == [False, True])
        await cluster.start()
        cluster.kill("active controller")
        await cluster.advance(2 * SESSION_S)
        assert fenced(cluster) == {4: False, 5: False}


@simulated(seeds=range(3))
async def test_a_broker_that_is_cut_off_is_fenced_and_returns_without_a_restart() -> None:
    async with simulated_cluster() as cluster:
        await create_topic(cluster, "rides")
        cluster.partition({1}, {2, 3})
        await cluster.until(lambda: fenced(cluster)[1])
        before = cluster.nodes[1].broker.core.broker_epoch
        assert cluster.active is not None
        assert cluster.active.node_id != 1
        cluster.heal()
        await cluster.until(lambda: fenced(cluster) == {1: False, 2: False, 3: False})
        assert cluster.image.brokers[1].broker_epoch == before


@simulated(seeds=range(2))
async def test_without_a_quorum_nothing_changes_until_it_is_back() -> None:
    async with simulated_cluster() as cluster:
        await create_topic(cluster, "rides")
        cluster.kill(1)
        cluster.kill(2)
        await cluster.advance(3 * SESSION_S)
        assert cluster.active is None
        assert "rides" in cluster.nodes[3].core.image.topics
        await cluster.start(1, 2)
        await cluster.until(lambda: fenced(cluster) == {1: False, 2: False, 3: False})


@simulated(seeds=range(2))
async def test_metadata_of_every_node_names_all_brokers() -> None:
    async with simulated_cluster() as cluster:
        for node in cluster.nodes.values():
            client = Client(f"{node.name}:9092", "test", timeout_s=5)
            response = await client.ask(ApiKey.METADATA, 12, MetadataRequest(topics=[]))
            found = sorted((broker.node_id, broker.host, broker.port) for broker in response.brokers)
            assert found == [(1, "node1", 9092), (2, "node2", 9092), (3, "node3", 9092)]
            client.close()


@simulated(seeds=range(2))
async def test_brokers_stay_where_the_answer_to_a_heartbeat_takes_more_than_a_second() -> None:
    async with simulated_cluster() as cluster:
        await cluster.until(lambda: cluster.active is not None)
        active = cluster.node("active controller")
        others = sorted({1, 2, 3} - {active.node_id})
        for node_id in others:
            cluster.world.network.change(active.name, f"node{node_id}", min_delay_s=0.3, max_delay_s=0.4)
        cluster.kill(others[0], power_cut=True)
        await cluster.advance(5 * SESSION_S)
        assert fenced(cluster) == {active.node_id: False, others[0]: True, others[1]: False}


@simulated()
async def test_nodes_are_named_by_what_they_do() -> None:
    async with simulated_cluster() as cluster:
        for topic in ("rides.v1", "__consumer_offsets", "__transaction_state"):
            await create_topic(cluster, topic)
        for who, topic in (
            ("leader of rides.v1-0", "rides.v1"),
            ("coordinator of group surge", "__consumer_offsets"),
            ("coordinator of transactional id trips", "__transaction_state"),
        ):
            leader = cluster.state_of(topic).leader
            assert cluster.node(who) is cluster.nodes[leader]
            cluster.partition({who}, {"main"})
            client = Client(f"node{leader}:9092", "test", timeout_s=1)
            with pytest.raises(UnreachableError):
                await client.ask(ApiKey.METADATA, 12, MetadataRequest(topics=[]))
            cluster.heal()
        for who, reason in (
            ("leader of trips-0", "the cluster has no topic trips"),
            ("leader of rides.v1-7", "topic rides.v1 has 1 partitions; there is no partition 7"),
            ("the boss", "'the boss' is no node: give a node id, 'leader of TOPIC-INDEX'"),
        ):
            with pytest.raises(SimulationError, match=reason):
                cluster.kill(who)


def extra_broker(cluster: ClusterWorld, node_id: int, host: str) -> SimulatedNode:
    """Return a broker that the cluster does not have yet; its directory is not formatted."""
    settings = {
        "process.roles": "broker",
        "node.id": str(node_id),
        "listeners": f"PLAINTEXT://{host}:9092",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": cluster.voters,
        "log.dirs": "/data",
        "initial.broker.registration.timeout.ms": "5000",
    }
    return SimulatedNode(cluster.world, node_id, settings, host=host)


@simulated(seeds=range(2))
async def test_controllers_register_and_again_after_a_restart() -> None:
    async with simulated_cluster(roles=["broker,controller", "controller", "controller"]) as cluster:
        await cluster.until(lambda: sorted(cluster.image.controllers) == [1, 2, 3])
        found = [
            (one.host, one.port) for _, state in sorted(cluster.image.controllers.items()) for one in state.endpoints
        ]
        assert found == [("node1", 9093), ("node2", 9093), ("node3", 9093)]
        before = cluster.image.controllers[2].incarnation_id
        cluster.kill(2)
        await cluster.start(2)
        await cluster.until(lambda: cluster.image.controllers[2].incarnation_id != before)


@simulated()
async def test_a_fourth_broker_joins_and_leaves() -> None:
    async with simulated_cluster() as cluster:
        fourth = extra_broker(cluster, 4, "node4")
        fourth.format()
        await fourth.start()
        assert fenced(cluster) == {1: False, 2: False, 3: False, 4: False}
        await fourth.stop()
        assert fenced(cluster) == {1: False, 2: False, 3: False, 4: True}


@simulated()
async def test_a_broker_is_fenced_until_it_knows_its_own_registration() -> None:
    async with simulated_cluster() as cluster:
        fourth = extra_broker(cluster, 4, "node4")
        fourth.format()
        fourth.disk.sync_s = (4.0, 4.0)  # what it has fetched counts when it is on the disk
        starting = asyncio.ensure_future(fourth.start())
        await cluster.until(lambda: 4 in cluster.image.brokers)
        registered_s = cluster.world.loop.now_s
        await starting
        assert cluster.world.loop.now_s - registered_s > 4
        assert 4 in fourth.core.image.brokers


@simulated()
async def test_a_broker_whose_directory_is_not_formatted_says_what_to_do() -> None:
    async with simulated_cluster() as cluster:
        with pytest.raises(StartError, match=r"is not formatted: run `hailbus-broker format .*--cluster-id ID"):
            await extra_broker(cluster, 4, "node4").start()


@simulated()
async def test_a_broker_of_another_cluster_says_what_to_do() -> None:
    async with simulated_cluster() as cluster:
        stranger = extra_broker(cluster, 4, "node4")
        stranger.format("BBBBBBBBBBBBBBBBBBBBBQ")
        with pytest.raises(StartError, match="its data directory belongs to another cluster than the controllers"):
            await stranger.start()
        assert 4 not in cluster.image.brokers


@simulated()
async def test_a_second_broker_with_a_live_id_is_refused() -> None:
    async with simulated_cluster(roles=["controller", "broker", "broker"]) as cluster:
        twin = extra_broker(cluster, 2, "twin")
        twin.format()
        with pytest.raises(StartError, match=r"another broker with the same node.id is registered"):
            await twin.start()
        assert cluster.nodes[2].is_up
        assert not fenced(cluster)[2]


@simulated()
async def test_a_broker_that_was_replaced_while_it_was_cut_off_stops() -> None:
    async with simulated_cluster(roles=["controller", "broker", "broker"]) as cluster:
        cluster.partition({2}, {1, 3})
        await cluster.until(lambda: fenced(cluster)[2])
        twin = extra_broker(cluster, 2, "twin")
        twin.format()
        await twin.start()
        cluster.heal()
        await cluster.until(lambda: not cluster.nodes[2].process.is_alive)
        await cluster.advance(2 * SESSION_S)
        assert twin.is_up
        assert not fenced(cluster)[2]
