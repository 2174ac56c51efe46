"""When the campaign lets a broker lose its disk: others have all records, and nobody counts on it any more."""

from __future__ import annotations

from hailbus_broker.testing.campaign.invariants import ClusterInvariants
from hailbus_broker.testing.campaign.lost_disks import DiskLosses
from hailbus_broker.testing.campaign.recorder import LOOSE, Recorder
from hailbus_broker.testing.simulation import ClusterWorld, simulated, simulated_cluster

from tests.integration.broker.simulation.account import TOPIC, Account, create_topic, until_in_sync

ROLES = ["controller", "broker", "broker", "broker"]


def losses_of(cluster: ClusterWorld) -> tuple[DiskLosses, Recorder]:
    recorder = Recorder(lambda _: None)
    return DiskLosses(cluster, ClusterInvariants(cluster, recorder, min_isr=2)), recorder


@simulated(seeds=range(2))
async def test_a_broker_that_serves_loses_its_disk_only_while_all_replicas_are_in_sync() -> None:
    async with simulated_cluster(
        {"min.insync.replicas": "2", "broker.session.timeout.ms": "3000"}, roles=ROLES
    ) as cluster:
        account = Account(cluster)
        await create_topic(account, replicas=(2, 3, 4))
        await account.until_acknowledged()
        losses, recorder = losses_of(cluster)
        leader = cluster.nodes[2]
        assert [node.node_id for node in losses.candidates()] == [2, 3, 4]
        assert losses.may_strike(leader)
        assert not losses.is_out(leader)
        cluster.kill(3)
        assert not losses.may_strike(leader)
        await until_in_sync(cluster, 2, 4)
        await cluster.start(3)
        assert cluster.state_of(TOPIC).isr != (2, 3, 4)
        assert not losses.may_strike(leader)
        await until_in_sync(cluster, 2, 3, 4)
        assert losses.may_strike(leader)
        cluster.kill(1)
        assert not losses.may_strike(leader), "more may be committed than anybody knows"
        assert recorder.failures == []


@simulated(seeds=range(2))
async def test_a_broker_that_is_down_loses_its_disk_only_once_others_lead_without_it() -> None:
    async with simulated_cluster({"min.insync.replicas": "1"}, roles=ROLES) as cluster:
        account, loose = Account(cluster), Account(cluster, LOOSE)
        await create_topic(account, replicas=(2, 3))
        await create_topic(loose, replicas=(2,))  # it may lose records
        losses, recorder = losses_of(cluster)
        node = cluster.nodes[2]
        assert not losses.may_strike_outside(node)
        cluster.kill(2)
        assert not losses.may_strike_outside(node)
        await until_in_sync(cluster, 3)
        assert losses.may_strike_outside(node)
        cluster.kill(3)
        await cluster.until(lambda: cluster.state_of(TOPIC).leader == -1)
        assert not losses.may_strike_outside(node), "nobody is in sync"
        assert recorder.failures == []
