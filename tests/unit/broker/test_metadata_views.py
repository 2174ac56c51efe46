"""What a broker learns from the image: its own replicas, leaders, addresses."""

from __future__ import annotations

from hailbus_broker.cluster.metadata.views import (
    alive_brokers,
    leader_of,
    local_changes,
    offline_replicas,
    replicas_of,
)
from hailbus_broker.protocol.definitions.partition_change_record import PartitionChangeRecord
from hailbus_broker.protocol.errors import ErrorCode

from tests.unit.broker.cluster_of_brokers import Brokers, directory


def test_a_new_topic_gives_replicas_to_lead_and_to_follow() -> None:
    cluster = Brokers(1, 2, 3)
    new = cluster.controller.create_topic("rides", assignments={0: [1, 2], 1: [2, 1], 2: [2, 3]})
    delta = cluster.write(new.records)
    changes = local_changes(delta, cluster.image, 1)
    assert [found.state.index for found in changes.leads] == [0]
    assert [found.state.index for found in changes.follows] == [1]
    assert all(found.is_new and found.begins_epoch for found in (*changes.leads, *changes.follows))
    assert changes.leaves == []
    assert [state.index for _, state in replicas_of(cluster.image, 3)] == [2]


def test_a_lost_leader_makes_a_follower_lead_in_a_new_epoch() -> None:
    cluster = Brokers(1, 2)
    cluster.create([1, 2])
    delta = cluster.write(cluster.controller.fence(1, cluster.image.brokers[1].broker_epoch, next_offset=0))
    (found,) = local_changes(delta, cluster.image, 2).leads
    assert (found.is_new, found.begins_epoch, found.state.isr) == (False, True, (2,))
    (found,) = local_changes(delta, cluster.image, 1).follows
    assert (found.is_new, found.begins_epoch, found.state.leader) == (False, True, 2)


def test_a_smaller_isr_begins_no_epoch() -> None:
    cluster = Brokers(1, 2)
    cluster.create([1, 2])
    change = PartitionChangeRecord(partition_id=0, topic_id=cluster.topic_id, isr=[1])
    delta = cluster.write([change])
    (found,) = local_changes(delta, cluster.image, 1).leads
    assert not found.begins_epoch
    assert found.before is not None
    assert (found.before.isr, found.state.isr) == ((1, 2), (1,))


def test_a_reassignment_brings_a_replica_and_takes_one_away() -> None:
    cluster = Brokers(1, 2, 3)
    cluster.create([1, 2])
    change = PartitionChangeRecord(partition_id=0, topic_id=cluster.topic_id, replicas=[1, 3], isr=[1, 3])
    delta = cluster.write([change])
    assert [found.is_new for found in local_changes(delta, cluster.image, 3).follows] == [True]
    changes = local_changes(delta, cluster.image, 2)
    assert [(topic.name, state.index) for topic, state in changes.leaves] == [("rides", 0)]
    assert not changes.leads
    assert not changes.follows


def test_clients_see_brokers_that_are_alive_on_their_listener() -> None:
    cluster = Brokers(1, 2, 3)
    cluster.create([1, 2], [3, 1])
    assert [endpoint.port for _, endpoint in alive_brokers(cluster.image, "CLIENT")] == [9001, 9002, 9003]
    assert alive_brokers(cluster.image, "OTHER") == []
    assert leader_of(cluster.image, cluster.partition(), "CLIENT") == (1, ErrorCode.NONE)
    assert leader_of(cluster.image, cluster.partition(), "OTHER") == (-1, ErrorCode.LISTENER_NOT_FOUND)
    cluster.fence(3)
    assert [broker.node_id for broker, _ in alive_brokers(cluster.image, "CLIENT")] == [1, 2]
    cluster.fence(1, 2)
    assert leader_of(cluster.image, cluster.partition(), "CLIENT") == (-1, ErrorCode.LEADER_NOT_AVAILABLE)
    assert offline_replicas(cluster.image, cluster.partition(), "CLIENT") == [1, 2]


def test_a_replica_in_a_lost_directory_is_offline() -> None:
    cluster = Brokers(2)
    cluster.register(1, log_dirs=[directory(1), directory(1, 1)])
    cluster.heartbeat(1)
    cluster.create([1, 2])
    change = PartitionChangeRecord(
        partition_id=0, topic_id=cluster.topic_id, directories=[directory(1, 1), directory(2)]
    )
    cluster.write([change])
    assert offline_replicas(cluster.image, cluster.partition(), "CLIENT") == []
    cluster.heartbeat(1, offline_log_dirs=[directory(1, 1)])
    assert offline_replicas(cluster.image, cluster.partition(), "CLIENT") == [1]
    assert cluster.partition().leader == 2
