"""What the nodes of a cluster must agree on: each invariant is broken once."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from hailbus_broker.cluster.metadata.brokers import FENCE
from hailbus_broker.cluster.raft.voters import ReplicaKey, Voter, VoterHistory, VoterSet
from hailbus_broker.log import Origin, PartitionLog
from hailbus_broker.log.config import LogConfig
from hailbus_broker.protocol.definitions.broker_registration_change_record import BrokerRegistrationChangeRecord
from hailbus_broker.protocol.definitions.partition_change_record import PartitionChangeRecord
from hailbus_broker.protocol.definitions.partition_record import PartitionRecord
from hailbus_broker.protocol.definitions.register_broker_record import RegisterBrokerRecord
from hailbus_broker.protocol.definitions.topic_record import TopicRecord
from hailbus_broker.records import ControlType, RecordToWrite, build_batch, build_control_batch
from hailbus_broker.testing.campaign.invariants import ClusterInvariants
from hailbus_broker.testing.campaign.logs import CommittedLog, MetadataEnd, end_of_marker
from hailbus_broker.testing.campaign.recorder import Recorder
from hailbus_broker.testing.simulation.cluster import ClusterWorld
from hailbus_broker.testing.simulation.disk import SimulatedDisk
from hailbus_broker.testing.simulation.world import World

if TYPE_CHECKING:
    from hailbus_broker.cluster.raft.quorum import Quorum
    from hailbus_broker.protocol.schema import Message

TOPIC_ID = b"t" * 16


class Judged:
    """Invariants that have seen a topic of three replicas, of which all are in sync."""

    def __init__(self, topic: str = "rides") -> None:
        self.notes: Counter[str] = Counter()
        self.recorder = Recorder(lambda what: self.notes.update([what]))
        world = World(1)
        self.cluster = ClusterWorld(world, dict.fromkeys((1, 2, 3), "broker,controller"), {})
        self.invariants = ClusterInvariants(self.cluster, self.recorder, min_isr=2)
        self.take(
            TopicRecord(name=topic, topic_id=TOPIC_ID),
            PartitionRecord(
                partition_id=0,
                topic_id=TOPIC_ID,
                replicas=[1, 2, 3],
                isr=[1, 2, 3],
                leader=1,
                leader_epoch=0,
                partition_epoch=0,
                directories=[bytes([number]) * 16 for number in (1, 2, 3)],
            ),
        )

    def take(self, *records: Message) -> list[str]:
        for record in records:
            self.invariants.apply(record)
        return self.recorder.failures


def change(**values: object) -> PartitionChangeRecord:
    return PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, **values)  # type: ignore[arg-type]  # as given


def test_a_leader_may_come_from_the_isr() -> None:
    judged = Judged()
    assert judged.take(change(leader=2, isr=[2, 3])) == []
    assert judged.notes["partition leader changed"] == 1
    assert judged.notes["ISR at its minimum"] == 1


def test_a_leader_may_come_from_the_eligible_replicas() -> None:
    judged = Judged()
    kept = change(leader=-1, isr=[], eligible_leader_replicas=[1, 2, 3])
    assert judged.take(kept, change(leader=2, isr=[2], eligible_leader_replicas=[1, 3])) == []
    assert judged.notes["eligible leader elected"] == 1


def test_nobody_else_may_lead() -> None:
    judged = Judged()
    (failure,) = judged.take(change(isr=[1, 2]), change(leader=3, isr=[3]))
    assert failure == "rides-0, epoch 1: 3 became the leader, in sync were (1, 2), eligible ()"


def test_the_loose_topic_may_elect_anybody() -> None:
    judged = Judged("loose")
    assert judged.take(change(isr=[1, 2]), change(leader=3, isr=[3])) == []
    assert judged.notes["unclean election"] == 1


@pytest.mark.parametrize(
    ("record", "failure"),
    [
        (change(leader=2, isr=[1, 3]), "leader 2 is not in sync"),
        (change(isr=[1, 2, 4]), "in-sync replicas (1, 2, 4) of (1, 2, 3)"),
    ],
)
def test_the_leader_is_in_sync_and_those_in_sync_are_replicas(record: PartitionChangeRecord, failure: str) -> None:
    assert failure in Judged().take(record)[0]


def test_a_reassignment_waits_for_the_new_replicas() -> None:
    judged = Judged()
    moving = change(replicas=[1, 2, 3, 4], adding_replicas=[4], removing_replicas=[3])
    moved = change(replicas=[1, 2, 4], isr=[1, 2], adding_replicas=[], removing_replicas=[])
    (failure,) = judged.take(moving, moved)
    assert "moved to (1, 2, 4) while (1, 2) are in sync" in failure


def test_a_reassignment_that_keeps_every_replica_waits_for_the_new_one() -> None:
    judged = Judged()
    moving = change(replicas=[1, 2, 3, 4], adding_replicas=[4])
    (failure,) = judged.take(moving, change(adding_replicas=[]))
    assert "moved to (1, 2, 3, 4) while (1, 2, 3) are in sync" in failure


def test_a_reassignment_in_one_record_leaves_no_replica_that_lags() -> None:
    judged = Judged()
    (failure,) = judged.take(change(isr=[1, 3]), change(replicas=[1, 2], isr=[1]))
    assert "moved to (1, 2) while (1,) are in sync" in failure
    assert judged.notes["reassignment completed"] == 1


@pytest.mark.parametrize("added", [[], [4]])
@pytest.mark.parametrize("original", [[1, 2, 3], [3, 2, 1]])
def test_a_reassignment_is_cancelled_while_a_replica_lags(original: list[int], added: list[int]) -> None:
    judged = Judged()
    moving = change(isr=[1, 3], replicas=[1, 2, *added, 3], adding_replicas=added, removing_replicas=[3])
    cancelled = change(replicas=original, adding_replicas=[], removing_replicas=[])
    assert judged.take(moving, cancelled) == []
    assert (judged.notes["reassignment cancelled"], judged.notes["reassignment completed"]) == (1, 0)


def test_a_replica_that_joins_last_may_lead_when_the_reassignment_ends() -> None:
    judged = Judged()
    moving = change(replicas=[4, 2, 3, 1], adding_replicas=[4], removing_replicas=[1])
    moved = change(replicas=[4, 2, 3], isr=[2, 3, 4], leader=4, adding_replicas=[], removing_replicas=[])
    assert judged.take(moving, moved) == []
    assert judged.notes["reassignment completed"] == 1


def test_a_vote_is_given_once_in_an_epoch_and_epochs_do_not_fall() -> None:
    judged = Judged()
    for epoch, voted_id in ((1, None), (1, 2), (1, 2), (2, 3)):
        judged.invariants.heard({"event": "election_state_changed", "epoch": epoch, "voted_id": voted_id})
    assert judged.recorder.failures == []
    judged.invariants.heard({"event": "election_state_changed", "epoch": 2, "voted_id": 1})
    judged.invariants.heard({"event": "election_state_changed", "epoch": 1, "voted_id": None})
    assert judged.recorder.failures == [" voted for 3 and for 1 in epoch 2", " went back from epoch 2 to 1"]


def quorum_that_voted(epoch: int, voted_id: int | None) -> Quorum:
    voted = None if voted_id is None else ReplicaKey(voted_id)
    return cast("Quorum", SimpleNamespace(epoch=epoch, voted=voted))


def test_a_node_knows_its_vote_as_long_as_it_is_in_that_epoch() -> None:
    judged = Judged()
    judged.invariants.heard({"event": "election_state_changed", "epoch": 2, "voted_id": 3})
    for epoch, voted_id in ((2, 3), (3, None), (3, 1)):
        judged.invariants.judge_vote("", quorum_that_voted(epoch, voted_id))
    assert judged.recorder.failures == []
    judged.invariants.judge_vote("", quorum_that_voted(2, None))
    judged.invariants.judge_vote("", quorum_that_voted(2, 1))
    assert [failure.partition(",")[0] for failure in judged.recorder.failures] == [" voted for 3 in epoch 2"] * 2


def registered(broker_id: int, **values: object) -> RegisterBrokerRecord:
    epoch = broker_id
    return RegisterBrokerRecord(broker_id=broker_id, incarnation_id=bytes(16), broker_epoch=epoch, rack=None, **values)  # type: ignore[arg-type]  # as given


def fenced(broker_id: int) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=broker_id, fenced=FENCE)


def test_a_node_knows_the_voters_that_committed_records_name() -> None:
    judged = Judged()
    three, two = (VoterSet(Voter(ReplicaKey(number), ()) for number in range(1, count)) for count in (4, 3))
    judged.invariants._voters.learn([(5, three), (20, two)])
    history = VoterHistory(three)
    history.learn([(5, three), (20, two)])
    for high_watermark in (3, 10, 30):
        judged.invariants.judge_voters("node1", history, high_watermark)
    assert judged.recorder.failures == []
    history.truncate_to(20)
    judged.invariants.judge_voters("node1", history, 10)
    assert judged.recorder.failures == []
    judged.invariants.judge_voters("node1", history, 30)
    assert len(judged.recorder.failures) == 1


def test_a_broker_that_is_fenced_has_given_up_its_leaderships() -> None:
    judged = Judged()
    brokers = [registered(broker_id, fenced=False) for broker_id in (1, 2, 3)]
    assert judged.take(*brokers, change(leader=2, isr=[2, 3]), fenced(1)) == []
    assert judged.take(fenced(2)) == ["rides-0 is led by the fenced broker 2"]


def test_a_new_incarnation_of_a_broker_leads_nothing_yet() -> None:
    assert Judged().take(registered(1, fenced=True)) == ["rides-0 is led by the fenced broker 1"]


@pytest.mark.parametrize(("replicas", "failure_count"), [([1, 3], 0), ([1, 2], 1), ([1, 2, 3], 0)])
def test_a_new_partition_is_on_as_many_racks_as_it_can(replicas: list[int], failure_count: int) -> None:
    judged = Judged()
    for broker_id, rack in ((1, "north"), (2, "north"), (3, "south")):
        judged.take(RegisterBrokerRecord(broker_id=broker_id, broker_epoch=1, rack=rack, fenced=False))
    created = PartitionRecord(
        partition_id=1,
        topic_id=TOPIC_ID,
        replicas=replicas,
        isr=replicas,
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
        directories=[bytes([number]) * 16 for number in replicas],
    )
    assert len(judged.take(created)) == failure_count


@pytest.mark.parametrize(("left", "failure_count"), [({"isr": [1, 3]}, 0), ({}, 1)])
def test_a_broker_with_a_new_disk_is_not_in_sync(left: dict[str, list[int]], failure_count: int) -> None:
    judged = Judged()
    node = judged.cluster.nodes[2]
    for _ in range(2):
        node.disk.wipe()
        node.format()
    judged.invariants.disk_lost(node)
    assert node.directory_id is not None
    old = RegisterBrokerRecord(broker_id=2, broker_epoch=1, fenced=False, log_dirs=[b"d" * 16])
    new = RegisterBrokerRecord(broker_id=2, broker_epoch=2, fenced=True, log_dirs=[node.directory_id.bytes])
    assert judged.take(old) == []
    assert len(judged.take(change(**left), new)) == failure_count
    judged.take(change(isr=[1, 3]), change(isr=[1, 2, 3]))
    assert judged.notes["replica of a lost disk in sync again"] == 1


def test_the_last_known_leader_is_not_elected_with_an_empty_disk() -> None:
    judged = Judged()
    node = judged.cluster.nodes[2]
    node.disk.wipe()
    node.format()
    gone = change(leader=-1, isr=[], last_known_elr=[2])
    judged.take(change(leader=2, isr=[2]), gone)
    judged.invariants.disk_lost(node)
    (failure,) = judged.take(change(leader=2, isr=[2]))
    assert failure == "rides-0, epoch 3: the last known leader 2 was elected with an empty disk"
    assert judged.take(change(isr=[1, 2]), gone, change(leader=2, isr=[2])) == [failure]  # it had been in sync


@pytest.mark.parametrize("is_registered", [True, False])
def test_a_replica_of_a_lost_disk_may_have_been_in_sync_in_metadata_that_nobody_saw(is_registered: bool) -> None:
    """Only a broker that has not registered with its new disk yet is known to be empty."""
    judged = Judged()
    node = judged.cluster.nodes[2]
    node.disk.wipe()
    node.format()
    judged.take(RegisterBrokerRecord(broker_id=2, broker_epoch=1, fenced=False, log_dirs=[b"d" * 16]))
    judged.invariants.disk_lost(node)
    judged.take(change(isr=[1, 3]))
    if is_registered:
        assert node.directory_id is not None
        new_disk = [node.directory_id.bytes]
        judged.take(RegisterBrokerRecord(broker_id=2, broker_epoch=2, fenced=False, log_dirs=new_disk))
    judged.invariants._skip_lost_disks()
    judged.take(change(leader=-1, isr=[], last_known_elr=[2]))
    failures = judged.take(change(leader=2, isr=[2]))
    assert failures == (
        [] if is_registered else ["rides-0, epoch 2: the last known leader 2 was elected with an empty disk"]
    )


def test_a_fenced_broker_is_not_elected() -> None:
    judged = Judged()
    brokers = [registered(broker_id, fenced=broker_id == 2) for broker_id in (1, 2, 3)]
    (failure,) = judged.take(*brokers, change(leader=2, isr=[1, 2, 3]))
    assert failure == "rides-0, epoch 1: the fenced broker 2 became the leader"


@pytest.mark.parametrize("values", [{"fenced": FENCE}, {"in_controlled_shutdown": 1}])
def test_a_broker_that_is_fenced_or_about_to_stop_joins_no_isr(values: dict[str, int]) -> None:
    judged = Judged()
    brokers = [registered(broker_id, fenced=False) for broker_id in (1, 2, 3)]
    assert judged.take(*brokers, change(isr=[1, 2]), change(isr=[1, 2, 3]), change(isr=[1, 2])) == []
    judged.take(BrokerRegistrationChangeRecord(broker_id=3, broker_epoch=3, **values))  # type: ignore[arg-type]  # as given
    (failure,) = judged.take(change(isr=[1, 2, 3]))
    assert failure == "rides-0, epoch 0: 3 joins the ISR, though it is fenced or about to stop"


def test_a_leader_of_the_quorum_commits_records_of_its_own_epoch() -> None:
    judged = Judged()
    judged.invariants._candidates["node1", 2] = 1
    log = log_of(b"a", b"b", b"c")
    log.append(build_batch([RecordToWrite(key=None, value=b"d", timestamp=1)]), now_ms=1, leader_epoch=2)
    for high_watermark in (1, 4):
        judged.invariants.judge_commit("node1", 2, log, high_watermark)
    assert judged.recorder.failures == []
    judged.invariants.judge_commit("node1", 2, log, 3)
    assert judged.recorder.failures == [
        "node1 leads epoch 2 and commits up to 3, which ends with epoch 0; 1 was committed before"
    ]


@pytest.mark.parametrize(("topic", "failure_count"), [("rides", 1), ("loose", 0)])
def test_nothing_committed_is_truncated_but_in_the_loose_topic(topic: str, failure_count: int) -> None:
    judged = Judged()
    event = {"event": "truncated_below_high_watermark", "partition": f"{topic}-0", "offset": 3, "high_watermark": 5}
    judged.invariants.heard(event)
    assert len(judged.recorder.failures) == failure_count
    assert judged.notes["truncation below the high watermark"] == 1


def log_of(*values: bytes) -> PartitionLog:
    log = PartitionLog.open(SimulatedDisk(random.Random(1)), "/data/rides-0", LogConfig(), now_ms=1, clean=True)
    for value in values:
        log.append(build_batch([RecordToWrite(key=None, value=value, timestamp=1)]), now_ms=1, leader_epoch=0)
    return log


def test_a_committed_record_is_the_same_everywhere() -> None:
    found: list[str] = []
    committed = CommittedLog("rides-0", found.append)
    world = World(1)
    nodes = ClusterWorld(world, dict.fromkeys((1, 2, 3), "broker,controller"), {}).nodes
    assert len(list(committed.read(nodes[1], log_of(b"a", b"b", b"c"), 2))) == 2
    assert len(list(committed.read(nodes[1], log_of(b"a", b"b", b"c"), 3))) == 1
    assert list(committed.read(nodes[2], log_of(b"a", b"b"), 2)) == []
    assert (found, committed.end_offset) == ([], 3)
    assert list(committed.read(nodes[3], log_of(b"a", b"x"), 2)) == []
    assert len(found) == 1
    assert found[0].startswith("rides-0 at 1: node3 has ")


def test_a_truncation_is_seen_when_other_records_have_taken_the_place() -> None:
    log = log_of(b"a", b"b", b"c")
    log.sync()
    end = MetadataEnd.of(log)
    assert end == (3, 0)
    log.append(build_batch([RecordToWrite(key=None, value=b"d", timestamp=1)]), now_ms=1, leader_epoch=1)
    assert not end.is_gone(log)
    log.truncate_to(2)
    assert end.is_gone(log)
    for value in (b"x", b"y"):
        log.append(build_batch([RecordToWrite(key=None, value=value, timestamp=1)]), now_ms=1, leader_epoch=2)
    assert log.log_end_offset == 4
    assert end.is_gone(log)
    assert not MetadataEnd.of(log_of()).is_gone(log)


def test_the_marker_of_a_transaction_is_the_next_one_of_its_producer() -> None:
    log = log_of(b"a")
    assert end_of_marker(log, 7, 0) is None
    for producer_id in (8, 7, 7):
        marker = build_control_batch(
            ControlType.COMMIT, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp=1
        )
        log.append(marker, now_ms=1, leader_epoch=0, origin=Origin.COORDINATOR)
    assert [end_of_marker(log, 7, offset) for offset in (0, 2, 3, 4)] == [3, 3, 4, None]
