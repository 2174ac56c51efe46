"""The log of one partition, on a disk in memory."""

from __future__ import annotations

import gc
import random
from dataclasses import replace
from errno import EIO
from typing import TYPE_CHECKING

import pytest
from hailbus_broker.log import (
    AbortedTransaction,
    BatchSetTooLargeError,
    BatchTooLargeError,
    CleanupPolicy,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    Isolation,
    LogConfig,
    OffsetOutOfRangeError,
    Origin,
    OutOfOrderSequenceError,
    PartitionLog,
    StorageError,
    TailCache,
    TimestampAndOffset,
    TransactionCoordinatorFencedError,
    validation,
)
from hailbus_broker.log.validation import MAX_RECORD_ERRORS, MAX_RECORDS
from hailbus_broker.records import (
    BatchView,
    Compression,
    ControlType,
    CorruptBatchError,
    InvalidRecordError,
    InvalidTimestampError,
    Record,
    RecordToWrite,
    TimestampType,
    UnsupportedMagicError,
    build_batch,
    build_control_batch,
    compress,
    iterate_batches,
    iterate_records,
)
from hailbus_broker.testing.simulation.disk import SimulatedDisk

if TYPE_CHECKING:
    from collections.abc import Sequence

DIRECTORY = "data/rides-0"
NOW = 1_700_000_000_000


def new_disk() -> SimulatedDisk:
    return SimulatedDisk(random.Random(0))


def open_log(
    disk: SimulatedDisk,
    config: LogConfig | None = None,
    *,
    clean: bool = False,
    cache_bytes: int = 1 << 20,
    recovery_point: int = 0,
    log_start_offset: int = 0,
) -> PartitionLog:
    return PartitionLog.open(
        disk,
        DIRECTORY,
        config or LogConfig(),
        now_ms=NOW,
        clean=clean,
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
        tail_cache=TailCache(cache_bytes),
    )


def batch(*values: bytes, key: bytes | None = b"k", timestamp: int = NOW) -> bytearray:
    return build_batch([RecordToWrite(key=key, value=value, timestamp=timestamp) for value in values])


def data_of(
    producer_id: int, sequence: int, count: int = 1, *, epoch: int = 0, transactional: bool = False
) -> bytearray:
    return build_batch(
        [RecordToWrite(key=b"k", value=b"v", timestamp=NOW)] * count,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=transactional,
    )


def marker(producer_id: int, control_type: ControlType, *, epoch: int = 0, coordinator_epoch: int = 0) -> bytearray:
    return build_control_batch(
        control_type,
        producer_id=producer_id,
        producer_epoch=epoch,
        coordinator_epoch=coordinator_epoch,
        timestamp=NOW,
    )


def end_transaction(log: PartitionLog, producer_id: int, control_type: ControlType) -> int:
    return log.append(marker(producer_id, control_type), now_ms=NOW, origin=Origin.COORDINATOR).base_offset


def records_from(log: PartitionLog, offset: int = 0, isolation: Isolation = Isolation.LOG_END) -> list[Record]:
    found: list[Record] = []
    while True:
        result = log.read(offset, 1 << 20, isolation=isolation)
        if not result.length:
            return found
        for view in iterate_batches(result.to_bytes()):
            found += [record for record in iterate_records(view) if record.offset >= offset]
            next_offset = view.header.next_offset
        offset = next_offset


def values_of(records: Sequence[Record]) -> list[bytes | None]:
    return [record.value for record in records]


def test_append_gives_offsets_and_read_finds_them() -> None:
    log = open_log(new_disk())
    first = log.append(batch(b"a", b"b"), now_ms=NOW, leader_epoch=3)
    second = log.append(batch(b"c"), now_ms=NOW, leader_epoch=3)
    assert (first.base_offset, first.last_offset, first.is_duplicate) == (0, 1, False)
    assert (second.base_offset, second.last_offset) == (2, 2)
    assert [(record.offset, record.value) for record in records_from(log)] == [(0, b"a"), (1, b"b"), (2, b"c")]
    view = BatchView(log.read(2, 1000, isolation=Isolation.LOG_END).to_bytes())
    view.check_crc()
    assert (view.header.base_offset, view.header.leader_epoch) == (2, 3)


