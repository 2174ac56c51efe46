"""Who may be a broker of the cluster, and what happens to the partitions of an earlier incarnation."""

from __future__ import annotations

import pytest
from hailbus_broker.cluster.features import ELR_VERSION
from hailbus_broker.cluster.metadata.image import ListenerEndpoint
from hailbus_broker.protocol.definitions.broker_registration_request import Feature, Listener
from hailbus_broker.protocol.definitions.controller_registration_request import ControllerRegistrationRequest
from hailbus_broker.protocol.definitions.feature_level_record import FeatureLevelRecord
from hailbus_broker.protocol.definitions.fence_broker_record import FenceBrokerRecord
from hailbus_broker.protocol.definitions.partition_change_record import PartitionChangeRecord
from hailbus_broker.protocol.errors import ApiError, ErrorCode

from tests.unit.broker.cluster_of_brokers import Brokers, directory, incarnation


def test_a_broker_registers_fenced_with_everything_that_it_says() -> None:
    cluster = Brokers(1)
    expected_epoch = cluster.offset
    assert cluster.register(2, rack="b") == expected_epoch
    broker = cluster.image.brokers[2]
    assert (broker.broker_epoch, broker.fenced, broker.rack) == (expected_epoch, True, "b")
    assert broker.endpoints == (ListenerEndpoint(name="CLIENT", host="h", port=9002, security_protocol=0),)
    assert broker.features == {ELR_VERSION: (0, 1)}
    assert broker.log_dirs == (directory(2),)


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"cluster_id": "other"}, ErrorCode.INCONSISTENT_CLUSTER_ID, "but got cluster ID other"),
        ({"is_migrating_zk_broker": True}, ErrorCode.BROKER_ID_NOT_REGISTERED, "ZK brokers"),
        ({"log_dirs": []}, ErrorCode.INVALID_REGISTRATION, "No directories"),
        ({"log_dirs": [bytes(15) + b"\x63"]}, ErrorCode.INVALID_REGISTRATION, "Reserved directory"),
        ({"log_dirs": [directory(2), directory(2)]}, ErrorCode.INVALID_REGISTRATION, "Duplicate directory"),
        ({"log_dirs": [directory(1)]}, ErrorCode.INVALID_REGISTRATION, "Broker 1 is already registered"),
        ({"listeners": []}, ErrorCode.INVALID_REGISTRATION, "registers no listener"),
        ({"listeners": [Listener(name="A"), Listener(name="A")]}, ErrorCode.INVALID_REGISTRATION, "twice"),
        ({"features": []}, ErrorCode.UNSUPPORTED_VERSION, f"finalized version 1 of {ELR_VERSION}"),
        (
            {
                "features": [
                    Feature(name=ELR_VERSION, max_supported_version=1),
                    Feature(name="group.version", min_supported_version=1, max_supported_version=2),
                ]
            },
            ErrorCode.UNSUPPORTED_VERSION,
            "finalized version 0 of group.version",
        ),
    ],
)
def test_registrations_that_are_refused(changes: dict[str, object], code: ErrorCode, says: str) -> None:
    cluster = Brokers(1, has_elr=True)
    with pytest.raises(ApiError, match=says) as refused:
        cluster.register(2, **changes)
    assert refused.value.code is code
    assert 2 not in cluster.image.brokers


def test_an_id_is_taken_while_its_incarnation_is_alive() -> None:
    cluster = Brokers(1, 2)
    cluster.now_ms = 9_000
    with pytest.raises(ApiError, match="Another broker is registered with that broker id") as refused:
        cluster.register(2, incarnation_id=incarnation(2, 1))
    assert refused.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    cluster.now_ms = 9_001
    before = cluster.image.brokers[2].broker_epoch
    assert cluster.register(2, incarnation_id=incarnation(2, 1)) > before


def test_an_id_is_free_when_its_broker_is_known_to_be_dead() -> None:
    cluster = Brokers(1, 2)
    cluster.fence(2)
    cluster.register(2, incarnation_id=incarnation(2, 1))
    assert cluster.image.brokers[2].incarnation_id == incarnation(2, 1)


