"""Failures with a name, seen from the outside: what clients were told, what they can read, which error they get."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Never
from unittest.mock import patch

import pytest
from hailbus_broker.client import UnreachableError
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.alter_partition_reassignments_request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.runtime.errors import StartError
from hailbus_broker.runtime.replica import RemoteReplica
from hailbus_broker.testing.simulation import simulated, simulated_cluster
from hailbus_broker.testing.simulation.host_disk import DiskFault

from tests.integration.broker.simulation.account import (
    TOPIC,
    Account,
    Fetched,
    create_topic,
    replica_of,
    until_in_sync,
)
from tests.integration.broker.simulation.test_cluster_of_brokers import extra_broker
from tests.integration.broker.simulation.test_requests_across_brokers import create, until_all_know
from tests.integration.broker.simulation.test_transactions_across_brokers import Nowhere
from tests.integration.broker.simulation.transactional_client import TransactionalClient

if TYPE_CHECKING:
    from hailbus_broker.testing.simulation import ClusterWorld

SETTINGS = {"min.insync.replicas": "2", "replica.lag.time.max.ms": "3000"}
APART = ["controller", "broker", "broker", "broker"]
LEADER = f"leader of {TOPIC}-0"
ID = "trips"
SEEDS = range(2)


def epochs(cluster: ClusterWorld) -> tuple[int, int, int]:
    """What changes with each election: of the controller, of the partition, and with each change of the ISR."""
    state = cluster.state_of(TOPIC)
    return cluster.node("active controller").core.metadata.quorum.epoch, state.leader_epoch, state.partition_epoch


async def until_stable(account: Account, node_id: int, offset: int) -> Fetched:
    """Read committed records once the last stable offset is there."""
    log = replica_of(account.cluster.nodes[node_id], account.topic).log
    await account.cluster.until(lambda: log.last_stable_offset >= offset)
    return await account.fetch(node_id, is_committed=True)


@pytest.mark.parametrize("task", ["membership", "metadata-publisher"])
@simulated(seeds=SEEDS)
async def test_a_node_stops_when_a_task_that_it_needs_fails(task: str) -> None:
    """A defect must not leave a broker that serves on, fenced for ever or with old metadata."""

    def fail(*_: object) -> Never:
        raise ZeroDivisionError

    async with simulated_cluster(SETTINGS) as cluster:
        account = Account(cluster)
        await create_topic(account)
        node = cluster.node(LEADER)
        part, step = {
            "membership": (node.broker.membership, "_heartbeat"),
            "metadata-publisher": (node.core.publisher._has_work, "clear"),
        }[task]
        with patch.object(part, step, fail):
            others = [node_id for node_id in cluster.nodes if node_id != node.node_id]
            writing = asyncio.create_task(create_topic(Account(cluster, topic="another"), replicas=others))
            await cluster.until(lambda: not node.is_up)
            writing.cancel()
        assert f"the task {task} has failed" in str(node.core.reason_to_stop)
        await node.start()
        await until_in_sync(cluster, 1, 2, 3)
        await account.until_acknowledged()


# ---------------------------------------------------------------------- leaders and followers


@simulated(seeds=SEEDS)
async def test_an_old_leader_that_comes_back_commits_nothing() -> None:
    async with simulated_cluster(SETTINGS) as cluster:
        account = Account(cluster)
        await create_topic(account)
        await account.until_acknowledged()
        old = cluster.node(LEADER)
        old_epoch = cluster.state_of(TOPIC).leader_epoch
        others = {1, 2, 3} - {old.node_id}
        cluster.partition({old.node_id}, others)  # clients reach all nodes
        before = dict(account.acknowledged)
        for _ in range(3):
            assert await account.send(to=old.node_id) in {None, ErrorCode.REQUEST_TIMED_OUT}
        lost = set(account.unknown)
        assert replica_of(old).log.log_end_offset == len(before) + 3, "it believes that it leads"
        await cluster.until(lambda: cluster.state_of(TOPIC).leader in others)
        await account.until_acknowledged()
        # Committed records can be read from both, and nothing else.
        assert (await account.fetch(old.node_id)).values == before
        leader = cluster.node(LEADER).node_id
        assert (await account.fetch(leader, leader_epoch=old_epoch)).code is ErrorCode.FENCED_LEADER_EPOCH
        new_epoch = cluster.state_of(TOPIC).leader_epoch
        assert (await account.fetch(old.node_id, leader_epoch=new_epoch)).code is ErrorCode.UNKNOWN_LEADER_EPOCH
        cluster.heal()
        await until_in_sync(cluster, 1, 2, 3)
        assert await account.send(to=old.node_id) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await account.until_acknowledged()
        assert not lost & set((await account.check()).values())


@simulated(seeds=SEEDS)
async def test_a_leader_that_is_cut_from_its_followers_only_refuses_writes_and_serves_reads() -> None:
    async with simulated_cluster(SETTINGS, roles=APART) as cluster:
        account = Account(cluster)
        await create_topic(account, replicas=(2, 3, 4))
        await account.until_acknowledged()
        before = dict(account.acknowledged)
        cluster.partition({2}, {3, 4})  # the controller and clients reach all brokers
        async with account.sending():
            await until_in_sync(cluster, 2)
        assert cluster.state_of(TOPIC).leader == 2
        assert await account.send() is ErrorCode.NOT_ENOUGH_REPLICAS
        assert account.acknowledged == before
        assert (await account.fetch(2)).values == before
        cluster.heal()
        await until_in_sync(cluster, 2, 3, 4)
        await account.until_acknowledged()
        assert cluster.state_of(TOPIC).leader == 2
        await account.check()


@simulated(seeds=SEEDS)
async def test_after_crashes_of_all_replicas_the_one_that_led_last_leads() -> None:
    async with simulated_cluster(SETTINGS, roles=APART) as cluster:
        account = Account(cluster)
        await create_topic(account, replicas=(2, 3, 4))
        await account.until_acknowledged()
        for victim, rest in ((4, {2, 3}), (3, {2})):
            cluster.kill(victim)
            await until_in_sync(cluster, *rest)
            if len(rest) > 1:
                await account.until_acknowledged()
        cluster.kill(2)
        await cluster.until(lambda: cluster.state_of(TOPIC).leader == -1)
        await cluster.start(4)
        await cluster.start(3)
        await cluster.advance(15)
        assert await account.leader() is None, "a crash may have taken records of the others"
        await cluster.start(2)
        await cluster.until(lambda: cluster.state_of(TOPIC).leader == 2)
        await account.until_acknowledged()
        await until_in_sync(cluster, 2, 3, 4)
        await account.check()


@simulated(seeds=SEEDS)
async def test_an_unclean_leader_is_elected_only_where_the_topic_asks_for_it() -> None:
    async with simulated_cluster({**SETTINGS, "min.insync.replicas": "1"}, roles=APART) as cluster:
        strict, lax = Account(cluster, "strict"), Account(cluster, "lax")
        await create_topic(strict, replicas=(2, 3, 4))
        await create_topic(lax, replicas=(2, 3, 4), configs={"unclean.leader.election.enable": "true"})
        for account in (strict, lax):
            await account.until_acknowledged()
        kept = dict(lax.acknowledged)
        for victim, rest in ((4, (2, 3)), (3, (2,))):
            cluster.kill(victim)
            for account in (strict, lax):
                await until_in_sync(cluster, *rest, topic=account.topic)
        for account in (strict, lax):
            await account.until_acknowledged()  # which only 2 has
        cluster.kill(2, power_cut=True)
        await cluster.until(lambda: {cluster.state_of(topic).leader for topic in ("strict", "lax")} == {-1})
        await cluster.start(3)
        await cluster.until(lambda: cluster.state_of("lax").leader == 3)
        await cluster.advance(15)
        assert await strict.leader() is None
        assert await lax.read_all() == kept, "the topic has said that this may be"
        others = Account(cluster, "lax")  # another client, which writes where records were lost
        await others.until_acknowledged()
        await cluster.start(2)
        await cluster.start(4)
        await strict.until_acknowledged()
        for account in (strict, lax):
            await until_in_sync(cluster, 2, 3, 4, topic=account.topic)
        await strict.check()
        found = await others.read_all()
        assert found == kept | others.acknowledged


# ---------------------------------------------------------------------- disks


@pytest.mark.parametrize("role", ["leader", "follower"])
@simulated(seeds=SEEDS)
async def test_a_disk_that_lies_about_syncs_loses_nothing_that_two_others_have(role: str) -> None:
    async with simulated_cluster(SETTINGS) as cluster:
        account = Account(cluster)
        await create_topic(account)
        leader = cluster.state_of(TOPIC).leader
        liar = cluster.nodes[leader if role == "leader" else leader % 3 + 1]
        await account.until_acknowledged()
        liar.disk.is_lying = True
        for node_id in cluster.nodes:
            if node_id != leader:  # what is acknowledged is on its way for long
                cluster.world.network.change(f"node{leader}", f"node{node_id}", min_delay_s=0.3, max_delay_s=0.4)
        async with account.sending():
            await cluster.advance(3)
            cluster.kill(liar.node_id, power_cut=True)
        assert cluster.world.notes["sync that stores nothing"]
        await account.until_acknowledged()
        liar.disk.is_lying = False
        cluster.heal()
        await cluster.start()
        await until_in_sync(cluster, 1, 2, 3)
        await account.check()


@simulated(seeds=SEEDS)
async def test_a_full_disk_of_the_active_controller_costs_an_election_and_no_record() -> None:
    async with simulated_cluster(SETTINGS) as cluster:
        account = Account(cluster)
        await create_topic(account)
        await account.until_acknowledged()
        full = cluster.node("active controller")
        rest = sorted({1, 2, 3} - {full.node_id})
        async with account.sending():
            full.disk.capacity_bytes = full.disk.used_bytes()
            await cluster.until(lambda: cluster.active is not None and cluster.active is not full)
            await until_in_sync(cluster, *rest)
        assert cluster.state_of(TOPIC).leader in rest
        await account.until_acknowledged()
        assert await create(rest[0], "more", factor=2) is ErrorCode.NONE
        assert not full.is_up  # as Apache Kafka's broker
        full.disk.capacity_bytes = 2**62
        await cluster.start()
        await until_in_sync(cluster, 1, 2, 3)
        await account.until_acknowledged()
        await account.check()


@simulated(seeds=SEEDS)
async def test_a_node_that_cannot_write_to_a_partition_at_its_start_says_why() -> None:
    async with simulated_cluster(SETTINGS) as cluster:
        account = Account(cluster)
        await create_topic(account)
        await account.until_acknowledged()
        node, path = cluster.nodes[3], f"/data/{TOPIC}-0/partition.metadata"
        cluster.kill(3)
        node.disk.remove(path)  # as a power cut may, before the file is synced
        node.disk.faults.append(DiskFault(operation="append", path=path))
        with pytest.raises(StartError, match=rf"cannot open the logs: .*{path}"):
            await node.start()
        node.kill()
        node.disk.faults.clear()
        await node.start()
        await until_in_sync(cluster, 1, 2, 3)
        await account.check()


@simulated(seeds=SEEDS)
async def test_a_wiped_directory_is_refused_and_a_new_one_is_filled_by_the_others() -> None:
    async with simulated_cluster(SETTINGS) as cluster:
        account = Account(cluster)
        await create_topic(account)
        await account.until_acknowledged()
        wiped = cluster.node(LEADER)
        wiped.wipe()
        with pytest.raises(StartError, match=r"is not formatted: run `hailbus-broker format .*--cluster-id ID"):
            await wiped.start()
        wiped.process.kill()
        await account.until_acknowledged()
        wiped.format()
        await wiped.start()
        await until_in_sync(cluster, 1, 2, 3)
        await account.until_acknowledged()
        await account.check()


@simulated(seeds=SEEDS)
async def test_a_wiped_directory_of_the_only_replica_never_looks_like_an_empty_partition() -> None:
    async with simulated_cluster(roles=["controller", "broker", "broker"]) as cluster:
        account = Account(cluster)
        await create_topic(account, replicas=(2,))
        await account.until_acknowledged()
        wiped = cluster.nodes[2]
        wiped.wipe()
        wiped.format()
        await wiped.start()
        await cluster.advance(15)
        assert not cluster.image.brokers[2].fenced
        assert await account.leader() is None
        assert await account.send(to=2) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await account.fetch(2)).code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        cluster.kill(2)
        await cluster.start()
        await cluster.advance(5)
        assert await account.leader() is None


@simulated(seeds=SEEDS)
async def test_a_wiped_directory_of_the_last_replica_in_sync_is_not_replaced_by_one_that_misses_records() -> None:
    async with simulated_cluster(roles=["controller", "broker", "broker"]) as cluster:
        account = Account(cluster)
        await create_topic(account, replicas=(2, 3))
        await account.until_acknowledged()
        cluster.kill(3)
        await until_in_sync(cluster, 2)
        await account.until_acknowledged()  # which 3 does not have
        wiped = cluster.nodes[2]
        wiped.wipe()
        wiped.format()
        await cluster.start()
        await cluster.advance(15)
        assert not any(broker.fenced for broker in cluster.image.brokers.values())
        assert await account.leader() is None
        assert await account.send(to=2) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await account.send(to=3) is ErrorCode.NOT_LEADER_OR_FOLLOWER


# ---------------------------------------------------------------------- clocks


@pytest.mark.parametrize("seconds", [-1_800, 86_400])
@simulated(seeds=SEEDS)
async def test_clocks_that_jump_cost_neither_an_election_nor_a_session(seconds: float) -> None:
    async with simulated_cluster(SETTINGS) as cluster:
        account = Account(cluster)
        await create_topic(account)
        transaction = TransactionalClient(cluster.bootstrap, ID, is_v2=True)
        await transaction.init()
        await transaction.produce(TOPIC, 0, b"-1")
        await cluster.advance(2)
        before = epochs(cluster)
        for node in (cluster.node("active controller"), cluster.node(LEADER), cluster.nodes[3]):
            node.clock.jump(seconds)
            node.clock.drift(1.05)
            await cluster.advance(3)
            assert await account.send() is ErrorCode.NONE
        await cluster.advance(12)
        assert epochs(cluster) == before
        assert not any(broker.fenced for broker in cluster.image.brokers.values())
        await transaction.end(is_commit=True)
        transaction.close()
        account.unknown.add(b"-1")
        await account.check()


# ---------------------------------------------------------------------- the controller


@pytest.mark.parametrize("power_cut", [False, True])
@simulated(seeds=SEEDS)
async def test_a_reassignment_survives_the_death_of_the_leader(power_cut: bool) -> None:
    async with simulated_cluster(SETTINGS, roles=[*APART, "broker"]) as cluster:
        account = Account(cluster)
        await create_topic(account, replicas=(2, 3, 4))
        await account.until_acknowledged(20)
        for node_id in (2, 3, 4):
            cluster.world.network.change(f"node{node_id}", "node5", bytes_per_second=50)
        change = ReassignablePartition(partition_index=0, replicas=[5, 3, 4])
        request = AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(name=TOPIC, partitions=[change])], timeout_ms=10_000
        )
        answer = await account.ask(3, ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, request)
        assert (answer.error_code, answer.responses[0].partitions[0].error_code) == (0, 0)
        await cluster.until(lambda: cluster.state_of(TOPIC).adding_replicas == (5,))
        cluster.kill(2, power_cut=power_cut)
        await account.until_acknowledged()
        assert cluster.state_of(TOPIC).adding_replicas == (5,), "it has not caught up over a slow link"
        cluster.heal()
        await cluster.until(lambda: cluster.state_of(TOPIC).replicas == (5, 3, 4))
        await until_in_sync(cluster, 3, 4, 5)
        await account.until_acknowledged()
        await cluster.start(2)
        await cluster.until(lambda: isinstance(cluster.nodes[2].broker.replicas.topics[TOPIC][0], RemoteReplica))
        assert await account.send(to=2) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await account.check()


@simulated(seeds=SEEDS)
async def test_a_broker_joins_while_the_controllers_write_snapshots() -> None:
    often = {"metadata.log.max.record.bytes.between.snapshots": "3000"}
    async with simulated_cluster({**SETTINGS, **often}) as cluster:
        account = Account(cluster)
        await create_topic(account)
        await account.until_acknowledged()
        for number in range(20):
            await create_topic(account, name=f"early{number}")
        fourth = extra_broker(cluster, 4, "node4")
        fourth.format()
        for node in cluster.nodes.values():
            cluster.world.network.change(node.name, "node4", bytes_per_second=2_000)
        starting = asyncio.create_task(fourth.start())
        number = 0
        async with asyncio.timeout(120):
            while not starting.done():
                await create_topic(account, name=f"late{number}")
                number += 1
                await cluster.advance(0.5)
                if number == 20:
                    cluster.heal()
        await starting
        assert any(path.endswith(".checkpoint") and "__cluster_metadata" in path for path in fourth.disk.paths())
        assert number > 3
        assert not cluster.image.brokers[4].fenced
        cluster.nodes[4] = fourth
        active = cluster.node("active controller").core
        await cluster.until(lambda: fourth.core.publisher.end_offset >= active.publisher.end_offset)
        await cluster.until(lambda: set(fourth.core.image.topics) == set(active.image.topics))
        joined = Account(cluster, "joined")
        await create_topic(joined, replicas=(4, 1, 2))
        await joined.until_acknowledged()
        await joined.check()
        await account.check()


# ---------------------------------------------------------------------- transactions


@pytest.mark.parametrize("is_commit", [False, True])
@simulated(seeds=SEEDS)
async def test_a_coordinator_that_is_gone_between_prepare_and_markers_leaves_one_marker_each(is_commit: bool) -> None:
    async with simulated_cluster({**SETTINGS, "transaction.state.log.num.partitions": "3"}) as cluster:
        accounts = [Account(cluster, f"rides{node_id}") for node_id in (1, 2, 3)]
        for node_id, account in enumerate(accounts, 1):
            await create_topic(account, replicas=(node_id, node_id % 3 + 1, (node_id + 1) % 3 + 1))
        client = TransactionalClient(cluster.bootstrap, ID, is_v2=True)
        await client.init()
        producer_id = client.producer_id
        for account in accounts:
            await client.produce(account.topic, 0, b"0")
        coordinator = cluster.node(f"coordinator of transactional id {ID}")
        sent = asyncio.Event()
        # The markers go nowhere: as if the coordinator died just before they are sent.
        for driver in coordinator.broker.transactions.drivers.values():
            driver._marker_sender = Nowhere(sent)  # type: ignore[misc]  # a fault, put in by hand
        ending = asyncio.create_task(client.end(is_commit=is_commit))
        await sent.wait()
        for node_id, account in enumerate(accounts, 1):
            found = await account.fetch(node_id, is_committed=True)
            assert (found.last_stable_offset, found.values) == (0, {}), "the transaction has not ended"
        cluster.kill(coordinator.node_id, power_cut=True)
        await ending
        await cluster.start()
        for account in accounts:
            await until_in_sync(cluster, 1, 2, 3, topic=account.topic)
            leader = cluster.state_of(account.topic).leader
            found = await until_stable(account, leader, 2)
            assert list(found.markers.values()) == [producer_id], "one marker"
            assert found.last_stable_offset == found.high_watermark == 2
        client.close()


@pytest.mark.parametrize("is_v2", [False, True])
@simulated(seeds=SEEDS)
async def test_an_end_of_a_transaction_that_the_network_delays_does_not_end_the_next(is_v2: bool) -> None:
    async with simulated_cluster({**SETTINGS, "transaction.state.log.num.partitions": "3"}) as cluster:
        assert await create(1, "rides") is ErrorCode.NONE
        await until_all_know(cluster, "rides")
        slow = cluster.world.process("slow")
        first = TransactionalClient(cluster.bootstrap, ID, is_v2=is_v2)
        await slow.start(first.init())
        await slow.start(first.produce("rides", 0, b"0"))
        coordinator = cluster.node(f"coordinator of transactional id {ID}")
        await slow.start(first.coordinator())
        cluster.world.network.cut("slow", coordinator.name, is_one_way=True)
        late = slow.start(first.send_end(first.end_request(is_commit=False)))
        await cluster.advance(0.1)
        # The same producer, over connections of another interface.
        second = first.twin()
        await second.end(is_commit=True)
        await second.produce("rides", 0, b"1")
        cluster.heal()
        try:
            answer = await late
        except UnreachableError:
            answer = None
        assert answer is None or answer.error_code
        await cluster.advance(2)
        await second.produce("rides", 1, b"1")
        await second.end(is_commit=True)
        account = Account(cluster, "rides")
        leader = cluster.state_of("rides", 0).leader
        found = await until_stable(account, leader, 4)
        assert list(found.values.values()) == [b"0", b"1"]
        second.close()