def test_a_writable_buffer_is_taken_over_and_a_constant_one_is_copied() -> None:
    log = open_log(new_disk())
    log.append(batch(b"a"), now_ms=NOW)
    constant = bytes(batch(b"b"))
    writable = batch(b"c")
    log.append(constant, now_ms=NOW, leader_epoch=1)
    log.append(writable, now_ms=NOW, leader_epoch=1)
    assert BatchView(constant).header.base_offset == 0
    assert BatchView(writable).header.base_offset == 2
    assert values_of(records_from(log)) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_consumers_read_below_the_high_watermark_only(cache_bytes: int) -> None:
    log = open_log(new_disk(), cache_bytes=cache_bytes)
    for value in (b"a", b"b", b"c"):
        log.append(batch(value), now_ms=NOW)
    assert log.read(0, 1000).length == 0
    assert log.advance_high_watermark(2)
    assert not log.advance_high_watermark(1)
    assert values_of(records_from(log, isolation=Isolation.READ_UNCOMMITTED)) == [b"a", b"b"]
    assert log.read(2, 1000).length == 0
    assert log.high_watermark == 2
    with pytest.raises(OffsetOutOfRangeError):
        log.read(4, 1000)


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_a_read_keeps_to_its_bytes_but_returns_at_least_one_batch(cache_bytes: int) -> None:
    log = open_log(new_disk(), cache_bytes=cache_bytes)
    size = len(batch(b"v" * 100))
    for _ in range(5):
        log.append(batch(b"v" * 100), now_ms=NOW)
    assert log.read(0, 1, isolation=Isolation.LOG_END).length == size
    assert log.read(0, 1, isolation=Isolation.LOG_END, min_one_batch=False).length == 0
    whole = list(iterate_batches(log.read(1, 3 * size, isolation=Isolation.LOG_END).to_bytes(), whole=False))
    assert [view.header.base_offset for view in whole] == [1, 2, 3]


def test_a_read_within_a_batch_returns_the_whole_batch() -> None:
    log = open_log(new_disk(), cache_bytes=0)
    log.append(batch(b"a", b"b", b"c"), now_ms=NOW)
    view = BatchView(log.read(1, 1000, isolation=Isolation.LOG_END).to_bytes())
    assert (view.header.base_offset, view.header.last_offset) == (0, 2)


def test_segments_roll_by_size_and_reads_cross_them() -> None:
    disk = new_disk()
    config = LogConfig(segment_bytes=300, index_interval_bytes=100)
    log = open_log(disk, config, cache_bytes=0)
    values = [b"%03d" % number for number in range(40)]
    for value in values:
        log.append(batch(value), now_ms=NOW)
    assert values_of(records_from(log)) == values
    logs = [name for name in disk.list(DIRECTORY) if name.endswith(".log")]
    assert len(logs) == 10
    assert logs[:2] == ["00000000000000000000.log", "00000000000000000004.log"]
    assert "00000000000000000004.index" in disk.list(DIRECTORY)
    assert "00000000000000000004.snapshot" in disk.list(DIRECTORY)
    for offset in range(40):
        assert records_from(log, offset)[0].offset == offset


def test_a_segment_rolls_by_the_time_of_its_records() -> None:
    disk = new_disk()
    log = open_log(disk, LogConfig(segment_ms=1000))
    log.append(batch(b"a", timestamp=NOW), now_ms=NOW)
    log.append(batch(b"b", timestamp=NOW + 1000), now_ms=NOW)
    assert len([name for name in disk.list(DIRECTORY) if name.endswith(".log")]) == 1
    log.append(batch(b"c", timestamp=NOW + 1001), now_ms=NOW)
    assert len([name for name in disk.list(DIRECTORY) if name.endswith(".log")]) == 2


def test_a_clean_stop_is_opened_without_checking() -> None:
    disk = new_disk()
    log = open_log(disk, LogConfig(segment_bytes=300, index_interval_bytes=50))
    for number in range(11):
        log.append(data_of(7, number), now_ms=NOW)
    log.close(now_ms=NOW)
    with pytest.raises(StorageError, match="closed"):
        log.append(batch(b"x"), now_ms=NOW)
    reopened = open_log(disk, LogConfig(segment_bytes=300), clean=True)
    assert reopened.recovery.checked_batch_count == 0
    assert reopened.log_end_offset == 11
    assert reopened.synced_end_offset == 11
    assert [producer.last_sequence for producer in reopened.producers()] == [10]
    assert reopened.append(data_of(7, 11), now_ms=NOW).base_offset == 11


def test_after_a_kill_only_what_follows_the_recovery_point_is_checked() -> None:
    disk = new_disk()
    config = LogConfig(segment_bytes=1000, index_interval_bytes=50)
    log = open_log(disk, config)
    for number in range(40):
        log.append(batch(b"%d" % number), now_ms=NOW)
    log.sync()
    disk.kill_process()
    reopened = open_log(disk, config, recovery_point=35)
    assert reopened.log_end_offset == 40
    assert reopened.recovery.checked_batch_count < 20
    assert len(records_from(reopened)) == 40
    assert reopened.synced_end_offset == 35
    assert reopened.sync() == 40


