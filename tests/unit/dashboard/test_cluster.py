"""Brokers, leaders and replicas as the page shows them."""

from dashboard.domain.cluster import NO_LEADER, Partition, Registered, cluster_of, topics_of


def partition(number: int, leader: int, isr: tuple[int, ...], topic: str = "rides.v1") -> Partition:
    return Partition(topic=topic, partition=number, leader=leader, replicas=(1, 2, 3), isr=isr)


def registered(node_id: int, *, is_fenced: bool = False) -> Registered:
    return Registered(node_id=node_id, address=f"broker-{node_id}:9092", rack=None, is_fenced=is_fenced)


def test_brokers_lead_follow_and_are_in_sync() -> None:
    found = cluster_of(
        cluster_id="c",
        controller_id=3,
        registered=[registered(3), registered(1), registered(2, is_fenced=True)],
        partitions=[partition(1, 3, (1, 3)), partition(0, 1, (1, 2, 3)), partition(0, 1, (1, 3), topic="quotes.v1")],
    )
    assert [(b.node_id, b.is_up, b.is_controller, b.leads, b.replicas, b.in_sync) for b in found.brokers] == [
        (1, True, False, 2, 3, 3),
        (2, False, False, 0, 3, 1),
        (3, True, True, 1, 3, 3),
    ]
    assert [(topic, [one.partition for one in parts]) for topic, parts in topics_of(found).items()] == [
        ("quotes.v1", [0]),
        ("rides.v1", [0, 1]),
    ]
    assert [one.is_under_replicated for one in found.partitions] == [True, False, True]
    assert not any(one.is_offline for one in found.partitions)


def test_a_broker_that_only_replicas_name_is_down() -> None:
    # Apache Kafka before 4.0 does not list fenced brokers.
    found = cluster_of(
        cluster_id="c",
        controller_id=None,
        registered=[registered(1)],
        partitions=[partition(0, NO_LEADER, (2,))],
    )
    assert [(b.node_id, b.address, b.is_up) for b in found.brokers] == [
        (1, "broker-1:9092", True),
        (2, "", False),
        (3, "", False),
    ]
    assert found.partitions[0].is_offline
