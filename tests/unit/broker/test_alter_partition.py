"""AlterPartition: which ISRs a leader may ask for."""

from __future__ import annotations

import pytest
from hailbus_broker.cluster.metadata.image import LeaderRecovery
from hailbus_broker.protocol.definitions.alter_partition_request import (
    AlterPartitionRequest,
    BrokerState,
    PartitionData,
    TopicData,
)
from hailbus_broker.protocol.errors import ApiError, ErrorCode

from tests.unit.broker.cluster_of_brokers import Brokers, incarnation


@pytest.fixture
def cluster() -> Brokers:
    cluster = Brokers(1, 2, 3)
    cluster.create([1, 2, 3])
    return cluster


@pytest.mark.parametrize("version", [2, 3])
def test_a_leader_shrinks_and_grows_its_isr(cluster: Brokers, version: int) -> None:
    answer = cluster.alter_isr(1, 3, version=version)
    assert (answer.error_code, answer.isr, answer.partition_epoch, answer.leader_epoch) == (0, [1, 3], 1, 0)
    assert cluster.partition().isr == (1, 3)
    answer = cluster.alter_isr(1, 3, 2, version=version)
    assert (answer.error_code, answer.isr, answer.partition_epoch) == (0, [1, 3, 2], 2)


def test_the_same_isr_changes_nothing(cluster: Brokers) -> None:
    answer = cluster.alter_isr(1, 2, 3)
    assert (answer.error_code, answer.partition_epoch) == (0, 0)


@pytest.mark.parametrize(
    ("isr", "changes", "code"),
    [
        ((1, 2), {"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ((1, 2), {"leader_epoch": 1}, ErrorCode.NOT_CONTROLLER),
        ((1, 2), {"partition_epoch": -1}, ErrorCode.INVALID_UPDATE_VERSION),
        ((1, 2), {"partition_epoch": 1}, ErrorCode.NOT_CONTROLLER),
        ((1, 2), {"by": 2}, ErrorCode.INVALID_REQUEST),
        ((2, 3), {}, ErrorCode.INVALID_REQUEST),
        ((1, 4), {}, ErrorCode.INVALID_REQUEST),
        ((1, 1), {}, ErrorCode.INVALID_REQUEST),
        ((1,), {"leader_recovery_state": 1}, ErrorCode.INVALID_REQUEST),
        ((1,), {"leader_recovery_state": 5}, ErrorCode.INVALID_REQUEST),
        ((1,), {"partition_index": 7}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_isrs_that_are_refused(
    cluster: Brokers, isr: tuple[int, ...], changes: dict[str, int], code: ErrorCode
) -> None:
    before = cluster.partition()
    assert ErrorCode(cluster.alter_isr(*isr, **changes).error_code) is code
    assert cluster.partition() == before


def test_a_fenced_broker_does_not_join(cluster: Brokers) -> None:
    cluster.fence(3)
    assert cluster.partition().isr == (1, 2)
    assert cluster.alter_isr(1, 2, 3).error_code == ErrorCode.INELIGIBLE_REPLICA
    cluster.heartbeat(3)
    assert cluster.alter_isr(1, 2, 3).error_code == ErrorCode.NONE


def test_a_broker_that_is_about_to_stop_does_not_join(cluster: Brokers) -> None:
    new = cluster.controller.create_topic("cars", assignments={0: [3, 1]})
    cluster.write(new.records)
    assert not cluster.heartbeat(3, want_shut_down=True).should_shut_down
    assert cluster.alter_isr(1, 2, 3).error_code == ErrorCode.INELIGIBLE_REPLICA


def test_an_incarnation_that_the_leader_has_not_seen_does_not_join(cluster: Brokers) -> None:
    """The leader saw broker 3 fetch before it was restarted: now it may miss records."""
    cluster.fence(3)
    old_epoch = cluster.image.brokers[3].broker_epoch
    cluster.register(3, incarnation_id=incarnation(3, 1))
    cluster.heartbeat(3)
    state = cluster.partition()
    asked = PartitionData(partition_index=0, leader_epoch=state.leader_epoch, partition_epoch=state.partition_epoch)
    asked.new_isr_with_epochs = [
        BrokerState(broker_id=1, broker_epoch=-1),
        BrokerState(broker_id=3, broker_epoch=old_epoch),
    ]
    request = AlterPartitionRequest(
        broker_id=1,
        broker_epoch=cluster.image.brokers[1].broker_epoch,
        topics=[TopicData(topic_id=cluster.topic_id, partitions=[asked])],
    )
    decision = cluster.controller.alter_partition(request, version=3)
    assert decision.records == []
    assert decision.response.topics[0].partitions[0].error_code == ErrorCode.INELIGIBLE_REPLICA


def test_a_leader_says_when_it_has_recovered() -> None:
    cluster = Brokers(1, 2)
    cluster.create([1, 2], unclean_leader_election_enable="true")
    cluster.fence(2, 1)
    cluster.heartbeat(2)
    assert cluster.partition().recovery is LeaderRecovery.RECOVERING
    cluster.heartbeat(1)
    assert cluster.alter_isr(2, 1, leader_recovery_state=1).error_code == ErrorCode.INVALID_REQUEST
    answer = cluster.alter_isr(2, 1)
    assert (answer.error_code, answer.leader_recovery_state) == (0, 0)
    assert cluster.partition().recovery is LeaderRecovery.RECOVERED


def test_unknown_topics_and_partitions_that_are_named_twice(cluster: Brokers) -> None:
    asked = PartitionData(partition_index=0, new_isr=[1])
    request = AlterPartitionRequest(
        broker_id=1,
        broker_epoch=cluster.image.brokers[1].broker_epoch,
        topics=[
            TopicData(topic_id=b"?" * 16, partitions=[asked]),
            TopicData(topic_id=cluster.topic_id, partitions=[asked, asked]),
        ],
    )
    decision = cluster.controller.alter_partition(request, version=2)
    assert [[one.error_code for one in topic.partitions] for topic in decision.response.topics] == [
        [ErrorCode.UNKNOWN_TOPIC_ID],
        [ErrorCode.NONE, ErrorCode.INVALID_REQUEST],
    ]
    assert len(decision.records) == 1


def test_a_broker_of_another_epoch_is_refused(cluster: Brokers) -> None:
    with pytest.raises(ApiError) as refused:
        cluster.controller.alter_partition(AlterPartitionRequest(broker_id=1, broker_epoch=77), version=3)
    assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH
