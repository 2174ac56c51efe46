"""Where replicas of new partitions go, and what else the controller gives to brokers."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hailbus_broker.cluster.controller import PRODUCER_ID_BLOCK
from hailbus_broker.cluster.controller.placement import place
from hailbus_broker.cluster.features import ELR_VERSION, FeatureUpdate, UpgradeType
from hailbus_broker.cluster.metadata.image import BrokerState
from hailbus_broker.protocol.definitions.allocate_producer_ids_request import AllocateProducerIdsRequest
from hailbus_broker.protocol.errors import ApiError, ErrorCode

from tests.unit.broker.cluster_of_brokers import Brokers


def broker(node_id: int, rack: str | None = None, *, fenced: bool = False, stops: bool = False) -> BrokerState:
    return BrokerState(
        node_id=node_id,
        broker_epoch=node_id,
        incarnation_id=bytes(16),
        rack=rack,
        fenced=fenced,
        in_controlled_shutdown=stops,
    )


SIX = [broker(node_id, rack) for node_id, rack in zip(range(6), "aabbcc", strict=True)]


@pytest.mark.parametrize("seed", range(20))
def test_replicas_are_on_other_racks_and_evenly_spread(seed: int) -> None:
    placed = place(SIX, partition_count=60, replication_factor=3, rng=random.Random(seed))
    racks = {one.node_id: one.rack for one in SIX}
    for replicas in placed:
        assert len(set(replicas)) == 3
        assert {racks[node_id] for node_id in replicas} == {"a", "b", "c"}
    assert set(Counter(node_id for replicas in placed for node_id in replicas).values()) == {30}
    assert max(Counter(replicas[0] for replicas in placed).values()) <= 20


@pytest.mark.parametrize("factor", range(1, 6))
@pytest.mark.parametrize("seed", range(5))
def test_a_fenced_broker_never_leads_and_is_taken_last(seed: int, factor: int) -> None:
    brokers = [broker(1), broker(2), broker(3), broker(4, fenced=True), broker(5, fenced=True)]
    placed = place(brokers, partition_count=40, replication_factor=factor, rng=random.Random(seed))
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert replicas[0] in {1, 2, 3}
        assert len({4, 5} & set(replicas)) == max(0, factor - 3)


@pytest.mark.parametrize("seed", range(10))
def test_a_rack_of_fenced_brokers_leads_nothing(seed: int) -> None:
    brokers = [broker(1, "a"), broker(2, "b", fenced=True), broker(3, "c")]
    for replicas in place(brokers, partition_count=20, replication_factor=2, rng=random.Random(seed)):
        assert replicas[0] in {1, 3}


def test_one_broker_gets_everything() -> None:
    assert place([broker(7)], partition_count=5, replication_factor=1, rng=random.Random(1)) == [(7,)] * 5


@pytest.mark.parametrize(
    ("brokers", "factor", "says"),
    [
        ([broker(1)], 0, "must be larger than 0"),
        ([broker(1)], 2, "replication factor of 2 cannot be reached because only 1 broker"),
        ([broker(1), broker(2, stops=True)], 2, "because only 1 broker"),
        ([broker(1, fenced=True)], 1, "All brokers are currently fenced"),
    ],
)
def test_factors_that_the_brokers_cannot_give(brokers: list[BrokerState], factor: int, says: str) -> None:
    with pytest.raises(ApiError, match=says) as refused:
        place(brokers, partition_count=1, replication_factor=factor, rng=random.Random(1))
    assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR


def test_new_partitions_have_as_many_replicas_as_the_others_and_active_ones_in_sync() -> None:
    cluster = Brokers(1, 2, 3)
    cluster.create([1, 2, 3])
    cluster.fence(3)
    cluster.write(cluster.controller.create_partitions("rides", 3))
    for index in (1, 2):
        state = cluster.partition(index)
        assert set(state.replicas) == {1, 2, 3}
        assert set(state.isr) == {1, 2}
        assert state.leader == state.isr[0]
    cluster.write(cluster.controller.create_partitions("rides", 4, assignments=[[3, 2, 1]]))
    assert (cluster.partition(3).isr, cluster.partition(3).leader) == ((2, 1), 2)
    for assignment, says in (
        ([3, 2], "2 replica\\(s\\), but this is not consistent with previous partitions, which have 3"),
        ([1, 2, 9], "no such broker is registered"),
    ):
        with pytest.raises(ApiError, match=says):
            cluster.controller.create_partitions("rides", 5, assignments=[assignment])
    cluster.fence(1, 2)
    with pytest.raises(ApiError, match="for partition 4 are fenced or in controlled shutdown"):
        cluster.controller.create_partitions("rides", 5, assignments=[[1, 2, 3]])


def test_each_broker_gets_producer_ids_of_its_own() -> None:
    cluster = Brokers(1, 2)
    for expected, broker_id in enumerate([1, 2, 1]):
        epoch = cluster.image.brokers[broker_id].broker_epoch
        request = AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=epoch)
        decision = cluster.controller.allocate_producer_ids_for(request)
        cluster.write(decision.records)
        assert decision.response.producer_id_start == expected * PRODUCER_ID_BLOCK
        assert decision.response.producer_id_len == PRODUCER_ID_BLOCK
    assert (cluster.image.producer_ids.broker_id, cluster.image.next_producer_id) == (1, 3 * PRODUCER_ID_BLOCK)
    with pytest.raises(ApiError) as refused:
        cluster.controller.allocate_producer_ids_for(AllocateProducerIdsRequest(broker_id=1, broker_epoch=99))
    assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_a_level_needs_the_support_of_every_broker() -> None:
    cluster = Brokers(1, 2)
    update = FeatureUpdate(name="group.version", level=1, upgrade_type=UpgradeType.UPGRADE)
    with pytest.raises(ApiError, match="Broker 1 does not support this feature") as refused:
        cluster.controller.update_features([update])
    assert refused.value.code is ErrorCode.INVALID_UPDATE_VERSION
    assert ELR_VERSION not in cluster.image.features
