"""One flipped byte in what was synced: everything else stays, the damaged bytes are kept, and the report names them."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import PurePosixPath

import pytest
from hailbus_broker.log import (
    Isolation,
    LogConfig,
    Origin,
    PartitionLog,
)
from hailbus_broker.log.recovery import Damage
from hailbus_broker.records import (
    ControlType,
    CorruptBatchError,
    RecordToWrite,
    build_batch,
    build_control_batch,
    iterate_batches,
    iterate_records,
)
from hailbus_broker.testing.simulation import SimulatedCrashError
from hailbus_broker.testing.simulation.disk import SimulatedDisk

DIRECTORY = "data/rides-0"
FIRST_SEGMENT = f"{DIRECTORY}/00000000000000000000.log"
ROOMY = LogConfig(index_interval_bytes=150)


def open_log(
    disk: SimulatedDisk,
    config: LogConfig = ROOMY,
    *,
    clean: bool = False,
    recovery_point: int = 0,
    refuses_damage: bool = False,
) -> PartitionLog:
    log = PartitionLog.open(
        disk,
        DIRECTORY,
        config,
        now_ms=0,
        clean=clean,
        recovery_point=recovery_point,
        refuses_damage=refuses_damage,
    )
    log.advance_high_watermark(log.log_end_offset)
    return log


def append(log: PartitionLog, value: bytes, **producer: int) -> None:
    data = build_batch(
        [RecordToWrite(key=b"k", value=value, timestamp=1)],
        is_transactional="producer_id" in producer,
        producer_id=producer.get("producer_id", -1),
        producer_epoch=0 if producer else -1,
        base_sequence=producer.get("sequence", -1),
    )
    log.append(data, now_ms=0)


def filled(disk: SimulatedDisk, config: LogConfig, count: int) -> list[int]:
    """A log of synced batches of one record each; where each begins in its segment, with the end."""
    log = open_log(disk, config)
    for number in range(count):
        append(log, b"value %02d" % number)
    log.sync()
    size = disk.size(FIRST_SEGMENT) // (count if config is ROOMY else 4)
    return [number * size for number in range(count + 1)]


def flip(disk: SimulatedDisk, path: str, position: int, bits: int = 0xFF) -> None:
    file = disk.open(path)
    data = bytearray(file.read(0, file.size()))
    data[position] ^= bits
    file.truncate(0)
    file.append(data)
    file.sync()


def records_of(log: PartitionLog) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, 1 << 20, isolation=Isolation.LOG_END).to_bytes()
        for view in iterate_batches(data, whole=False):
            view.check_crc()
            found |= {record.offset: record.value or b"" for record in iterate_records(view)}
            offset = view.header.next_offset
    return found


def expected_without(count: int, lost: set[int]) -> dict[int, bytes]:
    return {offset: b"value %02d" % offset for offset in range(count) if offset not in lost}


LEADER_EPOCH = range(12, 16)
BATCH_BYTES = 77


@pytest.mark.parametrize("victim", [0, 4, 8])
@pytest.mark.parametrize("recovery_point", [0, 5, 9])
def test_one_flipped_byte_costs_at_most_the_batch_that_it_is_in(victim: int, recovery_point: int) -> None:
    disk = SimulatedDisk(random.Random(0))
    starts = filled(disk, ROOMY, 10)
    whole = disk.read_bytes(FIRST_SEGMENT) or b""
    assert starts[1] == BATCH_BYTES, "the loop below visits every byte of a batch"
    for position in range(starts[victim], starts[victim + 1]):
        is_epoch = position - starts[victim] in LEADER_EPOCH
        disk = SimulatedDisk(random.Random(0))
        filled(disk, ROOMY, 10)
        flip(disk, FIRST_SEGMENT, position)
        disk.kill_process()
        log = open_log(disk, recovery_point=recovery_point)
        found = records_of(log) if log.recovery.damages or is_epoch else {}
        if not log.recovery.damages:
            # the leader epoch costs nothing; damage below the recovery point is found by the reader's CRC
            assert is_epoch or victim < recovery_point, position
            continue
        assert found == expected_without(10, {victim}), position
        assert log.log_end_offset == 10
        (damage,) = log.recovery.damages
        assert damage == Damage(
            path=FIRST_SEGMENT,
            position=starts[victim],
            size_bytes=BATCH_BYTES,
            first_offset=victim,
            end_offset=victim + 1,
            set_aside_path=f"{FIRST_SEGMENT}.damaged-{starts[victim]}",
        )
        kept = bytearray(disk.read_bytes(damage.set_aside_path) or b"")
        kept[position - starts[victim]] ^= 0xFF
        assert kept == whole[starts[victim] : starts[victim + 1]], "the damaged bytes are kept as they were"
        # offsets are not used again, and what was repaired stays repaired
        append(log, b"value 10")
        log.sync()
        disk.cut_power()
        again = open_log(disk)
        assert records_of(again) == expected_without(11, {victim})
        assert all(not known.size_bytes for known in again.recovery.damages)


@pytest.mark.parametrize("position", LEADER_EPOCH)
def test_a_flip_in_a_leader_epoch_is_outvoted_by_the_batches_around_it(position: int) -> None:
    disk = SimulatedDisk(random.Random(0))
    starts = filled(disk, ROOMY, 10)
    flip(disk, FIRST_SEGMENT, starts[4] + position, 0x40)
    log = open_log(disk)
    assert records_of(log) == expected_without(10, set())
    assert log.leader_epochs.entries == [(0, 0)]


def test_damage_at_several_places() -> None:
    disk = SimulatedDisk(random.Random(0))
    starts = filled(disk, ROOMY, 20)
    for victim in (3, 4, 9, 16):
        flip(disk, FIRST_SEGMENT, starts[victim] + 70)
    log = open_log(disk)
    assert records_of(log) == expected_without(20, {3, 4, 9, 16})
    assert [(damage.first_offset, damage.end_offset) for damage in log.recovery.damages] == [(3, 5), (9, 10), (16, 17)]


@pytest.mark.parametrize("victim", [4, 7])
def test_damage_in_a_segment_that_others_follow(victim: int) -> None:
    disk = SimulatedDisk(random.Random(0))
    config = LogConfig(segment_bytes=330)
    starts = filled(disk, config, 14)
    segment = f"{DIRECTORY}/00000000000000000004.log"
    flip(disk, segment, starts[victim - 4] + 75)
    log = open_log(disk, config)
    assert records_of(log) == expected_without(14, {victim})
    assert log.recovery.dropped_segments == []
    assert log.recovery.truncated_bytes == 0
    assert [PurePosixPath(damage.path).name for damage in log.recovery.damages] == ["00000000000000000004.log"]


def test_a_segment_that_is_damaged_from_end_to_end_is_emptied_and_kept() -> None:
    disk = SimulatedDisk(random.Random(0))
    config = LogConfig(segment_bytes=330)
    filled(disk, config, 14)
    segment = f"{DIRECTORY}/00000000000000000004.log"
    file = disk.open(segment)
    garbage = random.Random(3).randbytes(file.size())
    file.truncate(0)
    file.append(garbage)
    log = open_log(disk, config)
    assert records_of(log) == expected_without(14, {4, 5, 6, 7})
    assert disk.read_bytes(f"{segment}.damaged-0") == garbage
    assert log.offset_for_timestamp(0) is not None
    log.close(now_ms=0)
    assert records_of(open_log(disk, config, clean=True)) == expected_without(14, {4, 5, 6, 7})


def test_a_torn_tail_is_still_cut_with_whatever_it_holds() -> None:
    for garbage in (b"\0" * 500, random.Random(5).randbytes(500), b"\x02" * 500):
        disk = SimulatedDisk(random.Random(0))
        filled(disk, ROOMY, 10)
        disk.open(FIRST_SEGMENT).append(garbage)
        log = open_log(disk)
        assert records_of(log) == expected_without(10, set())
        assert log.recovery.damages == []
        assert log.recovery.truncated_bytes == 500


def test_transactions_behind_damage_stay_aborted_and_committed() -> None:
    disk = SimulatedDisk(random.Random(0))
    log = open_log(disk)
    append(log, b"value 00")
    append(log, b"value 01")
    append(log, b"value 02", producer_id=7, sequence=0)
    marker = build_control_batch(ControlType.ABORT, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp=0)
    log.append(marker, now_ms=0, origin=Origin.COORDINATOR)
    append(log, b"value 04", producer_id=7, sequence=1)
    log.sync()
    flip(disk, FIRST_SEGMENT, BATCH_BYTES + 70)
    # recovery begins at an index entry below the recovery point, so the batches that move may be below it
    for recovery_point in (0, 2, 4, 5):
        copy = SimulatedDisk(random.Random(0))
        copy.make_directory(DIRECTORY)
        copy.write_whole(FIRST_SEGMENT, disk.read_bytes(FIRST_SEGMENT) or b"")
        copy.write_whole(f"{FIRST_SEGMENT[:-4]}.txnindex", disk.read_bytes(f"{FIRST_SEGMENT[:-4]}.txnindex") or b"")
        reopened = open_log(copy, recovery_point=recovery_point)
        aborted = reopened.aborted_transactions(0, 10)
        assert [(entry.producer_id, entry.first_offset, entry.last_offset) for entry in aborted] == [(7, 2, 3)]
        assert [producer.current_transaction_start_offset for producer in reopened.producers()] == [4]


def test_a_log_that_must_be_whole_is_refused_and_left_as_it_is() -> None:
    disk = SimulatedDisk(random.Random(0))
    starts = filled(disk, ROOMY, 10)
    flip(disk, FIRST_SEGMENT, starts[4] + 70)
    before = disk.read_bytes(FIRST_SEGMENT)
    for _ in range(2):
        with pytest.raises(CorruptBatchError, match="which whole batches from offset 5 on follow") as caught:
            open_log(disk, refuses_damage=True)
        assert caught.value.position == starts[4]
        assert disk.read_bytes(FIRST_SEGMENT) == before


def test_every_crash_while_damage_is_set_aside_can_be_repeated() -> None:
    for crash_at_step in range(40):
        for seed in range(3):
            disk = SimulatedDisk(random.Random(seed))
            starts = filled(disk, ROOMY, 10)
            flip(disk, FIRST_SEGMENT, starts[2] + 70)
            flip(disk, FIRST_SEGMENT, starts[6] + 70)
            disk.crash_at_step = disk.step_count + crash_at_step
            with suppress(SimulatedCrashError):
                open_log(disk).sync()
            crashed = disk.has_crashed
            disk.cut_power()
            assert records_of(open_log(disk)) == expected_without(10, {2, 6}), (crash_at_step, seed)
            if not crashed:
                return
    pytest.fail("the crash points were never exhausted")


@pytest.mark.parametrize(
    "content", [b"garbage!", b"", b"0\n1\n", b"0\n2\n5 0\n3 7\n", b"\xff\xfe", b"0\n1\n0 0\n7 7\n"]
)
def test_a_damaged_leader_epoch_checkpoint_is_made_again_from_the_batches(content: bytes) -> None:
    disk = SimulatedDisk(random.Random(0))
    filled(disk, ROOMY, 10)
    disk.write_whole(f"{DIRECTORY}/leader-epoch-checkpoint", content)
    log = open_log(disk, recovery_point=10)
    assert log.leader_epochs.entries == [(0, 0)]
    assert "leader-epoch-checkpoint" in log.recovery.rebuilt_epochs
    assert disk.read_bytes(f"{DIRECTORY}/leader-epoch-checkpoint.damaged") == content
    assert not open_log(disk, recovery_point=10).recovery.rebuilt_epochs