def test_a_torn_tail_is_cut_and_the_batches_before_it_stay() -> None:
    disk = new_disk()
    log = open_log(disk)
    for value in (b"a", b"b"):
        log.append(batch(value), now_ms=NOW)
    file = disk.open(f"{DIRECTORY}/00000000000000000000.log")
    whole = file.size()
    file.append(bytes(batch(b"c"))[:-1])
    disk.kill_process()
    reopened = open_log(disk)
    assert reopened.recovery.truncated_bytes == len(batch(b"c")) - 1
    assert disk.size(f"{DIRECTORY}/00000000000000000000.log") == whole
    assert values_of(records_from(reopened)) == [b"a", b"b"]
    assert reopened.append(batch(b"d"), now_ms=NOW).base_offset == 2


def test_missing_indexes_are_made_again() -> None:
    disk = new_disk()
    config = LogConfig(segment_bytes=2000, index_interval_bytes=100)
    log = open_log(disk, config)
    for number in range(60):
        log.append(batch(b"%d" % number, timestamp=NOW + number), now_ms=NOW)
    log.close(now_ms=NOW)
    indexes = [name for name in disk.list(DIRECTORY) if name.endswith("index")]
    contents = {name: disk.read_bytes(f"{DIRECTORY}/{name}") for name in indexes}
    for name in indexes:
        disk.remove(f"{DIRECTORY}/{name}")
    reopened = open_log(disk, config, clean=True)
    reopened.close(now_ms=NOW)
    assert {name: disk.read_bytes(f"{DIRECTORY}/{name}") for name in indexes} == contents


# ---- what clients may not send


def refused(config: LogConfig, data: bytes | bytearray, error: type[Exception], match: str) -> None:
    log = open_log(new_disk(), config)
    with pytest.raises(error, match=match):
        log.append(data, now_ms=NOW)
    assert log.log_end_offset == 0
    assert log.append(batch(b"fine"), now_ms=NOW).base_offset == 0


def patched(data: bytearray, position: int, value: bytes) -> bytearray:
    data[position : position + len(value)] = value
    return data


def header_changed(**changes: int) -> bytearray:
    from hailbus_broker.records.building import assemble

    view = BatchView(batch(b"a", b"b"))
    return assemble(view.header._replace(**changes), bytes(view.data[61:]))


@pytest.mark.parametrize(
    ("data", "error", "match"),
    [
        (b"", InvalidRecordError, "no record batch"),
        (b"abc", CorruptBatchError, "too few"),
        (bytes(batch(b"a"))[:-1], CorruptBatchError, "length"),
        (bytes(batch(b"a")) + b"x", InvalidRecordError, "more than one"),
        (bytes(batch(b"a")) * 2, InvalidRecordError, "more than one"),
        (patched(batch(b"a"), 16, b"\x01"), UnsupportedMagicError, "magic 1"),
        (patched(batch(b"a"), 16, b"\x00"), UnsupportedMagicError, "magic 0"),
        (patched(batch(b"a"), 16, b"\x07"), CorruptBatchError, "magic 7"),
        (patched(batch(b"a"), 17, b"abcd"), CorruptBatchError, "CRC"),
        (header_changed(record_count=3), InvalidRecordError, "3 records"),
        (header_changed(record_count=0, last_offset_delta=-1), InvalidRecordError, "0 records"),
        (header_changed(record_count=2**31 - 1, last_offset_delta=2**31 - 2), InvalidRecordError, "cannot hold"),
        (
            header_changed(record_count=2**31 - 1, last_offset_delta=2**31 - 2, attributes=Compression.ZSTD),
            InvalidRecordError,
            "cannot hold",
        ),
        (header_changed(base_offset=5), InvalidRecordError, "offset 5"),
        (header_changed(attributes=0x20), InvalidRecordError, "control"),
        (header_changed(attributes=0x08), InvalidTimestampError, "the log's"),
        (header_changed(attributes=0x10), InvalidRecordError, "no producer id"),
        (header_changed(producer_id=4, producer_epoch=0, base_sequence=-1), InvalidRecordError, "sequence -1"),
        (batch(b"a", timestamp=NOW + 3_600_001), InvalidTimestampError, "future"),
    ],
)
def test_a_batch_that_is_not_sound_is_refused(data: bytes | bytearray, error: type[Exception], match: str) -> None:
    refused(LogConfig(), data, error, match)


