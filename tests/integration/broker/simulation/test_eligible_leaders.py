"""Eligible leader replicas (KIP-966): who may lead after fewer than `min.insync.replicas` were in sync."""

from __future__ import annotations

from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.testing.simulation import simulated, simulated_cluster

from tests.integration.broker.simulation.account import TOPIC, Account, create_topic, until_in_sync
from tests.integration.broker.simulation.test_named_scenarios import APART, LEADER, SEEDS, SETTINGS


@simulated(seeds=SEEDS)
async def test_a_leader_that_dies_while_it_is_cut_from_its_followers_is_replaced_by_one_of_them() -> None:
    async with simulated_cluster(SETTINGS, roles=APART) as cluster:
        account = Account(cluster)
        await create_topic(account, replicas=(2, 3, 4))
        await account.until_acknowledged()
        cluster.partition({2}, {3, 4})
        async with account.sending():
            await until_in_sync(cluster, 2)
        assert sorted(cluster.state_of(TOPIC).elr) == [3, 4], "they have every committed record"
        cluster.kill(LEADER, power_cut=True)
        await cluster.until(lambda: cluster.state_of(TOPIC).leader in {3, 4})
        await account.until_acknowledged()
        cluster.heal()
        await cluster.start()
        await until_in_sync(cluster, 2, 3, 4)
        await account.check()


@simulated(seeds=SEEDS)
async def test_only_a_replica_with_all_records_leads_after_the_last_one_stood_alone() -> None:
    async with simulated_cluster(SETTINGS, roles=APART) as cluster:
        account = Account(cluster)
        await create_topic(account, replicas=(2, 3, 4))
        await account.until_acknowledged()
        cluster.kill(4)
        await until_in_sync(cluster, 2, 3)
        await account.until_acknowledged()  # which 4 does not have
        await cluster.stop(3)
        assert cluster.state_of(TOPIC).isr == (2,)
        assert cluster.state_of(TOPIC).elr == (3,), "it left in order, with every committed record"
        assert await account.send() is ErrorCode.NOT_ENOUGH_REPLICAS
        cluster.kill(2, power_cut=True)
        await cluster.until(lambda: cluster.state_of(TOPIC).leader == -1)
        await cluster.start(4)
        await cluster.advance(15)
        assert await account.leader() is None
        assert (await account.fetch(4)).code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await cluster.start(3)
        await cluster.until(lambda: cluster.state_of(TOPIC).leader == 3)
        await account.until_acknowledged()
        await cluster.start(2)
        await until_in_sync(cluster, 2, 3, 4)
        await account.check()
