"""Who leads when brokers come and go: the ISR first, then the ELR, and others only where that is allowed."""

from __future__ import annotations

import pytest
from hailbus_broker.cluster.metadata.image import LeaderRecovery, ResourceType
from hailbus_broker.protocol.definitions.assign_replicas_to_dirs_request import (
    AssignReplicasToDirsRequest,
    DirectoryData,
    PartitionData,
    TopicData,
)
from hailbus_broker.protocol.definitions.elect_leaders_request import ElectLeadersRequest, TopicPartitions
from hailbus_broker.protocol.errors import ErrorCode

from tests.unit.broker.cluster_of_brokers import Brokers, directory, incarnation

PREFERRED, UNCLEAN = 0, 1


def elect(
    cluster: Brokers, election_type: int, *topics: TopicPartitions, everywhere: bool = False
) -> list[tuple[int, int]]:
    request = ElectLeadersRequest(election_type=election_type, topic_partitions=None if everywhere else list(topics))
    decision = cluster.controller.elect_leaders(request, version=2)
    cluster.write(decision.records)
    return [
        (result.partition_id, result.error_code)
        for topic in decision.response.replica_election_results
        for result in topic.partition_result
    ]


RIDES = TopicPartitions(topic="rides", partitions=[0])


def assign(cluster: Brokers, where: bytes, *, index: int = 0, topic_id: bytes | None = None, by: int = 1) -> int:
    """Let a broker say in which directory it has a replica, and return the error code of the answer."""
    topic = TopicData(topic_id=topic_id or cluster.topic_id, partitions=[PartitionData(partition_index=index)])
    request = AssignReplicasToDirsRequest(
        broker_id=by,
        broker_epoch=cluster.image.brokers[by].broker_epoch,
        directories=[DirectoryData(id=where, topics=[topic])],
    )
    decision = cluster.controller.assign_replicas(request)
    cluster.write(decision.records)
    ((result,),) = [one.partitions for found in decision.response.directories for one in found.topics]
    return result.error_code


def test_the_next_replica_in_sync_leads() -> None:
    cluster = Brokers(1, 2, 3)
    cluster.create([1, 2, 3])
    cluster.alter_isr(1, 3)
    cluster.fence(1)
    state = cluster.partition()
    assert (state.leader, state.isr, state.leader_epoch) == (3, (3,), 1)


def test_a_broker_that_returns_does_not_lead_before_it_is_in_sync() -> None:
    cluster = Brokers(1, 2)
    cluster.create([1, 2])
    cluster.fence(1)
    cluster.heartbeat(1)
    assert (cluster.partition().leader, cluster.partition().isr) == (2, (2,))


def test_without_elr_the_last_replica_stays_in_the_isr_while_it_is_away() -> None:
    cluster = Brokers(1, 2)
    cluster.create([1, 2])
    cluster.fence(2)
    cluster.fence(1)
    assert (cluster.partition().leader, cluster.partition().isr) == (-1, (1,))
    cluster.heartbeat(2)
    assert cluster.partition().leader == -1, "broker 2 may miss records"
    cluster.heartbeat(1)
    assert (cluster.partition().leader, cluster.partition().isr) == (1, (1,))


def test_with_elr_everybody_who_left_below_the_minimum_may_lead() -> None:
    cluster = Brokers(1, 2, 3, has_elr=True)
    cluster.create([1, 2, 3], min_insync_replicas="2")
    cluster.fence(3)
    assert cluster.partition().elr == (), "two in sync are enough"
    cluster.fence(2)
    cluster.fence(1)
    state = cluster.partition()
    assert (state.leader, state.isr, set(state.elr), state.last_known_elr) == (-1, (), {1, 2}, (1,))
    cluster.heartbeat(3)
    assert cluster.partition().leader == -1, "broker 3 may miss records"
    cluster.heartbeat(2)
    state = cluster.partition()
    assert (state.leader, state.isr, state.elr, state.last_known_elr) == (2, (2,), (1,), ())
    assert state.recovery is LeaderRecovery.RECOVERED