RECORD = b"\x12\x00\x00%c\x02k\x04vv\x00"
"""A record of a key and a value, with its offset delta to be filled in."""


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP, Compression.ZSTD])
@pytest.mark.parametrize(
    ("records", "match"),
    [
        (RECORD % 0 + RECORD % 2 + RECORD % 4, "bytes after the last"),
        (RECORD % 0, "ends within|cannot hold"),
        (RECORD % 0 + RECORD % 6, "record 1 of a batch has the offset delta 3"),
        (RECORD % 2 + RECORD % 0, "record 0 of a batch has the offset delta 1"),
        (RECORD % 0 + RECORD % 2 + b"\x00", "bytes after the last"),
        (b"\xff" * 40, "varint"),
    ],
)
def test_the_records_of_a_compacted_topic_are_what_the_header_says(
    records: bytes, match: str, codec: Compression
) -> None:
    from hailbus_broker.records.building import assemble

    config = LogConfig(cleanup_policy=frozenset({CleanupPolicy.COMPACT}))
    header = BatchView(batch(b"a", b"b")).header._replace(attributes=codec)
    accepted = assemble(header, compress(codec, RECORD % 0 + RECORD % 2))
    assert open_log(new_disk(), config).append(accepted, now_ms=NOW).last_offset == 1
    refused(config, assemble(header, compress(codec, records)), InvalidRecordError, match)


def test_a_batch_that_is_too_large_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    config = LogConfig(cleanup_policy=frozenset({CleanupPolicy.COMPACT}), max_message_bytes=100)
    log = open_log(new_disk(), config)
    monkeypatch.setattr("hailbus_broker.log.validation.iterate_records", None)
    with pytest.raises(BatchTooLargeError):
        log.append(batch(b"v" * 200), now_ms=NOW)


def test_sizes_are_limited() -> None:
    refused(LogConfig(max_message_bytes=200), batch(b"v" * 200), BatchTooLargeError, r"max\.message\.bytes, 200")
    refused(LogConfig(segment_bytes=200), batch(b"v" * 200), BatchSetTooLargeError, r"segment\.bytes, 200")


def test_a_compacted_topic_names_the_records_without_key() -> None:
    config = LogConfig(cleanup_policy=frozenset({CleanupPolicy.COMPACT}))
    log = open_log(new_disk(), config)
    records = [RecordToWrite(key=key, value=b"v", timestamp=NOW) for key in (b"a", None, b"b", None)]
    with pytest.raises(InvalidRecordError) as caught:
        log.append(build_batch(records), now_ms=NOW)
    assert [error.batch_index for error in caught.value.record_errors] == [1, 3]


@pytest.fixture(scope="module")
def many_records() -> bytes:
    """A batch of some KB with very many records, all of them far in the future."""
    record = RecordToWrite(key=b"k", value=b"", timestamp=2**40)
    return bytes(build_batch([record] * (MAX_RECORDS + 1), compression=Compression.ZSTD))


def test_of_very_many_records_the_first_errors_stand_for_all(many_records: bytes) -> None:
    config = LogConfig(message_timestamp_after_max_ms=1000)
    log = open_log(new_disk(), config)
    with pytest.raises(InvalidTimestampError) as caught:
        log.append(many_records, now_ms=0)
    assert [error.batch_index for error in caught.value.record_errors] == list(range(MAX_RECORD_ERRORS))


def test_a_batch_of_which_too_many_records_would_be_read_is_refused(
    many_records: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "iterate_records", lambda _: pytest.fail("the records are read"))
    log = open_log(new_disk(), LogConfig(cleanup_policy=frozenset({CleanupPolicy.COMPACT})))
    with pytest.raises(InvalidRecordError, match=r"has 200001 records.* takes at most 200000 in one batch"):
        log.append(many_records, now_ms=2**40)
    assert open_log(new_disk()).append(many_records, now_ms=2**40).last_offset == MAX_RECORDS


def test_a_record_may_be_too_old() -> None:
    config = LogConfig(message_timestamp_before_max_ms=1000)
    refused(config, batch(b"a", timestamp=NOW - 1001), InvalidTimestampError, "older")


def test_log_append_time_is_written_into_the_batch() -> None:
    log = open_log(new_disk(), LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME))
    result = log.append(batch(b"a", b"b", timestamp=5), now_ms=NOW + 7)
    assert result.log_append_time_ms == NOW + 7
    view = BatchView(log.read(0, 1000, isolation=Isolation.LOG_END).to_bytes())
    view.check_crc()
    assert view.header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert [record.timestamp for record in iterate_records(view)] == [NOW + 7, NOW + 7]


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("sent", list(Compression))
def test_a_topic_may_ask_for_its_own_codec(codec: Compression, sent: Compression) -> None:
    log = open_log(new_disk(), LogConfig(compression_type=codec))
    records = [RecordToWrite(key=b"k", value=b"v" * number, timestamp=NOW + number) for number in range(20)]
    log.append(build_batch(records, compression=sent), now_ms=NOW)
    view = BatchView(log.read(0, 1 << 20, isolation=Isolation.LOG_END).to_bytes())
    view.check_crc()
    assert view.header.codec == codec
    assert [(record.value, record.timestamp) for record in iterate_records(view)] == [
        (record.value, record.timestamp) for record in records
    ]


# ---- idempotent producers


