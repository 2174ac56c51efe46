"""Indexes of a segment that was closed after the last sync: its data is on the disk, they may hold anything."""

from __future__ import annotations

import random
from typing import Final

import pytest
from hailbus_broker.log import Isolation, LogConfig, PartitionLog
from hailbus_broker.records import RecordToWrite, build_batch, iterate_batches, iterate_records
from hailbus_broker.testing.simulation.disk import SimulatedDisk

CONFIG: Final = LogConfig(index_interval_bytes=150, segment_bytes=2_000)


def open_log(disk: SimulatedDisk, *, recovery_point: int = 0) -> PartitionLog:
    log = PartitionLog.open(
        disk, "data/rides-0", CONFIG, now_ms=0, clean=False, recovery_point=recovery_point, torn_from=recovery_point
    )
    log.advance_high_watermark(log.log_end_offset)
    return log


def log_whose_active_segment_is_not_synced(disk: SimulatedDisk) -> tuple[PartitionLog, int]:
    """Return a log, and its recovery point: where the active segment begins."""
    log = open_log(disk)
    synced = 0
    while True:
        number = log.log_end_offset
        record = RecordToWrite(key=None, value=b"%04d" % number * 60, timestamp=number)
        log.append(build_batch([record]), now_ms=0)
        if len([path for path in disk.paths() if path.endswith(".log")]) > 1:
            return log, synced
        synced = log.sync()


def first_value_from(log: PartitionLog, offset: int) -> bytes | None:
    data = log.read(offset, 1 << 20, isolation=Isolation.LOG_END).to_bytes()
    for view in iterate_batches(data, whole=False):
        for record in iterate_records(view):
            if record.offset == offset:
                return record.value
    return None


def assert_readable(log: PartitionLog, end_offset: int) -> None:
    assert log.log_end_offset >= end_offset
    found = [first_value_from(log, offset) for offset in range(end_offset)]
    assert found == [b"%04d" % number * 60 for number in range(end_offset)]


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_after_a_segment_was_closed_leaves_all_readable(seed: int) -> None:
    disk = SimulatedDisk(random.Random(seed))
    _, recovery_point = log_whose_active_segment_is_not_synced(disk)
    disk.cut_power()
    assert_readable(open_log(disk, recovery_point=recovery_point), recovery_point)


@pytest.mark.parametrize("seed", range(20))
def test_a_kill_and_then_a_power_cut_leave_all_readable(seed: int) -> None:
    disk = SimulatedDisk(random.Random(seed))
    log, recovery_point = log_whose_active_segment_is_not_synced(disk)
    end_offset = log.log_end_offset
    disk.kill_process()
    restarted = open_log(disk, recovery_point=recovery_point)
    assert restarted.sync() == end_offset
    disk.cut_power()
    assert_readable(open_log(disk, recovery_point=end_offset), end_offset)