def test_the_elr_is_empty_again_when_enough_are_in_sync() -> None:
    cluster = Brokers(1, 2, has_elr=True)
    cluster.create([1, 2], min_insync_replicas="2")
    cluster.fence(2)
    assert cluster.partition().elr == (2,)
    cluster.heartbeat(2)
    cluster.alter_isr(1, 2)
    assert (cluster.partition().isr, cluster.partition().elr) == ((1, 2), ())


def test_the_last_known_leader_returns_when_everybody_crashed() -> None:
    cluster = Brokers(1, 2, has_elr=True)
    cluster.create([1, 2], min_insync_replicas="2")
    cluster.fence(2)
    cluster.register(2, incarnation_id=incarnation(2, 1))
    cluster.fence(1)
    cluster.register(1, incarnation_id=incarnation(1, 1))
    state = cluster.partition()
    assert (state.leader, state.isr, state.elr, state.last_known_elr) == (-1, (), (), (1,))
    cluster.heartbeat(2)
    assert cluster.partition().leader == -1, "broker 1 led last, and has more records"
    cluster.heartbeat(1)
    state = cluster.partition()
    assert (state.leader, state.isr, state.recovery) == (1, (1,), LeaderRecovery.RECOVERING)
    assert state.last_known_elr == ()


def test_the_last_known_leader_is_forgotten_when_it_comes_back_with_an_empty_disk() -> None:
    cluster = Brokers(1, 2, has_elr=True)
    cluster.create([1, 2], min_insync_replicas="2")
    cluster.fence(2)
    cluster.register(2, incarnation_id=incarnation(2, 1))
    cluster.fence(1)
    cluster.register(1, incarnation_id=incarnation(1, 1), log_dirs=[directory(1, 1)])
    cluster.heartbeat(1)
    state = cluster.partition()
    assert (state.leader, state.last_known_elr) == (-1, (1,)), "its new directory is not known yet"
    assert assign(cluster, directory(1, 1)) == ErrorCode.NONE
    state = cluster.partition()
    assert (state.leader, state.isr, state.last_known_elr) == (-1, (), ())


def test_an_unclean_election_happens_where_the_topic_allows_it() -> None:
    cluster = Brokers(1, 2)
    cluster.create([1, 2], unclean_leader_election_enable="true")
    cluster.fence(2)
    cluster.fence(1)
    cluster.heartbeat(2)
    state = cluster.partition()
    assert (state.leader, state.isr, state.recovery) == (2, (2,), LeaderRecovery.RECOVERING)


def test_a_topic_may_allow_unclean_elections_later() -> None:
    cluster = Brokers(1, 2, 3)
    cluster.create([1, 2])
    cluster.fence(2)
    cluster.fence(1)
    cluster.heartbeat(2)
    assert cluster.controller.elect_unclean() == ([], False)
    changes = {"unclean.leader.election.enable": "true"}
    cluster.write(cluster.controller.alter_configs(ResourceType.TOPIC, "rides", changes))
    cluster.heartbeat(3)
    cluster.now_ms = 8_000
    cluster.write(cluster.controller.elect_unclean()[0])
    assert cluster.partition().leader == 2


@pytest.mark.parametrize(("minimum", "elr"), [("2", ()), ("3", (3,))])
def test_another_minimum_changes_who_is_eligible(minimum: str, elr: tuple[int, ...]) -> None:
    cluster = Brokers(1, 2, 3, has_elr=True)
    cluster.create([1, 2, 3], min_insync_replicas="3")
    cluster.fence(3)
    assert cluster.partition().elr == (3,)
    cluster.write(cluster.controller.alter_configs(ResourceType.TOPIC, "rides", {"min.insync.replicas": minimum}))
    assert cluster.partition().elr == elr


