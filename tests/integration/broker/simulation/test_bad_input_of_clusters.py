"""Mistakes in the use of a cluster: Kafka's error code, a sentence that says what to do, and nothing lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.alter_partition_reassignments_request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from hailbus_broker.protocol.definitions.broker_registration_request import BrokerRegistrationRequest
from hailbus_broker.protocol.definitions.create_topics_request import CreatableTopic, CreateTopicsRequest
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.runtime.errors import StartError
from hailbus_broker.runtime.membership import Membership
from hailbus_broker.testing.simulation import SimulatedNode, simulated, simulated_cluster

from tests.integration.broker.simulation.account import TOPIC, Account, create_topic, until_in_sync
from tests.integration.broker.simulation.test_cluster_of_brokers import extra_broker

if TYPE_CHECKING:
    from hailbus_broker.testing.simulation import ClusterWorld

SETTINGS = {
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "3000",
    "initial.broker.registration.timeout.ms": "5000",
}
METADATA = "/data/__cluster_metadata-0/"
OTHER_CLUSTER = "BBBBBBBBBBBBBBBBBBBBBQ"


async def prepared(cluster: ClusterWorld) -> Account:
    account = Account(cluster)
    await create_topic(account)
    await account.until_acknowledged()
    return account


def combined_twin(cluster: ClusterWorld, node_id: int) -> SimulatedNode:
    """Return a second node with an id, on a host of its own."""
    settings = {
        **SETTINGS,
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "listeners": "PLAINTEXT://twin:9092,CONTROLLER://twin:9093",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": cluster.voters,
        "log.dirs": "/data",
    }
    return SimulatedNode(cluster.world, node_id, settings, host="twin")


# ---------------------------------------------------------------------- nodes that do not belong


@simulated(seeds=range(1))
async def test_the_second_of_two_nodes_with_one_id_stops_and_says_why() -> None:
    async with simulated_cluster(SETTINGS) as cluster:
        account = await prepared(cluster)
        active = cluster.node("active controller")
        victim = active.node_id % 3 + 1
        twin = combined_twin(cluster, victim)
        twin.format()
        async with account.sending():
            with pytest.raises(StartError, match=r"same node\.id is registered .*; give this one another node\.id"):
                await twin.start()
        twin.process.kill()
        assert cluster.active is active
        assert not cluster.image.brokers[victim].fenced
        await until_in_sync(cluster, 1, 2, 3)
        await account.check()


@simulated()
async def test_a_controller_of_another_cluster_does_not_join_the_quorum() -> None:
    async with simulated_cluster(SETTINGS) as cluster:
        account = await prepared(cluster)
        stranger = cluster.nodes[cluster.node("active controller").node_id % 3 + 1]
        stranger.wipe()
        stranger.format(OTHER_CLUSTER)
        with pytest.raises(StartError, match="its data directory belongs to another cluster than the controllers"):
            await stranger.start()
        stranger.process.kill()
        await account.until_acknowledged()
        stranger.wipe()
        stranger.format()
        await stranger.start()
        await until_in_sync(cluster, 1, 2, 3)
        await account.check()


@simulated()
async def test_a_voter_that_is_not_formatted_says_what_to_do_and_the_others_work() -> None:
    async with simulated_cluster(SETTINGS) as cluster:
        account = await prepared(cluster)
        voter = cluster.node("active controller")
        voter.wipe()
        with pytest.raises(StartError, match=r"is not formatted: run `hailbus-broker format .*--cluster-id ID"):
            await voter.start()
        voter.process.kill()
        await account.until_acknowledged()


@pytest.mark.parametrize("feature", ["group.version", "metadata.version", "transaction.version"])
def test_a_broker_with_an_older_feature_level_is_refused(feature: str, monkeypatch: pytest.MonkeyPatch) -> None:
    registration = Membership._registration

    def of_an_older_version(self: Membership) -> BrokerRegistrationRequest:
        request = registration(self)
        for found in request.features:
            if found.name == feature and request.broker_id == 4:
                found.max_supported_version -= 1
        return request

    monkeypatch.setattr(Membership, "_registration", of_an_older_version)

    @simulated()
    async def run() -> None:
        async with simulated_cluster(SETTINGS) as cluster:
            older = extra_broker(cluster, 4, "node4")
            older.format()
            with pytest.raises(
                StartError,
                match=r"does not support a feature level .*: install the version that the other brokers have",
            ):
                await older.start()
            assert 4 not in cluster.image.brokers

    run()


# ---------------------------------------------------------------------- no quorum


@simulated(seeds=range(1))
async def test_without_a_quorum_reads_continue_and_writes_say_why() -> None:
    async with simulated_cluster(SETTINGS) as cluster:
        account = await prepared(cluster)
        survivor = cluster.node(f"leader of {TOPIC}-0").node_id
        rest = [node_id for node_id in (1, 2, 3) if node_id != survivor]
        for node_id in rest:
            cluster.kill(node_id)
        await cluster.until(lambda: cluster.active is None)
        assert (await account.fetch(survivor)).values == account.acknowledged
        assert await account.send(to=survivor) is ErrorCode.REQUEST_TIMED_OUT
        assert "in-sync replicas" in account.messages[-1]
        topic = CreatableTopic(name="more", num_partitions=1, replication_factor=1)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=2_000)
        result = (await account.ask(survivor, ApiKey.CREATE_TOPICS, 7, request)).topics[0]
        assert ErrorCode(result.error_code) is ErrorCode.REQUEST_TIMED_OUT
        assert result.error_message.endswith("check that a majority of the controllers runs")
        assert (await account.fetch(survivor)).values == account.acknowledged
        await cluster.start(*rest)
        await until_in_sync(cluster, 1, 2, 3)
        await account.until_acknowledged()
        await account.check()


def copy_metadata(source: SimulatedNode, target: SimulatedNode) -> None:
    """Do what an operator does who restores the folder of the metadata."""
    for name in target.disk.list(METADATA.rstrip("/")):
        target.disk.remove(METADATA + name)
    for name in source.disk.list(METADATA.rstrip("/")):
        target.disk.write_whole(METADATA + name, source.disk.read_bytes(METADATA + name) or b"")


def damage(node: SimulatedNode) -> None:
    """Flip a bit in the middle of the metadata log, with whole batches behind it."""
    path = max(path for path in node.disk.paths() if path.startswith(METADATA) and path.endswith(".log"))
    data = bytearray(node.disk.read_bytes(path) or b"")
    data[len(data) // 2] ^= 1
    node.disk.write_whole(path, bytes(data))


@simulated(seeds=range(1))
async def test_corrupt_metadata_of_a_majority_is_refused_and_can_be_restored() -> None:
    async with simulated_cluster(SETTINGS) as cluster:
        account = await prepared(cluster)
        intact = cluster.node("leader of rides.v1-0")
        damaged = [node for node in cluster.nodes.values() if node is not intact]
        await cluster.until(
            lambda: len({node.core.metadata.quorum.log.synced_end_offset for node in cluster.nodes.values()}) == 1
        )
        for node in damaged:
            node.kill()
            damage(node)
        for node in damaged:
            with pytest.raises(StartError, match=r"cannot read the cluster's metadata: .*; restore") as refusal:
                await node.start()
            assert METADATA.rstrip("/") in str(refusal.value)
            node.process.kill()
        await cluster.until(lambda: cluster.active is None)
        assert (await account.fetch(intact.node_id)).values == account.acknowledged
        intact.kill()
        for node in damaged:
            copy_metadata(intact, node)
        await cluster.start()
        await until_in_sync(cluster, 1, 2, 3)
        await account.until_acknowledged()
        await account.check()


@simulated(seeds=range(1))
async def test_a_node_with_corrupt_metadata_is_filled_again_by_a_majority() -> None:
    async with simulated_cluster(SETTINGS) as cluster:
        account = await prepared(cluster)
        node = cluster.node("active controller")
        node.kill()
        damage(node)
        with pytest.raises(StartError, match="cannot read the cluster's metadata"):
            await node.start()
        await account.until_acknowledged()
        node.wipe()
        node.format()
        await node.start()
        await until_in_sync(cluster, 1, 2, 3)
        await account.check()


# ---------------------------------------------------------------------- requests


@simulated()
async def test_requests_that_no_cluster_can_fulfil_say_why() -> None:
    async with simulated_cluster(SETTINGS) as cluster:
        account = await prepared(cluster)
        before = cluster.state_of(TOPIC)

        async def create(factor: int) -> Any:
            topic = CreatableTopic(name="more", num_partitions=1, replication_factor=factor)
            request = CreateTopicsRequest(topics=[topic], timeout_ms=5_000)
            return (await account.ask(1, ApiKey.CREATE_TOPICS, 7, request)).topics[0]

        result = await create(4)
        assert ErrorCode(result.error_code) is ErrorCode.INVALID_REPLICATION_FACTOR
        assert result.error_message.endswith(
            "only 3 broker(s) are registered. Start more brokers, or ask for 3 at most."
        )
        change = ReassignablePartition(partition_index=0, replicas=[1, 2, 9])
        request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=TOPIC, partitions=[change])])
        answer = (await account.ask(2, ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, request)).responses[0].partitions[0]
        assert ErrorCode(answer.error_code) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert answer.error_message.endswith(
            "includes broker 9, but no such broker is registered. Registered are 1, 2, 3."
        )
        assert cluster.state_of(TOPIC) == before
        await account.until_acknowledged()
        await account.check()
