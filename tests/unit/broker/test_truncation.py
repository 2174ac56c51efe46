"""A log whose end is cut off is like one that never had it, also when something else runs meanwhile."""

from __future__ import annotations

import contextlib
import random
from uuid import UUID

import pytest
from hailbus_broker.log import (
    CleanupPolicy,
    Isolation,
    LogConfig,
    LogDirectory,
    MetaProperties,
    Origin,
    PartitionLog,
    StorageError,
    SwapRunningError,
    TailCache,
    TimestampAndOffset,
    TopicPartition,
)
from hailbus_broker.records import (
    ControlType,
    RecordToWrite,
    build_batch,
    build_control_batch,
    iterate_batches,
    iterate_records,
)
from hailbus_broker.testing.simulation.disk import SimulatedDisk
from hailbus_broker.testing.simulation.errors import SimulatedCrashError

DIRECTORY = "data/rides-0"
WHERE = TopicPartition("rides", 0)
NOW = 1_700_000_000_000


def new_disk() -> SimulatedDisk:
    return SimulatedDisk(random.Random(0))


def open_log(
    disk: SimulatedDisk, config: LogConfig | None = None, *, clean: bool = False, recovery_point: int = 0
) -> PartitionLog:
    return PartitionLog.open(
        disk,
        DIRECTORY,
        config or LogConfig(),
        now_ms=NOW,
        clean=clean,
        recovery_point=recovery_point,
        tail_cache=TailCache(0),
    )


def append(
    log: PartitionLog, value: bytes, *, count: int = 1, timestamp: int = NOW, leader_epoch: int = 0, key: bytes = b"k"
) -> int:
    records = [RecordToWrite(key=key, value=value, timestamp=timestamp)] * count
    return log.append(build_batch(records), now_ms=NOW, leader_epoch=leader_epoch).base_offset


def append_from(log: PartitionLog, producer_id: int, sequence: int, *, transactional: bool = False) -> int:
    data = build_batch(
        [RecordToWrite(key=b"k", value=b"p", timestamp=NOW)],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=transactional,
    )
    return log.append(data, now_ms=NOW).base_offset


def end_transaction(log: PartitionLog, producer_id: int, control_type: ControlType) -> int:
    data = build_control_batch(
        control_type, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp=NOW
    )
    return log.append(data, now_ms=NOW, origin=Origin.COORDINATOR).base_offset


def values_in(log: PartitionLog) -> list[bytes | None]:
    values: list[bytes | None] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        for view in iterate_batches(log.read(offset, 1 << 20, isolation=Isolation.LOG_END).to_bytes(), whole=False):
            view.check_crc()
            values += [record.value for record in iterate_records(view) if not view.header.is_control]
            offset = view.header.next_offset
    return values


def test_a_sync_that_was_running_does_not_cover_what_came_afterwards() -> None:
    log = open_log(new_disk())
    for _ in range(5):
        append(log, b"old")
    pending = log.start_sync()
    assert pending is not None
    log.truncate_to(2)
    for _ in range(6):
        append(log, b"new")
    pending.run()
    assert log.finish_sync(pending) == 2
    assert log.sync() == 8


def test_the_highest_timestamp_of_what_is_left_is_found() -> None:
    log = open_log(new_disk(), LogConfig(index_interval_bytes=1 << 20))
    append(log, b"a", timestamp=NOW)
    append(log, b"b", timestamp=NOW + 50)
    append(log, b"c", timestamp=NOW + 10)
    append(log, b"d", timestamp=NOW + 90)
    log.truncate_to(3)
    assert log.max_timestamp() == TimestampAndOffset(NOW + 50, 1, 0)
    assert log.offset_for_timestamp(NOW + 20) == TimestampAndOffset(NOW + 50, 1, 0)
    assert log.offset_for_timestamp(NOW + 60) is None
    append(log, b"e", timestamp=NOW + 20)
    log.roll(now_ms=NOW)
    assert log.offset_for_timestamp(NOW + 30) == TimestampAndOffset(NOW + 50, 1, 0)


def test_a_segment_that_is_active_again_rolls_by_the_time_of_its_first_record() -> None:
    log = open_log(new_disk(), LogConfig(index_interval_bytes=0, segment_ms=100))
    for number in range(4):
        append(log, b"v", timestamp=NOW + 20 * number)
    log.roll(now_ms=NOW)
    append(log, b"v", timestamp=NOW + 90)
    log.truncate_to(3)
    append(log, b"v", timestamp=NOW + 110)
    assert log.read(0, 1 << 20, isolation=Isolation.LOG_END).to_bytes().count(b"v") == 3