def test_a_preferred_leader_gets_its_leadership_back() -> None:
    cluster = Brokers(1, 2)
    cluster.create([1, 2])
    cluster.fence(1)
    assert elect(cluster, PREFERRED, RIDES) == [(0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)]
    cluster.heartbeat(1)
    assert elect(cluster, PREFERRED, RIDES) == [(0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)]
    assert cluster.controller.balance_leaders() == ([], False)
    cluster.alter_isr(2, 1)
    assert elect(cluster, PREFERRED, RIDES) == [(0, ErrorCode.NONE)]
    assert cluster.partition().leader == 1
    assert elect(cluster, PREFERRED, RIDES) == [(0, ErrorCode.ELECTION_NOT_NEEDED)]
    assert elect(cluster, PREFERRED, everywhere=True) == [], "of all, those that changed are listed"


def test_the_clock_gives_preferred_leaders_their_leaderships_back() -> None:
    cluster = Brokers(
        1, 2, settings={"leader.imbalance.check.interval.seconds": "1", "metadata.max.idle.interval.ms": "0"}
    )
    cluster.create([1, 2])
    cluster.fence(1)
    cluster.heartbeat(1)
    cluster.alter_isr(2, 1)
    assert cluster.controller.deadline_ms() == 1_000
    assert cluster.tick(999) == []
    cluster.write(cluster.tick(1_000))
    assert cluster.partition().leader == 1
    off = Brokers(1, 2, settings={"auto.leader.rebalance.enable": "false", "metadata.max.idle.interval.ms": "0"})
    assert off.controller.deadline_ms() == 9_001, "the end of a session"


def test_elections_that_somebody_asks_for() -> None:
    cluster = Brokers(1, 2)
    cluster.create([1, 2])
    assert elect(cluster, UNCLEAN, RIDES) == [(0, ErrorCode.ELECTION_NOT_NEEDED)]
    missing = TopicPartitions(topic="cars", partitions=[0])
    beyond = TopicPartitions(topic="rides", partitions=[1, -1])
    assert {code for _, code in elect(cluster, PREFERRED, missing, beyond)} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    cluster.fence(2)
    cluster.fence(1)
    assert elect(cluster, UNCLEAN, RIDES) == [(0, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)]
    cluster.heartbeat(2)
    assert elect(cluster, PREFERRED, RIDES) == [(0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)]
    assert elect(cluster, UNCLEAN, RIDES) == [(0, ErrorCode.NONE)]
    assert cluster.partition().leader == 2
    assert elect(cluster, UNCLEAN, RIDES) == [(0, ErrorCode.ELECTION_NOT_NEEDED)], "it has a leader, if not the first"
    unknown = cluster.controller.elect_leaders(ElectLeadersRequest(election_type=7), version=2)
    assert unknown.response.error_code == ErrorCode.INVALID_REQUEST


def test_a_broker_says_where_its_replicas_are() -> None:
    cluster = Brokers(2)
    cluster.register(1, log_dirs=[directory(1), directory(1, 1)])
    cluster.heartbeat(1)
    cluster.create([1, 2])

    assert assign(cluster, directory(1, 1)) == ErrorCode.NONE
    assert cluster.partition().directory(1) == directory(1, 1)
    assert cluster.partition().leader == 1
    assert assign(cluster, directory(1), index=1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert assign(cluster, directory(1), topic_id=b"?" * 16) == ErrorCode.UNKNOWN_TOPIC_ID
    cluster.register(3)
    assert assign(cluster, directory(3), by=3) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    cluster.heartbeat(1, offline_log_dirs=[directory(1, 1)])
    assert (cluster.partition().leader, cluster.partition().isr) == (2, (2,))
    cluster.alter_isr(2)
    assert assign(cluster, directory(1)) == ErrorCode.NONE
    assert cluster.alter_isr(2, 1).error_code == ErrorCode.NONE
    assert assign(cluster, directory(1, 1)) == ErrorCode.NONE, "a directory that is offline"
    assert cluster.partition().isr == (2,)
