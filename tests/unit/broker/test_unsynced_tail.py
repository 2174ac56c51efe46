"""A start on data that no sync has proven: after a failed sync, and with missing sectors after a power cut."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final
from uuid import UUID

import pytest
from hailbus_broker.log import Isolation, LogConfig, LogDirectory, MetaProperties, PartitionLog, StorageError
from hailbus_broker.log.log_directory import BOOTS, METADATA_LOG
from hailbus_broker.log.results import AbortedTransaction
from hailbus_broker.log.transaction_index import TransactionIndex
from hailbus_broker.records import RecordToWrite, build_batch, iterate_batches, iterate_records
from hailbus_broker.testing.simulation.disk import SECTOR_BYTES, SimulatedDisk

if TYPE_CHECKING:
    from collections.abc import Callable

DIRECTORY: Final = "data/rides-0"
ROOMY: Final = LogConfig(index_interval_bytes=150)
SMALL: Final = LogConfig(index_interval_bytes=150, segment_bytes=2_000)


def open_log(
    disk: SimulatedDisk,
    config: LogConfig = ROOMY,
    *,
    recovery_point: int = 0,
    torn_from: int | None = None,
    refuses_damage: bool = False,
) -> PartitionLog:
    log = PartitionLog.open(
        disk,
        DIRECTORY,
        config,
        now_ms=0,
        clean=False,
        recovery_point=recovery_point,
        torn_from=torn_from,
        refuses_damage=refuses_damage,
    )
    log.advance_high_watermark(log.log_end_offset)
    return log


def value_of(number: int) -> bytes:
    return b"%04d" % number * 60


def append(log: PartitionLog, count: int) -> None:
    for number in range(log.log_end_offset, log.log_end_offset + count):
        log.append(build_batch([RecordToWrite(key=None, value=value_of(number), timestamp=number)]), now_ms=0)


def values_in(log: PartitionLog, start: int = 0) -> list[bytes | None]:
    found: list[bytes | None] = []
    offset = start
    while offset < log.log_end_offset:
        data = log.read(offset, 1 << 20, isolation=Isolation.LOG_END).to_bytes()
        for view in iterate_batches(data, whole=False):
            view.check_crc()
            found += [record.value for record in iterate_records(view) if record.offset >= start]
            offset = view.header.next_offset
    return found


def failing(operation: str) -> Callable[[str, str], None]:
    def fail(path: str, asked: str) -> None:
        if asked == operation:
            raise StorageError(f"{operation} fails", path=path)

    return fail


def fail_a_sync(disk: SimulatedDisk, log: PartitionLog) -> None:
    disk.failing = failing("sync")
    with pytest.raises(StorageError):
        log.sync()
    disk.failing = None


@pytest.mark.parametrize("config", [ROOMY, SMALL], ids=["one segment", "several"])
@pytest.mark.parametrize("seed", range(10))
def test_what_a_failed_sync_has_left_in_the_page_cache_is_written_again(config: LogConfig, seed: int) -> None:
    disk = SimulatedDisk(random.Random(seed))
    log = open_log(disk, config)
    append(log, 5)
    log.sync()
    append(log, 20)
    fail_a_sync(disk, log)
    disk.kill_process()

    restarted = open_log(disk, config, recovery_point=5)
    assert values_in(restarted) == [value_of(number) for number in range(25)], "the page cache has it all"
    recovery_point = restarted.sync()  # from here on these records are acknowledged and read
    assert recovery_point == 25
    disk.cut_power()

    after = open_log(disk, config, recovery_point=recovery_point, torn_from=recovery_point)
    assert after.log_end_offset == 25
    assert values_in(after) == [value_of(number) for number in range(25)]
    # each offset is found by the indexes, which the failed sync had left out, too
    assert [values_in(after, number)[0] for number in range(25)] == [value_of(number) for number in range(25)]


def test_a_sync_that_fails_at_the_restart_is_followed_by_another_rewrite() -> None:
    disk = SimulatedDisk(random.Random(1))
    log = open_log(disk)
    append(log, 1)
    log.sync()  # with the names of its files
    append(log, 19)
    fail_a_sync(disk, log)
    for _ in range(2):
        disk.kill_process()
        log = open_log(disk)
        fail_a_sync(disk, log)
    disk.kill_process()
    assert open_log(disk).sync() == 20
    disk.cut_power()
    assert values_in(open_log(disk, torn_from=20)) == [value_of(number) for number in range(20)]


@pytest.mark.parametrize("refuses_damage", [False, True])
def test_sectors_that_are_missing_before_whole_batches_are_a_torn_tail_after_a_power_cut(refuses_damage: bool) -> None:
    kept_aside = 0
    for seed in range(60):
        disk = SimulatedDisk(random.Random(seed))
        log = open_log(disk, SMALL)
        append(log, 10)
        synced = log.sync()
        append(log, 20)
        disk.cut_power()
        after = open_log(disk, SMALL, torn_from=synced, refuses_damage=refuses_damage)
        assert after.recovery.damages == []
        assert synced <= after.log_end_offset <= 30
        assert values_in(after) == [value_of(number) for number in range(after.log_end_offset)], seed
        for path in after.recovery.torn_paths:
            assert disk.exists(path), "what was cut off is kept"
            kept_aside += 1
        # the log works on, and the next start finds nothing to repair
        append(after, 1)
        end = after.sync()
        disk.cut_power()
        again = open_log(disk, SMALL, torn_from=end, refuses_damage=refuses_damage)
        assert again.log_end_offset == end
        assert again.recovery.truncated_bytes == 0
    assert kept_aside, "no power cut has left whole batches behind a missing sector"


def test_what_was_synced_is_damage_after_a_power_cut_too() -> None:
    disk = SimulatedDisk(random.Random(0))
    log = open_log(disk)
    append(log, 10)
    log.sync()
    path = f"{DIRECTORY}/00000000000000000000.log"
    size = disk.size(path) // 10
    data = bytearray(disk.read_bytes(path) or b"")
    data[3 * size + 100] ^= 1
    disk.write_whole(path, bytes(data))
    disk.cut_power()
    after = open_log(disk, torn_from=5)
    assert [(damage.first_offset, damage.end_offset) for damage in after.recovery.damages] == [(3, 4)]
    assert after.log_end_offset == 10


def test_a_killed_process_leaves_damage_where_whole_batches_follow() -> None:
    # The page cache survives the process: nothing but the last write can be incomplete.
    disk = SimulatedDisk(random.Random(0))
    log = open_log(disk)
    append(log, 10)
    path = f"{DIRECTORY}/00000000000000000000.log"
    size = disk.size(path) // 10
    file = disk.open(path)
    data = bytearray(file.read(0, file.size()))
    data[3 * size + 100] ^= 1
    file.truncate(0)
    file.append(data)
    disk.kill_process()
    assert [damage.first_offset for damage in open_log(disk).recovery.damages] == [3]


@pytest.mark.parametrize("garbage", [bytes(SECTOR_BYTES), b"\xff" * SECTOR_BYTES], ids=["zeros", "ones"])
def test_a_lost_sector_of_a_transaction_index_holds_no_transaction(garbage: bytes) -> None:
    disk = SimulatedDisk(random.Random(0))
    index = TransactionIndex(disk, "txnindex", is_new=True)
    entry = AbortedTransaction(producer_id=1, first_offset=0, last_offset=3, last_stable_offset=2)
    index.append(entry).append(garbage)
    reopened = TransactionIndex(disk, "txnindex")
    reopened.keep_below(100)
    assert reopened.entries == [entry]
    assert TransactionIndex(disk, "txnindex").entries == [entry], "the file is cut behind it"


def open_directory(disk: SimulatedDisk) -> LogDirectory:
    meta = MetaProperties(cluster_id="c" * 22, node_id=1, directory_id=UUID(int=5))
    return LogDirectory.open(disk, "data", new_meta=meta)


def told(logs: LogDirectory) -> tuple[bool, bool]:
    return logs.rewrites_tails, logs.may_miss_sectors


def test_a_directory_knows_whether_the_machine_has_restarted() -> None:
    disk = SimulatedDisk(random.Random(0))
    logs = open_directory(disk)
    logs.finish_recovery()
    disk.kill_process()
    logs = open_directory(disk)
    assert told(logs) == (True, False)
    disk.cut_power()
    logs = open_directory(disk)
    assert told(logs) == (False, True)
    disk.kill_process()  # before everything was repaired: missing sectors are to be expected still
    logs = open_directory(disk)
    assert told(logs) == (True, True)
    disk.cut_power()
    logs = open_directory(disk)
    assert told(logs) == (False, True)
    logs.finish_recovery()
    disk.kill_process()
    logs = open_directory(disk)
    assert told(logs) == (True, False)
    assert logs.close(now_ms=0) == []
    disk.cut_power()
    assert told(open_directory(disk)) == (False, False), "the stop was a clean one"


def test_a_directory_that_does_not_know_the_machine_expects_both_kinds_of_old_data() -> None:
    disk = SimulatedDisk(random.Random(0))
    open_directory(disk).finish_recovery()
    disk.remove(f"data/{BOOTS}")
    # Written again, to be sure. But what looks like damage is not cut off.
    assert told(open_directory(disk)) == (True, False)


def test_many_restarts_without_a_repair_are_remembered_as_one() -> None:
    disk = SimulatedDisk(random.Random(0))
    for _ in range(20):
        open_directory(disk)
        disk.cut_power()
    assert len((disk.read_bytes(f"data/{BOOTS}") or b"").split()) <= 3
    assert told(open_directory(disk)) == (False, True)


def test_the_metadata_log_is_cut_behind_its_checkpoint_only() -> None:
    is_cut, is_refused = False, False
    for seed in range(40):
        disk = SimulatedDisk(random.Random(seed))
        logs = open_directory(disk)
        metadata = logs.open_metadata(ROOMY, log_start_offset=0, now_ms=0)
        logs.finish_recovery()
        append(metadata, 10)
        metadata.sync()
        logs.prepare_checkpoint().run()
        append(metadata, 20)
        disk.cut_power()
        logs = open_directory(disk)
        found = logs.open_metadata(ROOMY, log_start_offset=0, now_ms=0)
        assert found.log_end_offset >= 10
        is_cut = is_cut or bool(found.recovery.torn_paths)

        path = f"data/{METADATA_LOG}/00000000000000000000.log"
        data = bytearray(disk.read_bytes(path) or b"")
        data[100] ^= 1
        disk.write_whole(path, bytes(data))
        disk.cut_power()
        try:
            open_directory(disk).open_metadata(ROOMY, log_start_offset=0, now_ms=0)
        except Exception as error:  # noqa: BLE001 - of any kind but a silent loss
            is_refused = "damaged" in str(error)
    assert is_cut
    assert is_refused
