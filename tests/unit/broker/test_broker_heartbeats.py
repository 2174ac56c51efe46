"""Heartbeats: who is fenced and unfenced, how a broker stops, what the clock does."""

from __future__ import annotations

import pytest
from hailbus_broker.cluster.metadata.records import encode_record
from hailbus_broker.protocol.definitions.abort_transaction_record import AbortTransactionRecord
from hailbus_broker.protocol.definitions.broker_heartbeat_request import BrokerHeartbeatRequest
from hailbus_broker.protocol.definitions.config_record import ConfigRecord
from hailbus_broker.protocol.definitions.no_op_record import NoOpRecord
from hailbus_broker.protocol.errors import ApiError, ErrorCode

from tests.unit.broker.cluster_of_brokers import Brokers, directory, incarnation


def test_a_broker_is_unfenced_when_it_has_its_registration() -> None:
    cluster = Brokers(1)
    epoch = cluster.register(2)
    answer = cluster.heartbeat(2, current_metadata_offset=epoch - 1)
    assert (answer.is_caught_up, answer.is_fenced) == (False, True)
    answer = cluster.heartbeat(2, current_metadata_offset=epoch, want_fence=True)
    assert (answer.is_caught_up, answer.is_fenced) == (True, True)
    answer = cluster.heartbeat(2, current_metadata_offset=epoch)
    assert (answer.is_caught_up, answer.is_fenced) == (True, False)
    assert not cluster.image.brokers[2].fenced


def test_a_registration_that_is_repeated_has_to_be_applied_again() -> None:
    cluster = Brokers(1, 2)
    offset = cluster.offset
    cluster.register(2)
    assert not cluster.heartbeat(2, current_metadata_offset=offset - 1).is_caught_up
    assert cluster.heartbeat(2, current_metadata_offset=offset).is_caught_up


def test_a_stale_epoch_is_refused() -> None:
    cluster = Brokers(1)
    for broker_id, says in ((1, "Expected broker epoch"), (7, "No broker registration found for broker id 7")):
        request = BrokerHeartbeatRequest(broker_id=broker_id, broker_epoch=99)
        with pytest.raises(ApiError, match=says) as refused:
            cluster.controller.heartbeat(request, next_offset=0, now_ms=0)
        assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_a_broker_that_wants_a_fence_gets_it() -> None:
    cluster = Brokers(1, 2)
    cluster.create([1, 2])
    assert cluster.heartbeat(1, want_fence=True).is_fenced
    assert (cluster.partition().leader, cluster.partition().isr) == (2, (2,))


def test_a_heartbeat_from_before_the_fence_changes_nothing() -> None:
    """It may arrive late, when the process that sent it has ended."""
    cluster = Brokers(1, 2)
    cluster.create([1, 2])
    sent_before = cluster.offset - 1
    cluster.fence(1)
    fenced_offset = cluster.offset - 1
    for offset in (sent_before, fenced_offset - 1):
        answer = cluster.heartbeat(1, current_metadata_offset=offset)
        assert (answer.is_caught_up, answer.is_fenced) == (False, True)
    assert cluster.partition().leader == 2
    answer = cluster.heartbeat(1, current_metadata_offset=fenced_offset)
    assert (answer.is_caught_up, answer.is_fenced) == (True, False)


@pytest.mark.parametrize("how", ["silence", "stop", "wish"])
def test_whoever_fences_a_broker_waits_for_it_to_know(how: str) -> None:
    cluster = Brokers(1, 2)
    sent_before = cluster.offset - 1
    match how:
        case "silence":
            cluster.now_ms = 9_001
            cluster.heartbeat(1)
            cluster.write(cluster.tick())
        case "stop":
            assert cluster.heartbeat(2, want_shut_down=True).should_shut_down
        case "wish":
            assert cluster.heartbeat(2, want_fence=True).is_fenced
    assert cluster.image.brokers[2].fenced
    assert cluster.heartbeat(2, current_metadata_offset=sent_before).is_fenced


def test_a_new_controller_unfences_nobody_by_a_heartbeat_to_an_earlier_one() -> None:
    cluster = Brokers(1, 2)
    sent_before = cluster.offset - 1
    cluster.fence(2)
    cluster.write(cluster.controller.activate(next_offset=cluster.offset, now_ms=0, has_open_transaction=False))
    assert cluster.heartbeat(2, current_metadata_offset=sent_before).is_fenced
    assert not cluster.heartbeat(2).is_fenced


def test_silent_brokers_are_fenced_one_after_the_other() -> None:
    cluster = Brokers(1, 2, 3)
    cluster.create([3, 2, 1])
    assert cluster.controller.deadline_ms() is not None
    cluster.now_ms = 4_000
    cluster.heartbeat(1)
    cluster.now_ms = 9_001
    fenced = []
    while (deadline_ms := cluster.controller.deadline_ms()) is not None and deadline_ms <= cluster.now_ms:
        before = {broker_id for broker_id, broker in cluster.image.brokers.items() if broker.fenced}
        cluster.write(cluster.tick())
        fenced += sorted({one for one, broker in cluster.image.brokers.items() if broker.fenced} - before)
    assert sorted(fenced) == [2, 3]
    assert (cluster.partition().leader, cluster.partition().isr) == (1, (1,))


def test_the_deadline_is_that_of_the_broker_that_is_silent_longest() -> None:
    cluster = Brokers(1, 2, settings={"metadata.max.idle.interval.ms": "0", "broker.session.timeout.ms": "500"})
    cluster.now_ms = 300
    cluster.heartbeat(1)
    assert cluster.controller.deadline_ms() == 501
    assert cluster.tick(500) == []
    cluster.write(cluster.tick(501))
    assert cluster.image.brokers[2].fenced
    assert cluster.controller.deadline_ms() == 801