def test_transactions_hold_the_last_stable_offset_back_as_before() -> None:
    log = open_log(new_disk())
    append_from(log, 1, 0, transactional=True)
    end_transaction(log, 1, ControlType.COMMIT)
    append(log, b"a")
    log.roll(now_ms=NOW)  # its snapshot does not know that the marker is not replicated
    append(log, b"b")
    append(log, b"c")
    log.advance_high_watermark(1)
    assert log.last_stable_offset == 0
    log.truncate_to(4)
    assert log.last_stable_offset == 0
    log.advance_high_watermark(4)
    assert log.last_stable_offset == 4


def test_a_transaction_whose_marker_is_cut_off_is_open_again() -> None:
    disk = new_disk()
    log = open_log(disk)
    append_from(log, 1, 0, transactional=True)
    end_transaction(log, 1, ControlType.ABORT)
    log.truncate_to(1)
    log.advance_high_watermark(1)
    assert log.last_stable_offset == 0
    assert log.aborted_transactions(0, 10) == ()
    assert end_transaction(log, 1, ControlType.COMMIT) == 1
    log.advance_high_watermark(2)
    for current in (log, open_log(disk)):
        assert current.aborted_transactions(0, 10) == ()
        assert current.producers()[0].current_transaction_start_offset == -1


def test_a_batch_that_begins_below_the_log_start_leaves_the_log_empty() -> None:
    log = open_log(new_disk())
    append(log, b"v", count=10)
    log.advance_high_watermark(10)
    log.delete_records(6)
    log.truncate_to(8)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (6, 6, 6)
    assert append(log, b"w") == 6
    assert values_in(log) == [b"w"]