def test_a_repeated_batch_gets_its_first_offsets() -> None:
    log = open_log(new_disk())
    for number in range(6):
        log.append(data_of(1, number * 2, 2), now_ms=NOW)
    for number in range(1, 6):
        result = log.append(data_of(1, number * 2, 2), now_ms=NOW)
        assert (result.is_duplicate, result.base_offset, result.last_offset) == (True, number * 2, number * 2 + 1)
    with pytest.raises(OutOfOrderSequenceError):  # six batches ago: no longer known
        log.append(data_of(1, 0, 2), now_ms=NOW)
    with pytest.raises(OutOfOrderSequenceError):
        log.append(data_of(1, 13), now_ms=NOW)
    assert log.log_end_offset == 12


def test_the_window_of_five_batches_survives_a_restart() -> None:
    disk = new_disk()
    log = open_log(disk)
    for number in range(8):
        log.append(data_of(1, number), now_ms=NOW)
    log.close(now_ms=NOW)
    reopened = open_log(disk, clean=True)
    assert [reopened.append(data_of(1, number), now_ms=NOW).base_offset for number in range(3, 8)] == [3, 4, 5, 6, 7]
    assert reopened.log_end_offset == 8


def test_sequences_wrap() -> None:
    log = open_log(new_disk())
    log.append(data_of(1, 2**31 - 2, 1), now_ms=NOW)  # an unknown producer may begin anywhere
    log.append(data_of(1, 2**31 - 1, 3), now_ms=NOW)
    assert log.producers()[0].last_sequence == 1
    assert log.append(data_of(1, 2**31 - 1, 3), now_ms=NOW).is_duplicate
    assert log.append(data_of(1, 2), now_ms=NOW).base_offset == 4


def test_an_older_producer_epoch_is_fenced_and_a_newer_one_begins_at_zero() -> None:
    log = open_log(new_disk())
    log.append(data_of(1, 0, epoch=4), now_ms=NOW)
    with pytest.raises(InvalidProducerEpochError):
        log.append(data_of(1, 1, epoch=3), now_ms=NOW)
    with pytest.raises(OutOfOrderSequenceError):
        log.append(data_of(1, 1, epoch=5), now_ms=NOW)
    assert log.append(data_of(1, 0, epoch=5), now_ms=NOW).base_offset == 1


def test_silent_producers_are_forgotten() -> None:
    log = open_log(new_disk(), LogConfig(producer_id_expiration_ms=1000))
    log.append(data_of(1, 0), now_ms=NOW)
    log.append(data_of(2, 0, transactional=True), now_ms=NOW)
    assert log.expire_producers(now_ms=NOW + 999) == 0
    assert log.expire_producers(now_ms=NOW + 1000) == 1
    assert [producer.producer_id for producer in log.producers()] == [2]


# ---- transactions


def test_the_last_stable_offset_waits_for_the_oldest_transaction() -> None:
    log = open_log(new_disk())
    log.append(batch(b"plain"), now_ms=NOW)
    log.append(data_of(1, 0, transactional=True), now_ms=NOW)
    log.append(data_of(2, 0, transactional=True), now_ms=NOW)
    log.advance_high_watermark(3)
    assert log.last_stable_offset == 1
    assert [record.offset for record in records_from(log, 0, Isolation.READ_COMMITTED)] == [0]
    assert end_transaction(log, 1, ControlType.COMMIT) == 3
    assert log.last_stable_offset == 1  # the marker is not below the high watermark yet
    log.advance_high_watermark(4)
    assert log.last_stable_offset == 2
    end_transaction(log, 2, ControlType.ABORT)
    log.advance_high_watermark(5)
    assert log.last_stable_offset == 5


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_readers_learn_which_transactions_were_aborted(cache_bytes: int) -> None:
    disk = new_disk()
    log = open_log(disk, cache_bytes=cache_bytes)
    log.append(data_of(1, 0, 2, transactional=True), now_ms=NOW)
    log.append(data_of(2, 0, transactional=True), now_ms=NOW)
    end_transaction(log, 1, ControlType.ABORT)
    end_transaction(log, 2, ControlType.COMMIT)
    log.append(batch(b"x"), now_ms=NOW)
    log.advance_high_watermark(log.log_end_offset)
    expected = AbortedTransaction(producer_id=1, first_offset=0, last_offset=3, last_stable_offset=2)
    assert log.read(0, 10_000, isolation=Isolation.READ_COMMITTED).aborted_transactions == (expected,)
    assert log.read(0, 10_000).aborted_transactions is None
    assert log.read(4, 10_000, isolation=Isolation.READ_COMMITTED).aborted_transactions == ()
    log.sync()
    reopened = open_log(disk)
    reopened.advance_high_watermark(reopened.log_end_offset)
    assert reopened.aborted_transactions(0, 6) == (expected,)
    assert reopened.last_stable_offset == 6