def test_a_new_controller_gives_every_broker_a_whole_session() -> None:
    cluster = Brokers(1, 2, settings={"metadata.max.idle.interval.ms": "0"})
    records = cluster.controller.activate(next_offset=cluster.offset, now_ms=50_000, has_open_transaction=True)
    assert [type(record) for record in records] == [AbortTransactionRecord]
    assert cluster.controller.deadline_ms() == 59_001


def test_a_new_cluster_begins_with_its_levels_in_a_transaction() -> None:
    cluster = Brokers(settings={"min.insync.replicas": "2"})
    levels = {"group.version": 1, "metadata.version": 30, "eligible.leader.replicas.version": 1}
    records = cluster.controller.activate(
        next_offset=cluster.offset, now_ms=0, has_open_transaction=False, bootstrap=levels
    )
    assert [type(record).__name__ for record in records] == [
        "BeginTransactionRecord",
        "FeatureLevelRecord",
        "FeatureLevelRecord",
        "FeatureLevelRecord",
        "ConfigRecord",
        "EndTransactionRecord",
    ]
    minimum = ConfigRecord(resource_type=4, resource_name="", name="min.insync.replicas", value="2")
    assert records[-2] == minimum
    # As Apache Kafka begins its logs.
    assert encode_record(records[0]).hex() == "01170001001212426f6f747374726170207265636f726473"
    assert b"metadata.version" in encode_record(records[1])


def test_an_idle_controller_writes_records_without_meaning() -> None:
    cluster = Brokers(settings={"metadata.max.idle.interval.ms": "500"})
    assert cluster.controller.deadline_ms() == 500
    assert [type(record) for record in cluster.tick(500)] == [NoOpRecord]
    assert cluster.tick(999) == []
    assert cluster.controller.deadline_ms() == 1_000


def test_a_controlled_shutdown_moves_leaders_and_waits_for_the_others() -> None:
    cluster = Brokers(1, 2, 3)
    cluster.create([1, 2], [2, 1])
    answer = cluster.heartbeat(1, want_shut_down=True)
    assert (answer.should_shut_down, answer.is_fenced) == (False, False)
    assert cluster.image.brokers[1].in_controlled_shutdown
    assert [cluster.partition(index).leader for index in range(2)] == [2, 2]
    assert [cluster.partition(index).isr for index in range(2)] == [(2,), (2,)]
    shutdown_offset = cluster.offset - 1
    cluster.heartbeat(2)
    assert not cluster.heartbeat(1, want_shut_down=True).should_shut_down, "broker 3 has not the new leaders yet"
    cluster.heartbeat(3, current_metadata_offset=shutdown_offset - 1)
    assert not cluster.heartbeat(1, want_shut_down=True).should_shut_down
    cluster.heartbeat(3, current_metadata_offset=shutdown_offset)
    answer = cluster.heartbeat(1, want_shut_down=True)
    assert (answer.should_shut_down, answer.is_fenced) == (True, True)
    assert cluster.image.brokers[1].fenced


def test_a_broker_that_leads_nothing_stops_at_once() -> None:
    cluster = Brokers(1, 2)
    cluster.create([1, 2])
    answer = cluster.heartbeat(2, want_shut_down=True)
    assert (answer.should_shut_down, answer.is_fenced) == (True, True)
    assert cluster.partition().isr == (1,)
    assert cluster.heartbeat(2, want_shut_down=True).should_shut_down, "a fenced broker may stop at any time"


def test_a_broker_that_was_about_to_stop_returns_as_another_incarnation_only() -> None:
    cluster = Brokers(1, 2)
    cluster.create([1, 2])
    cluster.heartbeat(1, want_shut_down=True)
    cluster.fence(1)
    assert cluster.heartbeat(1).is_fenced
    cluster.register(1, incarnation_id=incarnation(1, 1))
    assert not cluster.heartbeat(1).is_fenced
    assert not cluster.image.brokers[1].in_controlled_shutdown


def test_a_fence_for_another_incarnation_does_nothing() -> None:
    cluster = Brokers(1, 2)
    epoch = cluster.image.brokers[2].broker_epoch
    assert cluster.controller.fence(2, epoch - 1, next_offset=cluster.offset) == []
    assert cluster.controller.fence(7, 0, next_offset=cluster.offset) == []
    cluster.fence(2)
    assert cluster.controller.fence(2, epoch, next_offset=cluster.offset) == []


def test_replicas_of_a_lost_directory_leave_the_isr() -> None:
    cluster = Brokers(2)
    cluster.register(1, log_dirs=[directory(1), directory(1, 1)])
    cluster.heartbeat(1)
    cluster.create([1, 2], [1, 2])
    state = cluster.partition()
    assert state.directory(1) == bytes(15) + b"\x01", "of two directories the broker chooses one"
    assert state.directory(2) == directory(2)
    cluster.heartbeat(1, offline_log_dirs=[directory(1, 1)])
    assert cluster.image.brokers[1].log_dirs == (directory(1),)
    assert cluster.partition().leader == 1, "it was not said to be in that directory"


def test_cordoned_directories_are_noted() -> None:
    cluster = Brokers(1)
    cluster.heartbeat(1, cordoned_log_dirs=[directory(1)])
    assert cluster.image.brokers[1].cordoned_log_dirs == (directory(1),)
    before = cluster.offset
    cluster.heartbeat(1, cordoned_log_dirs=[directory(1)])
    cluster.heartbeat(1)
    assert cluster.offset == before, "nothing has changed"
