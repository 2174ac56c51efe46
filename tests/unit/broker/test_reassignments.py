"""Reassignments: new replicas join, wait for the ISR, and the old ones leave."""

from __future__ import annotations

import pytest
from hailbus_broker.cluster.controller.reassignment import list_reassignments
from hailbus_broker.cluster.metadata.image import LeaderRecovery
from hailbus_broker.protocol.definitions.alter_partition_reassignments_request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from hailbus_broker.protocol.definitions.list_partition_reassignments_request import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from hailbus_broker.protocol.errors import ErrorCode

from tests.unit.broker.cluster_of_brokers import Brokers, directory


@pytest.fixture
def cluster() -> Brokers:
    cluster = Brokers(1, 2, 3, 4)
    cluster.create([1, 2])
    return cluster


def ongoing(cluster: Brokers, *topics: ListPartitionReassignmentsTopics) -> list[tuple[str, int, list[int], list[int]]]:
    request = ListPartitionReassignmentsRequest(topics=list(topics) or None)
    return [
        (topic.name, one.partition_index, one.adding_replicas, one.removing_replicas)
        for topic in list_reassignments(cluster.image, request).topics
        for one in topic.partitions
    ]


def test_replicas_move_when_the_new_ones_are_in_sync(cluster: Brokers) -> None:
    assert cluster.reassign([3, 4]).error_code == 0
    state = cluster.partition()
    assert (state.replicas, state.adding_replicas, state.removing_replicas) == ((3, 4, 1, 2), (3, 4), (1, 2))
    assert (state.leader, state.isr) == (1, (1, 2))
    assert state.directories == (directory(3), directory(4), directory(1), directory(2))
    assert ongoing(cluster) == [("rides", 0, [3, 4], [1, 2])]
    assert ongoing(cluster, ListPartitionReassignmentsTopics(name="rides", partition_indexes=[0, 9])) == ongoing(
        cluster
    )
    assert ongoing(cluster, ListPartitionReassignmentsTopics(name="cars", partition_indexes=[0])) == []
    cluster.alter_isr(1, 2, 3)
    assert cluster.partition().is_reassigning, "broker 4 is not in sync"
    # The change completes, and the broker that asked for it leads no more.
    assert cluster.alter_isr(1, 2, 3, 4).error_code == ErrorCode.NEW_LEADER_ELECTED
    state = cluster.partition()
    assert (state.replicas, state.isr, state.leader, state.leader_epoch) == ((3, 4), (3, 4), 3, 1)
    assert state.directories == (directory(3), directory(4))
    assert ongoing(cluster) == []


def test_a_replica_that_only_leaves_does_so_at_once(cluster: Brokers) -> None:
    assert cluster.reassign([1]).error_code == 0
    state = cluster.partition()
    assert (state.replicas, state.isr, state.leader, state.is_reassigning) == ((1,), (1,), 1, False)
    assert state.leader_epoch == 1, "the replica that left must not be followed, nor follow"


def test_another_order_moves_no_leader(cluster: Brokers) -> None:
    cluster.reassign([2, 1])
    state = cluster.partition()
    assert (state.replicas, state.leader, state.preferred_leader, state.is_reassigning) == ((2, 1), 1, 2, False)


def test_a_reassignment_is_taken_back(cluster: Brokers) -> None:
    cluster.reassign([3, 2])
    cluster.alter_isr(1, 2)
    assert cluster.reassign(None).error_code == 0
    state = cluster.partition()
    assert (state.replicas, state.isr, state.leader, state.is_reassigning) == ((2, 1), (1, 2), 1, False)
    refused = cluster.reassign(None)
    assert refused.error_code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert refused.error_message == "No partition reassignment is in progress."


def test_an_order_of_the_original_replicas_cancels_without_waiting_for_the_isr() -> None:
    cluster = Brokers(1, 2, 3)
    cluster.create([3, 1, 2])
    cluster.alter_isr(3, 1)
    cluster.reassign([2, 1])
    assert cluster.partition().removing_replicas == (3,), "broker 2 is not in sync"
    assert cluster.reassign([2, 3, 1]).error_code == 0
    state = cluster.partition()
    assert (state.replicas, state.isr, state.leader, state.is_reassigning) == ((2, 3, 1), (3, 1), 3, False)


@pytest.mark.parametrize(
    ("setting", "code"), [("false", ErrorCode.INVALID_REPLICA_ASSIGNMENT), ("true", ErrorCode.NONE)]
)
def test_one_is_taken_back_from_new_replicas_only_where_unclean_elections_are_allowed(
    setting: str, code: ErrorCode
) -> None:
    cluster = Brokers(1, 2, 3)
    cluster.create([1], unclean_leader_election_enable=setting)
    cluster.reassign([2, 3])
    cluster.alter_isr(1, 2)
    cluster.fence(1)
    assert (cluster.partition().leader, cluster.partition().isr) == (2, (2,))
    assert ErrorCode(cluster.reassign(None).error_code) is code
    if code is ErrorCode.NONE:
        state = cluster.partition()
        assert (state.replicas, state.isr, state.leader) == ((1,), (1,), -1)
        assert state.recovery is LeaderRecovery.RECOVERING, "what broker 2 has committed is lost"


def test_a_second_reassignment_takes_the_place_of_the_first(cluster: Brokers) -> None:
    cluster.reassign([3, 2])
    cluster.reassign([4, 3])
    state = cluster.partition()
    assert (state.replicas[:2], state.adding_replicas, set(state.removing_replicas)) == ((4, 3), (4, 3), {1, 2})
    cluster.reassign(None)
    assert set(cluster.partition().replicas) == {1, 2}


@pytest.mark.parametrize(
    ("replicas", "changes", "code", "says"),
    [
        ([], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT, "empty replica list"),
        ([1, 1], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the broker 1 more than once"),
        ([1, 9], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT, "includes broker 9, but no such broker is registered"),
        (
            [1],
            {"allow_replication_factor_change": False},
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "changed from 2 to 1",
        ),
    ],
)
def test_reassignments_that_are_refused(
    cluster: Brokers, replicas: list[int], changes: dict[str, bool], code: ErrorCode, says: str
) -> None:
    before = cluster.partition()
    refused = cluster.reassign(replicas, **changes)
    assert ErrorCode(refused.error_code) is code
    assert says in (refused.error_message or "")
    assert cluster.partition() == before


def test_a_partition_that_is_named_twice_is_reassigned_once(cluster: Brokers) -> None:
    asked = ReassignablePartition(partition_index=0, replicas=[3, 4])
    missing = ReassignablePartition(partition_index=4, replicas=[3, 4])
    request = AlterPartitionReassignmentsRequest(
        topics=[
            ReassignableTopic(name="rides", partitions=[asked, asked, missing]),
            ReassignableTopic(name="cars", partitions=[asked]),
        ]
    )
    decision = cluster.controller.alter_reassignments(request)
    assert [[one.error_code for one in topic.partitions] for topic in decision.response.responses] == [
        [ErrorCode.NONE, ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
    ]
    assert len(decision.records) == 1