def test_an_index_entry_that_recovery_has_written_again_survives_a_power_cut() -> None:
    # The first sync after the recovery covers the entry: a recovery point beyond it may be saved then.
    for seed in range(20):
        disk = SimulatedDisk(random.Random(seed))
        log = open_log(disk)
        log.append(data_of(1, 0, 2, transactional=True), now_ms=NOW)
        log.sync()
        end_transaction(log, 1, ControlType.ABORT)
        expected = log.aborted_transactions(0, 3)
        assert expected
        disk.kill_process()
        recovered = open_log(disk)
        recovered.append(data_of(2, 0), now_ms=NOW)
        recovery_point = recovered.sync()
        disk.cut_power()
        reopened = open_log(disk, recovery_point=recovery_point)
        assert reopened.aborted_transactions(0, 3) == expected, f"seed {seed}"


@pytest.mark.parametrize("clean", [False, True])
def test_batches_before_a_roll_are_recognised_after_a_restart(clean: bool) -> None:
    disk = new_disk()
    config = LogConfig(segment_bytes=1_024)
    log = open_log(disk, config)
    sequence = 0
    while sum(name.endswith(".log") for name in disk.list(DIRECTORY)) < 2:
        log.append(data_of(1, sequence), now_ms=NOW)
        sequence += 1
    log.append(data_of(1, sequence), now_ms=NOW)  # the last five batches lie on both sides
    sequence += 1
    log.sync()
    if clean:
        log.close(now_ms=NOW)
    else:
        disk.kill_process()
    reopened = open_log(disk, config, clean=clean, recovery_point=log.synced_end_offset)
    for again in range(sequence - 5, sequence):
        repeated = reopened.append(data_of(1, again), now_ms=NOW)
        assert repeated.is_duplicate
        assert repeated.base_offset == again


def test_an_open_transaction_survives_a_restart() -> None:
    disk = new_disk()
    log = open_log(disk)
    log.append(batch(b"a"), now_ms=NOW)
    log.append(data_of(1, 0, transactional=True), now_ms=NOW)
    log.close(now_ms=NOW)
    reopened = open_log(disk, clean=True)
    reopened.advance_high_watermark(2)
    assert reopened.has_open_transaction(1, 0)
    assert reopened.last_stable_offset == 1
    assert end_transaction(reopened, 1, ControlType.ABORT) == 2
    assert reopened.aborted_transactions(0, 3)[0].first_offset == 1


def test_the_first_batch_of_a_transaction_must_be_verified() -> None:
    log = open_log(new_disk())
    with pytest.raises(InvalidTransactionStateError):
        log.append(data_of(1, 0, transactional=True), now_ms=NOW, is_verified=False)
    log.append(data_of(1, 0, transactional=True), now_ms=NOW, is_verified=True)
    assert log.has_open_transaction(1, 0)
    log.append(data_of(1, 1, transactional=True), now_ms=NOW, is_verified=False)
    with pytest.raises(InvalidTransactionStateError, match="outside"):
        log.append(data_of(1, 2), now_ms=NOW)
    end_transaction(log, 1, ControlType.COMMIT)
    with pytest.raises(InvalidTransactionStateError):
        log.append(data_of(1, 2, transactional=True), now_ms=NOW, is_verified=False)


def test_markers_are_fenced_by_producer_and_coordinator_epoch() -> None:
    log = open_log(new_disk())
    log.append(data_of(1, 0, epoch=2, transactional=True), now_ms=NOW)

    def end(epoch: int, coordinator_epoch: int, *, must_be_newer: bool = False) -> int:
        data = marker(1, ControlType.COMMIT, epoch=epoch, coordinator_epoch=coordinator_epoch)
        return log.append(data, now_ms=NOW, origin=Origin.COORDINATOR, must_marker_be_newer=must_be_newer).base_offset

    with pytest.raises(InvalidProducerEpochError):
        end(1, 5)
    with pytest.raises(InvalidProducerEpochError):
        end(2, 5, must_be_newer=True)
    assert end(3, 5, must_be_newer=True) == 1
    with pytest.raises(TransactionCoordinatorFencedError):
        end(3, 4)
    assert log.append(data_of(1, 0, epoch=3, transactional=True), now_ms=NOW).base_offset == 2


# ---- times