def test_an_id_is_free_when_its_broker_was_allowed_to_stop() -> None:
    cluster = Brokers(1, 2)
    assert cluster.heartbeat(2, want_shut_down=True).should_shut_down
    cluster.register(2, incarnation_id=incarnation(2, 1))


def test_a_repeated_registration_keeps_epoch_and_state() -> None:
    cluster = Brokers(1, 2)
    before = cluster.image.brokers[2]
    assert cluster.register(2) == before.broker_epoch
    assert cluster.image.brokers[2] == before, "unfenced, as it was"


def test_a_new_incarnation_leaves_the_isrs() -> None:
    cluster = Brokers(1, 2, 3)
    cluster.create([2, 1, 3])
    cluster.now_ms = 10_000
    for broker_id in (1, 3):
        cluster.heartbeat(broker_id)
    cluster.register(2, incarnation_id=incarnation(2, 1))
    state = cluster.partition()
    assert (state.leader, state.isr, state.leader_epoch) == (1, (1, 3), 1)


@pytest.mark.parametrize(("is_clean", "elr"), [(True, (2,)), (False, ())])
def test_only_after_a_clean_shutdown_a_broker_stays_eligible(is_clean: bool, elr: tuple[int, ...]) -> None:
    cluster = Brokers(1, 2, has_elr=True)
    cluster.create([1, 2], min_insync_replicas="2")
    epoch = cluster.image.brokers[2].broker_epoch
    cluster.fence(2)
    assert cluster.partition().elr == (2,)
    previous = epoch if is_clean else epoch - 1
    cluster.register(2, incarnation_id=incarnation(2, 1), previous_broker_epoch=previous)
    assert cluster.partition().elr == elr


def test_an_unregistered_broker_leaves_isr_and_elr_and_stays_a_replica() -> None:
    cluster = Brokers(1, 2, 3, has_elr=True)
    cluster.create([1, 2, 3], min_insync_replicas="3")
    cluster.fence(2)
    assert cluster.partition().elr == (2,)
    for broker_id in (2, 3):
        cluster.write(cluster.controller.unregister(broker_id).records)
    state = cluster.partition()
    assert (state.replicas, state.isr, state.elr) == ((1, 2, 3), (1,), ())
    assert sorted(cluster.image.brokers) == [1]
    with pytest.raises(ApiError, match="Broker ID 2 is not currently registered") as refused:
        cluster.controller.unregister(2)
    assert refused.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_a_controller_registers() -> None:
    cluster = Brokers(1)
    request = ControllerRegistrationRequest(controller_id=3, incarnation_id=incarnation(3))
    cluster.write(cluster.controller.register_controller(request).records)
    assert cluster.image.controllers[3].incarnation_id == incarnation(3)


def test_a_single_node_begins_epochs_after_a_stop_that_was_not_clean() -> None:
    cluster = Brokers(1, 2)
    cluster.create([1, 2], [2, 1])
    records = cluster.controller.register_broker(broker_epoch=9, was_clean=False, incarnation_id=incarnation(1, 1))
    changes = [record for record in records if isinstance(record, PartitionChangeRecord)]
    assert [(record.partition_id, record.leader) for record in changes] == [(0, 1)]
    assert not [record for record in records if isinstance(record, FeatureLevelRecord)], "the cluster has its levels"


def test_a_single_node_leads_what_has_no_leader() -> None:
    """Apache Kafka leaves the last broker's partitions without a leader when it stops in order."""
    cluster = Brokers()
    cluster.write(cluster.controller.register_broker(broker_epoch=1, was_clean=True, incarnation_id=incarnation(1)))
    cluster.create([1], [1])
    topic = next(iter(cluster.image.topics.values()))
    gone = [PartitionChangeRecord(partition_id=index, topic_id=topic.topic_id, leader=-1) for index in range(2)]
    cluster.write([*gone, FenceBrokerRecord(id=1, epoch=cluster.image.brokers[1].broker_epoch)])
    cluster.write(cluster.controller.register_broker(broker_epoch=9, was_clean=True, incarnation_id=incarnation(1, 1)))
    assert [(cluster.partition(index).leader, cluster.partition(index).isr) for index in range(2)] == [(1, (1,))] * 2
