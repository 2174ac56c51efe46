"""The metadata log on a disk answers the quorum as a list of entries does, and a follower's copy is the leader's."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hailbus_broker.cluster.metadata.snapshot import SnapshotId
from hailbus_broker.cluster.raft import control_records
from hailbus_broker.cluster.raft.comparison import divergence
from hailbus_broker.cluster.raft.messages import LogPosition
from hailbus_broker.cluster.raft.replicated_log import ReplicatedLog
from hailbus_broker.cluster.raft.voters import Endpoint, ReplicaKey, Voter, VoterSet
from hailbus_broker.log import Isolation, LogConfig, Origin, PartitionLog
from hailbus_broker.records import (
    CorruptBatchError,
    RecordToWrite,
    build_batch,
    iterate_batches,
    iterate_records,
)
from hailbus_broker.testing.simulation.disk import SimulatedDisk

from tests.property.broker.quorum import Disk, ModelLog

if TYPE_CHECKING:
    from hailbus_broker.log import AppendResult

NOW = 1_700_000_000_000
VOTERS = VoterSet(
    Voter(ReplicaKey(node_id, bytes([node_id]) * 16), (Endpoint("CONTROLLER", "host", 9090 + node_id),))
    for node_id in (1, 2, 3)
)


def new_log(seed: int = 0) -> ReplicatedLog:
    disk = SimulatedDisk(random.Random(seed))
    log = PartitionLog.open(disk, "data/__cluster_metadata-0", LogConfig(retention_ms=-1), now_ms=NOW, clean=False)
    return ReplicatedLog(log, None, wall_ms=lambda: NOW)


def write(log: ReplicatedLog, epoch: int, value: bytes, *, count: int = 1) -> AppendResult:
    batch = build_batch([RecordToWrite(key=None, value=value, timestamp=NOW)] * count)
    return log.log.append(batch, now_ms=NOW, leader_epoch=epoch, origin=Origin.COORDINATOR)


def stored(log: ReplicatedLog) -> bytes:
    found, offset = b"", log.start_offset
    while offset < log.end.end_offset:
        part = log.log.read(offset, 1 << 20, isolation=Isolation.LOG_END).to_bytes()
        found += part
        offset = list(iterate_batches(part))[-1].header.next_offset
    return found


@pytest.mark.parametrize("seed", range(40))
def test_a_log_answers_as_a_list_does(seed: int) -> None:
    chance = random.Random(seed)
    log, model, epoch = new_log(seed), ModelLog(Disk()), 1
    for _ in range(60):
        match chance.choice(("append", "append", "append", "epoch", "leader", "truncate", "snapshot")):
            case "append":
                write(log, epoch, b"x")
                model.append(epoch, b"x")
            case "epoch":
                epoch += chance.randint(1, 3)
            case "leader":
                epoch += 1
                log.append_start_of_epoch(epoch, leader_id=1, voters=VOTERS, granting=[1, 2])
                model.append_start_of_epoch(epoch, leader_id=1, voters=VOTERS, granting=[1, 2])
            case "truncate":
                end_offset = chance.randint(model.start_offset, model.end.end_offset)
                log.truncate_to(end_offset)
                model.truncate_to(end_offset)
            case "snapshot" if model.entries:
                end_offset = chance.randint(model.start_offset + 1, model.end.end_offset)
                snapshot = SnapshotId(end_offset, model.entries[end_offset - model.start_offset - 1][0])
                log.log.sync()
                log.log.advance_high_watermark(end_offset)
                log.log.delete_records(end_offset)
                del model.entries[: end_offset - model.start_offset]
                model.start_offset, log.latest_snapshot, model.latest_snapshot = end_offset, snapshot, snapshot
        assert log.start_offset == model.start_offset
        assert log.end == model.end
        for end in [
            LogPosition(chance.randint(0, epoch + 1), chance.randint(0, log.end.end_offset + 3)) for _ in "123"
        ]:
            if end.end_offset >= log.start_offset and (
                log.latest_snapshot is None or end.epoch >= log.latest_snapshot.leader_epoch
            ):
                assert divergence(log, end) == divergence(model, end), (end, log.log.leader_epochs.entries)


def test_a_follower_has_what_its_leader_has() -> None:
    leader, follower = new_log(1), new_log(2)
    leader.append_start_of_epoch(3, leader_id=1, voters=VOTERS, granting=[1, 3])
    level = leader.log.append(
        control_records.level_change(1, now_ms=NOW), now_ms=NOW, leader_epoch=3, origin=Origin.COORDINATOR
    )
    at = leader.append_voters(3, VOTERS)
    write(leader, 3, b"a topic", count=5)
    assert list(follower.append_fetched(stored(leader))) == [(level.base_offset, 1), (at, VOTERS)]
    assert stored(follower) == stored(leader)
    assert follower.end == leader.end == LogPosition(3, 8)


def test_a_batch_that_is_cut_short_comes_with_the_next_fetch() -> None:
    leader, follower = new_log(1), new_log(2)
    write(leader, 1, b"one")
    whole = len(stored(leader))
    write(leader, 1, b"two")
    follower.append_fetched(stored(leader)[:-1])
    assert follower.end == LogPosition(1, 1)
    follower.append_fetched(stored(leader)[whole:])
    assert stored(follower) == stored(leader)


def test_records_that_do_not_follow_are_refused() -> None:
    leader, follower = new_log(1), new_log(2)
    write(leader, 1, b"one")
    first = len(stored(leader))
    write(leader, 1, b"two")
    with pytest.raises(CorruptBatchError, match="begins at 1, this log ends at 0"):
        follower.append_fetched(stored(leader)[first:])
    with pytest.raises(CorruptBatchError):
        follower.append_fetched(stored(leader)[:-1] + b"?")
    assert follower.end == LogPosition(0, 0)


LEADER_CHANGE_OF_APACHE_KAFKA = bytes.fromhex("00000000000102000000010002000000010000")
"""The first record that a quorum of one writes, formatted with `--standalone`, and so at `kraft.version` 1 (4.3.1)."""


def test_a_leader_begins_its_epoch_with_the_record_of_apache_kafka_when_the_log_names_the_voters() -> None:
    log = new_log()
    voters = VoterSet([Voter(ReplicaKey(1, bytes([1]) * 16), (Endpoint("CONTROLLER", "host", 9091),))])
    log.append_start_of_epoch(1, leader_id=1, voters=voters, granting=[1])
    (batch,) = iterate_batches(stored(log))
    (record,) = iterate_records(batch)
    assert record.value == LEADER_CHANGE_OF_APACHE_KAFKA


def test_a_leader_names_who_voted_for_it() -> None:
    log = new_log()
    log.append_start_of_epoch(3, leader_id=1, voters=VOTERS, granting=[1, 3])
    (batch,) = iterate_batches(stored(log))
    assert batch.header.is_control
    assert batch.header.leader_epoch == 3
    (record,) = iterate_records(batch)
    assert record.key == b"\x00\x00\x00\x02"
    named = [node_id.to_bytes(4, "big") + b"\x00" for node_id in (1, 2, 3, 1, 3)]
    expected = (0).to_bytes(2, "big") + (1).to_bytes(4, "big")
    assert record.value == expected + b"\x04" + b"".join(named[:3]) + b"\x03" + b"".join(named[3:]) + b"\x00"