def test_offsets_are_found_by_time() -> None:
    disk = new_disk()
    config = LogConfig(segment_bytes=1000, index_interval_bytes=100)
    log = open_log(disk, config)
    times = [NOW + delta for delta in (0, 10, 5, 20, 20, 40, 30, *range(50, 90))]
    for time in times:
        log.append(batch(b"v", timestamp=time), now_ms=NOW)
    for wanted in (0, NOW, NOW + 1, NOW + 11, NOW + 20, NOW + 25, NOW + 45, NOW + 89):
        first = next(offset for offset, time in enumerate(times) if time >= wanted)
        assert log.offset_for_timestamp(wanted) == TimestampAndOffset(times[first], first, 0)
    assert log.offset_for_timestamp(NOW + 90) is None
    assert log.max_timestamp() == TimestampAndOffset(NOW + 89, len(times) - 1, 0)
    log.close(now_ms=NOW)
    reopened = open_log(disk, config, clean=True)
    assert reopened.max_timestamp() == TimestampAndOffset(NOW + 89, len(times) - 1, 0)
    assert reopened.offset_for_timestamp(NOW + 25) == TimestampAndOffset(NOW + 40, 5, 0)


def test_a_time_within_a_batch_finds_the_record() -> None:
    log = open_log(new_disk())
    records = [RecordToWrite(key=None, value=b"v", timestamp=NOW + number) for number in range(10)]
    log.append(build_batch(records, compression=Compression.ZSTD), now_ms=NOW)
    assert log.offset_for_timestamp(NOW + 4) == TimestampAndOffset(NOW + 4, 4, 0)


# ---- both ends


def test_records_can_be_deleted_from_the_front() -> None:
    disk = new_disk()
    config = LogConfig(segment_bytes=300)
    log = open_log(disk, config)
    for number in range(12):
        log.append(batch(b"%02d" % number), now_ms=NOW)
    log.advance_high_watermark(10)
    with pytest.raises(OffsetOutOfRangeError):
        log.delete_records(11)
    assert log.delete_records(5) == 5
    assert log.delete_records(3) == 5
    with pytest.raises(OffsetOutOfRangeError):
        log.read(4, 1000)
    assert [record.offset for record in records_from(log, 5)] == list(range(5, 12))
    assert log.apply_retention(now_ms=NOW) == 1
    assert disk.list(DIRECTORY)[0].startswith("00000000000000000004")
    assert log.delete_records(-1) == 10
    log.close(now_ms=NOW)
    reopened = open_log(disk, config, clean=True, log_start_offset=10)
    assert (reopened.log_start_offset, reopened.log_end_offset) == (10, 12)


def test_retention_by_time_and_by_size() -> None:
    disk = new_disk()
    config = LogConfig(segment_bytes=300, retention_ms=1000)
    log = open_log(disk, config)
    for number in range(12):
        log.append(batch(b"%02d" % number, timestamp=NOW + 100 * number), now_ms=NOW)
    assert log.apply_retention(now_ms=NOW + 10_000) == 0  # nothing is below the high watermark
    log.advance_high_watermark(12)
    assert log.apply_retention(now_ms=NOW + 1300) == 0  # the newest record of the first segment is of NOW + 300
    assert log.apply_retention(now_ms=NOW + 1301) == 1
    assert log.log_start_offset == 4
    log.config = replace(config, retention_ms=-1, retention_bytes=log.size_bytes() - 1)
    assert log.apply_retention(now_ms=NOW + 10_000) == 0
    log.config = replace(config, retention_ms=-1, retention_bytes=log.size_bytes() // 2)
    assert log.apply_retention(now_ms=NOW + 10_000) == 1
    assert log.log_start_offset == 8
    log.config = config
    assert log.apply_retention(now_ms=NOW + 10_000) == 1  # the active segment too, after a roll
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes()) == (12, 12, 0)
    assert log.append(batch(b"x"), now_ms=NOW).base_offset == 12