def test_a_slice_that_is_being_sent_says_that_it_was_cut_off() -> None:
    log = open_log(new_disk())
    for number in range(6):
        append(log, b"%d" % number)
    whole = log.read(0, 1 << 20, isolation=Isolation.LOG_END).file_slice
    assert whole is not None
    first = whole._replace(length=whole.length // 6)
    log.truncate_to(3)
    assert whole.is_cut
    assert not first.is_cut
    after = log.read(0, 1 << 20, isolation=Isolation.LOG_END).file_slice
    assert after is not None
    assert not after.is_cut


def test_a_compaction_that_runs_does_not_bring_back_what_was_cut_off() -> None:
    config = LogConfig(cleanup_policy=frozenset({CleanupPolicy.COMPACT}))
    log = open_log(new_disk(), config)
    for number in range(4):
        append(log, b"old %d" % number, key=b"%d" % number)
    log.roll(now_ms=NOW)
    append(log, b"x", key=b"x")
    log.advance_high_watermark(5)
    task = log.start_compaction(now_ms=NOW, first_dirty_offset=0, is_forced=True)
    assert task is not None
    for _ in task.steps():
        pass
    log.truncate_to(2)
    append(log, b"new", key=b"9")
    assert not log.finish_compaction(task)
    assert values_in(log) == [b"old 0", b"old 1", b"new"]


def test_files_that_compaction_renames_are_not_cut() -> None:
    config = LogConfig(cleanup_policy=frozenset({CleanupPolicy.COMPACT}))
    log = open_log(new_disk(), config)
    for number in range(4):
        append(log, b"v%d" % number)
    log.roll(now_ms=NOW)
    log.advance_high_watermark(4)
    task = log.start_compaction(now_ms=NOW, first_dirty_offset=0, is_forced=True)
    assert task is not None
    for _ in task.steps():
        pass
    assert log.begin_swap(task)
    with pytest.raises(SwapRunningError):
        log.truncate_to(2)
    task.swap_in()
    log.end_swap(task)
    log.truncate_to(2)
    assert log.log_end_offset == 2


def test_a_failed_truncation_ends_the_appends() -> None:
    disk = new_disk()
    log = open_log(disk)
    append(log, b"a")
    append(log, b"b")

    def fail(path: str, operation: str) -> None:
        if operation == "truncate":
            raise StorageError("I/O error", path=path)

    disk.failing = fail
    with pytest.raises(StorageError):
        log.truncate_to(1)
    disk.failing = None
    with pytest.raises(StorageError):
        append(log, b"c")


# ---- checkpoints and recovery


def open_directory(disk: SimulatedDisk) -> LogDirectory:
    meta = MetaProperties(cluster_id="c" * 22, node_id=1, directory_id=UUID(int=5))
    logs = LogDirectory.open(disk, "data", new_meta=meta)
    logs.load(lambda _: LogConfig(), now_ms=NOW)
    return logs


def fill(log: PartitionLog, producer_id: int, first_sequence: int, count: int) -> None:
    """Batches large enough for a checkpoint to be worth a snapshot of the producers."""
    for sequence in range(first_sequence, first_sequence + count):
        data = build_batch(
            [RecordToWrite(key=None, value=bytes(300_000), timestamp=NOW)],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
        )
        log.append(data, now_ms=NOW)


def test_a_checkpoint_that_was_being_written_leaves_no_snapshot_of_what_was_cut_off() -> None:
    disk = new_disk()
    logs = open_directory(disk)
    log = logs.create(WHERE, UUID(int=7), LogConfig(), now_ms=NOW)
    fill(log, 1, 0, 8)
    log.sync()
    late = logs.prepare_checkpoint()
    checkpoint = logs.truncate(WHERE, 4)
    late.run()
    checkpoint.run()
    fill(log, 2, 0, 6)  # past the offset of the late snapshot
    log.sync()
    logs.prepare_checkpoint().run()
    disk.kill_process()
    again = open_directory(disk).logs[WHERE]
    assert [(entry.producer_id, entry.last_sequence) for entry in again.producers()] == [(1, 3), (2, 5)]


def test_compaction_looks_again_at_what_replaces_the_end() -> None:
    logs = open_directory(new_disk())
    log = logs.create(WHERE, UUID(int=7), LogConfig(), now_ms=NOW)
    for _ in range(6):
        append(log, b"v")
    logs.cleaned_offsets[WHERE] = 5
    logs.truncate(WHERE, 3).run()
    assert logs.cleaned_offsets[WHERE] == 3


def test_after_a_kill_the_aborted_transactions_of_the_cut_end_are_forgotten() -> None:
    disk = new_disk()
    log = open_log(disk)
    append_from(log, 1, 0, transactional=True)
    end_transaction(log, 1, ControlType.ABORT)
    log.sync()
    index = disk.read_bytes(f"{DIRECTORY}/00000000000000000000.txnindex")
    assert index
    log.truncate_to(0)
    # as if the index had not been truncated when the power went
    disk.open(f"{DIRECTORY}/00000000000000000000.txnindex").append(index)
    again = open_log(disk, recovery_point=2)
    assert again.log_end_offset == 0
    append_from(again, 1, 0, transactional=True)
    end_transaction(again, 1, ControlType.COMMIT)
    assert again.aborted_transactions(0, 10) == ()


def test_after_a_kill_the_epochs_are_those_of_the_batches() -> None:
    disk = new_disk()
    log = open_log(disk)
    append(log, b"a", leader_epoch=1)
    append(log, b"b", leader_epoch=5)
    log.sync()
    checkpoint = disk.read_bytes(f"{DIRECTORY}/leader-epoch-checkpoint")
    assert checkpoint == b"0\n2\n1 0\n5 1\n"
    log.truncate_to(1)
    append(log, b"c", leader_epoch=1)
    append(log, b"d", leader_epoch=6)
    disk.write_whole(f"{DIRECTORY}/leader-epoch-checkpoint", checkpoint)  # the sync has not come that far
    again = open_log(disk, recovery_point=1)
    assert again.leader_epochs.entries == log.leader_epochs.entries == [(1, 0), (6, 2)]


def test_after_a_kill_an_epoch_that_begins_at_the_log_end_is_forgotten() -> None:
    disk = new_disk()
    log = open_log(disk)
    append(log, b"a", leader_epoch=1)
    append(log, b"b", leader_epoch=5)
    log.sync()
    log.truncate_to(1)
    disk.kill_process()
    again = open_log(disk, recovery_point=1)
    append(again, b"c", leader_epoch=3)
    assert again.leader_epochs.entries == [(1, 0), (3, 1)]


def test_a_kill_while_the_log_begins_anew_leaves_no_epoch_behind_its_end() -> None:
    for step in range(100):
        disk = new_disk()
        log = open_log(disk)
        append(log, b"a", leader_epoch=1)
        append(log, b"b", leader_epoch=5)
        log.sync()
        disk.crash_at_step = disk.step_count + step
        with contextlib.suppress(SimulatedCrashError):
            log.restart_at(0, now_ms=NOW)
        if not disk.has_crashed:
            assert step > 3
            return
        disk.kill_process()
        again = open_log(disk)
        assert all(start < again.log_end_offset for _, start in again.leader_epochs.entries)
    raise AssertionError("the log never began anew")
