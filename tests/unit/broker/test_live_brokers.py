"""What clients of a listener see of the brokers and partitions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hailbus_broker.protocol.definitions.broker_registration_request import Listener as Registered
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.runtime.node_core import Listener
from hailbus_broker.server.handlers.live_brokers import Address, LiveBrokers

from tests.unit.broker.cluster_of_brokers import Brokers, directory


def seen(cluster: Brokers, listener: str = "CLIENT", *, node_id: int = 1, is_standalone: bool = False) -> LiveBrokers:
    roles = SimpleNamespace(is_standalone=is_standalone)
    core: Any = SimpleNamespace(image=cluster.image, node_id=node_id, roles=roles)
    own = Listener(name=listener, host="0.0.0.0", port=1, advertised_host="own", advertised_port=1)  # noqa: S104 no socket
    return LiveBrokers(core, own)


def test_each_broker_has_the_address_that_it_registered_for_the_listener() -> None:
    cluster = Brokers(1, 2)
    cluster.register(3, rack="b", listeners=[Registered(name="CLIENT", host="c3", port=3)])
    assert seen(cluster).addresses == {1: Address("h", 9001, ""), 2: Address("h", 9002, "")}  # 3 is fenced
    cluster.heartbeat(3)
    assert seen(cluster).addresses[3] == Address("c3", 3, "b")


def test_a_broker_that_registered_no_address_is_where_it_was_asked() -> None:
    cluster = Brokers(1, 2)
    assert seen(cluster, "OTHER").addresses == {1: Address("own", 1, "")}


def test_a_leader_without_the_listener_cannot_be_reached() -> None:
    cluster = Brokers(1, 2)
    cluster.create([2, 1])
    state = cluster.partition()
    live = seen(cluster, "OTHER")
    assert live.leader(state) == -1
    assert live.why_no_leader(state, knows_listeners=True) is ErrorCode.LISTENER_NOT_FOUND
    assert live.why_no_leader(state, knows_listeners=False) is ErrorCode.LEADER_NOT_AVAILABLE
    assert live.offline_replicas(state) == [2]
    assert seen(cluster).leader(state) == 2


def test_a_partition_without_leader_is_not_available() -> None:
    cluster = Brokers(1, 2)
    cluster.create([2])
    cluster.fence(2)
    state, live = cluster.partition(), seen(cluster)
    assert live.leader(state) == -1
    assert live.why_no_leader(state, knows_listeners=True) is ErrorCode.LEADER_NOT_AVAILABLE
    assert live.offline_replicas(state) == [2]


def test_a_replica_in_a_lost_directory_is_offline() -> None:
    cluster = Brokers(1, 2)
    cluster.register(3, log_dirs=[directory(3), directory(3, 1)])
    cluster.heartbeat(3)
    cluster.create([1, 2])
    assert seen(cluster).offline_replicas(cluster.partition()) == []
    # Broker 2 comes back with another directory.
    cluster.now_ms += 60_000
    cluster.register(2, log_dirs=[directory(2, 7)], incarnation_id=bytes(16), previous_broker_epoch=-1)
    cluster.heartbeat(2)
    assert seen(cluster).offline_replicas(cluster.partition()) == [2]