def test_truncation_forgets_records_producers_and_epochs() -> None:
    log = open_log(new_disk(), LogConfig(segment_bytes=600, index_interval_bytes=50))
    for number in range(20):
        log.append(data_of(1, number), now_ms=NOW, leader_epoch=number // 5)
    log.truncate_to(12)
    assert log.log_end_offset == 12
    assert [record.offset for record in records_from(log)] == list(range(12))
    assert log.producers()[0].last_sequence == 11
    assert log.end_offset_for_epoch(2) == (2, 12)
    assert log.append(data_of(1, 12), now_ms=NOW, leader_epoch=7).base_offset == 12


def test_leader_epochs_know_their_ends() -> None:
    disk = new_disk()
    log = open_log(disk)
    for epoch in (1, 1, 4, 4, 6):
        log.append(batch(b"v"), now_ms=NOW, leader_epoch=epoch)
    for current in (log, open_log(disk)):
        assert current.end_offset_for_epoch(1) == (1, 2)
        assert current.end_offset_for_epoch(2) == (1, 2)
        assert current.end_offset_for_epoch(4) == (4, 4)
        assert current.end_offset_for_epoch(6) == (6, 5)
        assert current.end_offset_for_epoch(7) == (-1, -1)
        assert current.end_offset_for_epoch(0) == (0, 0)
    assert disk.read_bytes(f"{DIRECTORY}/leader-epoch-checkpoint") == b"0\n3\n1 0\n4 2\n6 4\n"


# ---- failures of the machine


def test_a_full_disk_takes_nothing_back_and_stops_appends() -> None:
    disk = new_disk()
    log = open_log(disk)
    log.append(batch(b"a"), now_ms=NOW)
    log.sync()
    disk.capacity_bytes = disk.used_bytes() + 10
    with pytest.raises(StorageError):
        log.append(batch(b"b"), now_ms=NOW)
    with pytest.raises(StorageError):
        log.append(batch(b"c"), now_ms=NOW)
    assert values_of(records_from(log)) == [b"a"]
    disk.capacity_bytes = 1 << 40
    assert values_of(records_from(open_log(disk))) == [b"a"]


def test_after_a_failed_sync_nothing_is_taken_or_reported_as_synced() -> None:
    disk = new_disk()
    log = open_log(disk)
    log.append(batch(b"a"), now_ms=NOW)
    log.sync()
    log.append(batch(b"b"), now_ms=NOW)

    def fail(path: str, operation: str) -> None:
        if operation == "sync":
            raise StorageError("I/O error", path=path, errno=EIO)

    disk.failing = fail
    with pytest.raises(StorageError):
        log.sync()
    disk.failing = None
    with pytest.raises(StorageError):
        log.sync()
    with pytest.raises(StorageError):
        log.append(batch(b"c"), now_ms=NOW)
    assert log.synced_end_offset == 1


def test_what_was_written_before_a_full_disk_can_still_be_synced() -> None:
    disk = new_disk()
    log = open_log(disk)
    log.append(batch(b"a"), now_ms=NOW)
    pending = log.start_sync()
    assert pending is not None
    log.append(batch(b"b"), now_ms=NOW)
    disk.capacity_bytes = disk.used_bytes() + 10
    with pytest.raises(StorageError):
        log.append(batch(b"c"), now_ms=NOW)
    pending.run()
    assert log.finish_sync(pending) == 1
    assert log.sync() == 2
    assert values_of(records_from(log)) == [b"a", b"b"]


def test_a_sync_covers_what_was_written_before_it_was_started() -> None:
    log = open_log(new_disk())
    log.sync()
    assert log.start_sync() is None
    log.append(batch(b"a"), now_ms=NOW)
    pending = log.start_sync()
    assert pending is not None
    log.append(batch(b"b"), now_ms=NOW)
    pending.run()
    assert log.finish_sync(pending) == 1
    assert log.is_dirty
    assert log.sync() == 2


def test_the_tail_cache_keeps_to_its_budget_over_all_partitions() -> None:
    disk = new_disk()
    size = len(batch(b"a"))
    cache = TailCache(3 * size)
    logs = [
        PartitionLog.open(disk, f"data/t-{number}", LogConfig(), now_ms=NOW, clean=False, tail_cache=cache)
        for number in range(2)
    ]
    for number in range(4):
        logs[number % 2].append(batch(b"%d" % number), now_ms=NOW)
    assert logs[0].read(0, 1, isolation=Isolation.LOG_END).file_slice is not None
    for log, offset in ((logs[1], 0), (logs[0], 1), (logs[1], 1)):
        assert log.read(offset, 1, isolation=Isolation.LOG_END).buffers


def test_a_forgotten_tail_leaves_the_cache_in_its_turn() -> None:
    disk = new_disk()
    cache = TailCache(3 * len(batch(b"a")))
    log, other = (
        PartitionLog.open(disk, f"data/t-{number}", LogConfig(), now_ms=NOW, clean=False, tail_cache=cache)
        for number in range(2)
    )
    for value in (b"a", b"b"):
        log.append(batch(value), now_ms=NOW)
    log.truncate_to(1)
    log.append(batch(b"c"), now_ms=NOW)
    # The budget holds three batches. The forgotten two go first, the newest of the log stays until then.
    for value in (b"d", b"e"):
        other.append(batch(value), now_ms=NOW)
        (cached,) = log.read(1, 1, isolation=Isolation.LOG_END).buffers
        assert next(iterate_records(BatchView(cached))).value == b"c"
    other.append(batch(b"f"), now_ms=NOW)
    assert log.read(1, 1, isolation=Isolation.LOG_END).file_slice is not None
    assert other.read(0, 1, isolation=Isolation.LOG_END).buffers


def test_small_batches_in_the_cache_are_nothing_to_the_garbage_collector() -> None:
    log = open_log(new_disk())
    for number in range(2000):
        log.append(memoryview(batch(b"%d" % number)), now_ms=NOW)
        if number == 999:
            gc.collect()
            tracked = len(gc.get_objects())
    gc.collect()
    assert log.read(0, 1, isolation=Isolation.LOG_END).buffers
    assert len(gc.get_objects()) - tracked < 100
