"""A directory of partitions, on a disk in memory: what lasts, and from when on."""

from __future__ import annotations

import random
from uuid import UUID

import pytest
from hailbus_broker.log import (
    Isolation,
    LogConfig,
    LogDirectory,
    MetaProperties,
    TopicPartition,
    decode_uuid,
    draw_uuid,
    encode_uuid,
    log_directory,
)
from hailbus_broker.records import RecordToWrite, build_batch, iterate_batches, iterate_records
from hailbus_broker.testing.simulation import SimulatedCrashError
from hailbus_broker.testing.simulation.disk import SimulatedDisk

WHERE = TopicPartition("rides", 0)
TOPIC_ID = UUID(int=7)
CONFIG = LogConfig()


def open_directory(disk: SimulatedDisk) -> LogDirectory:
    meta = MetaProperties(cluster_id="c" * 22, node_id=1, directory_id=UUID(int=5))
    logs = LogDirectory.open(disk, "data", new_meta=meta)
    logs.load(lambda _: CONFIG, now_ms=0)
    return logs


def hosted_again(disk: SimulatedDisk) -> LogDirectory:
    """What a start does when the metadata says that there is the partition."""
    logs = open_directory(disk)
    if WHERE not in logs.logs:
        logs.create(WHERE, TOPIC_ID, CONFIG, now_ms=0)
    elif WHERE not in logs.topic_ids:
        logs.identify(WHERE, TOPIC_ID)
    assert logs.topic_ids == {WHERE: TOPIC_ID}
    return logs


def values_in(logs: LogDirectory) -> list[bytes | None]:
    log = logs.logs[WHERE]
    if log.log_end_offset == log.log_start_offset:
        return []
    batches = iterate_batches(log.read(log.log_start_offset, 1 << 20, isolation=Isolation.LOG_END).to_bytes())
    return [record.value for view in batches for record in iterate_records(view)]


class Watched(SimulatedDisk):
    """Notes which directories were synced."""

    def __init__(self) -> None:
        super().__init__(random.Random(0))
        self.synced: list[str] = []

    def sync_directory(self, path: str) -> None:
        self.synced.append(path)
        super().sync_directory(path)


def append(logs: LogDirectory) -> None:
    append_to(logs, WHERE)


def append_to(logs: LogDirectory, where: TopicPartition) -> None:
    logs.logs[where].append(build_batch([RecordToWrite(key=None, value=b"v", timestamp=0)]), now_ms=0)


def test_a_new_partition_is_synced_with_its_first_record_and_its_name_with_it() -> None:
    disk = Watched()
    logs = open_directory(disk)
    disk.synced.clear()
    logs.create(WHERE, TOPIC_ID, CONFIG, now_ms=0)
    assert not logs.logs[WHERE].is_dirty
    assert disk.synced == []
    append(logs)
    logs.logs[WHERE].sync()
    assert set(disk.synced) >= {"data", "data/rides-0"}
    disk.synced.clear()
    append(logs)
    logs.logs[WHERE].sync()
    assert disk.synced == []


def test_after_a_kill_the_next_sync_takes_the_names_along() -> None:
    disk = Watched()
    logs = open_directory(disk)
    logs.create(WHERE, TOPIC_ID, CONFIG, now_ms=0)
    disk.kill_process()
    disk.synced.clear()
    logs = open_directory(disk)
    assert "data" in disk.synced
    append(logs)
    logs.logs[WHERE].sync()
    assert "data/rides-0" in disk.synced
    disk.cut_power()
    logs = open_directory(disk)
    assert values_in(logs) == [b"v"]
    assert logs.topic_ids == {WHERE: TOPIC_ID}


@pytest.mark.parametrize("seed", range(40))
def test_whatever_a_power_cut_leaves_of_a_new_partition_what_was_synced_is_there(seed: int) -> None:
    for crash_at_step in range(40):
        disk = SimulatedDisk(random.Random(f"{seed}-{crash_at_step}"))
        logs = open_directory(disk)
        disk.crash_at_step = disk.step_count + crash_at_step
        is_synced = False
        try:
            logs.create(WHERE, TOPIC_ID, CONFIG, now_ms=0)
            append(logs)
            logs.logs[WHERE].sync()
            is_synced = True
            append(logs)
            assert logs.close(now_ms=0) == []
        except SimulatedCrashError:
            pass
        disk.cut_power()
        logs = hosted_again(disk)
        values = values_in(logs)
        assert values == [b"v"] * len(values), (seed, crash_at_step)
        assert len(values) >= (1 if is_synced else 0), (seed, crash_at_step)


@pytest.mark.parametrize("seed", range(40))
def test_a_partition_that_nobody_has_written_to_survives_a_stop_and_a_power_cut(seed: int) -> None:
    disk = SimulatedDisk(random.Random(seed))
    logs = open_directory(disk)
    logs.create(WHERE, TOPIC_ID, CONFIG, now_ms=0)
    assert logs.close(now_ms=0) == []
    disk.cut_power()
    logs = hosted_again(disk)
    assert values_in(logs) == []


def test_a_damaged_topic_id_is_restored_by_whoever_knows_it() -> None:
    disk = SimulatedDisk(random.Random(0))
    logs = open_directory(disk)
    logs.create(WHERE, TOPIC_ID, CONFIG, now_ms=0)
    append(logs)
    assert logs.close(now_ms=0) == []
    disk.write_whole("data/rides-0/partition.metadata", b"nonsense\n")
    logs = hosted_again(disk)
    assert values_in(logs) == [b"v"]
    assert logs.close(now_ms=0) == []
    assert open_directory(disk).topic_ids == {WHERE: TOPIC_ID}


@pytest.mark.parametrize("name", ["recovery-point", "replication", "log-start", "cleaner"])
@pytest.mark.parametrize("content", [b"garbage!", b"0\n3\nrides 0 1\n", b"0\n1\nrides 0 x\n", b"\xff"])
def test_a_damaged_checkpoint_costs_work_and_no_record(name: str, content: bytes) -> None:
    disk = SimulatedDisk(random.Random(0))
    logs = open_directory(disk)
    logs.create(WHERE, TOPIC_ID, CONFIG, now_ms=0)
    append(logs)
    assert logs.close(now_ms=0) == []
    file_name = "log-start-offset-checkpoint" if name == "log-start" else f"{name}-offset-checkpoint"
    disk.write_whole(f"data/{file_name}", content)
    logs = hosted_again(disk)
    assert values_in(logs) == [b"v"]
    assert list(logs.damaged_checkpoints) == [file_name]
    assert logs.close(now_ms=0) == []
    assert not open_directory(disk).damaged_checkpoints


def test_a_stop_in_order_keeps_the_broker_epoch_for_one_start() -> None:
    disk = SimulatedDisk(random.Random(1))
    assert open_directory(disk).close(now_ms=0, broker_epoch=17) == []
    again = open_directory(disk)
    assert (again.was_clean, again.previous_broker_epoch) == (True, 17)
    after_a_crash = open_directory(disk)
    assert (after_a_crash.was_clean, after_a_crash.previous_broker_epoch) == (False, -1)


@pytest.mark.parametrize("mark", [b"", b"{}", b"[]", b'{"brokerEpoch":null}', b'{"version":0,"brokerEp'])
def test_a_mark_of_a_clean_stop_without_a_broker_epoch_is_one_all_the_same(mark: bytes) -> None:
    disk = SimulatedDisk(random.Random(1))
    open_directory(disk)
    disk.write_whole("data/.kafka_cleanshutdown", mark)
    again = open_directory(disk)
    assert (again.was_clean, again.previous_broker_epoch) == (True, -1)


def test_a_partition_that_is_deleted_within_a_checkpoint_is_not_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_directory, "CHECKPOINT_SLICE", 1)
    disk = SimulatedDisk(random.Random(0))
    logs = open_directory(disk)
    places = [TopicPartition("rides", index) for index in range(4)]
    for where in places:
        logs.create(where, TOPIC_ID, CONFIG, now_ms=0)
    for where in places:
        append_to(logs, where)
    slices = logs.checkpoint_in_slices()
    next(slices)
    next(slices)  # two were noted
    for where in (places[0], places[3]):
        logs.delete(where, unique="1" * 32)
    logs.create(places[3], UUID(int=8), CONFIG, now_ms=0)  # of the same name, and not the log that is to be noted
    while True:
        try:
            next(slices)
        except StopIteration as end:
            end.value.run()
            break
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        data = disk.read_bytes(f"data/{name}")
        assert data is not None
        assert [line.rsplit(" ", 1)[0] for line in data.decode().splitlines()[2:]] == ["rides 1", "rides 2"]


def write_down(logs: LogDirectory, *, start: int = 0) -> None:
    """Synced, committed and deleted as far as possible, and all of it in the checkpoints."""
    log = logs.logs[WHERE]
    log.sync()
    log.advance_high_watermark(log.log_end_offset)
    log.delete_records(start)
    logs.cleaned_offsets[WHERE] = log.log_end_offset
    logs.prepare_checkpoint().run()


@pytest.mark.parametrize("loses_power", [False, True])
def test_a_partition_has_none_of_the_offsets_of_an_earlier_one_with_its_name(loses_power: bool) -> None:
    disk = SimulatedDisk(random.Random(0))
    logs = open_directory(disk)
    logs.create(WHERE, TOPIC_ID, CONFIG, now_ms=0)
    for _ in range(5):
        append(logs)
    write_down(logs, start=3)
    logs.delete(WHERE, unique="1" * 32)
    if loses_power:  # what was deleted is gone, and the checkpoints still name it
        disk.cut_power()
        logs = open_directory(disk)
    assert logs.is_noted(WHERE)
    logs.create(WHERE, UUID(int=8), CONFIG, now_ms=0)
    assert not logs.is_noted(WHERE)
    for _ in range(4):
        append(logs)
    disk.kill_process()
    again = open_directory(disk)
    log = again.logs[WHERE]
    assert (log.log_start_offset, log.log_end_offset, log.synced_end_offset) == (0, 4, 0)
    assert (again.high_watermarks, again.cleaned_offsets) == ({}, {})


def test_a_checkpoint_that_is_not_written_yet_leaves_the_names_of_the_one_before() -> None:
    disk = SimulatedDisk(random.Random(0))
    logs = open_directory(disk)
    logs.create(WHERE, TOPIC_ID, CONFIG, now_ms=0)
    append(logs)
    write_down(logs)
    logs.delete(WHERE, unique="1" * 32)
    pending = logs.prepare_checkpoint()
    assert logs.is_noted(WHERE)
    pending.run()
    assert not logs.is_noted(WHERE)


@pytest.mark.parametrize("seed", range(20))
def test_a_partition_that_is_given_back_after_its_deletion_has_all_its_records_or_none(seed: int) -> None:
    config = LogConfig(segment_bytes=512)
    crash_at_step = 0
    is_over = False
    while not is_over:
        disk = SimulatedDisk(random.Random(f"{seed}-{crash_at_step}"))
        logs = open_directory(disk)
        logs.create(WHERE, TOPIC_ID, config, now_ms=0)
        for _ in range(30):
            append(logs)
        logs.logs[WHERE].sync()
        folder = logs.delete(WHERE, unique="0" * 32)
        disk.crash_at_step = disk.step_count + crash_at_step
        try:
            logs.remove_deleted(folder)
            is_over = True
        except SimulatedCrashError:
            disk.cut_power()
        disk.crash_at_step = None
        meta = MetaProperties(cluster_id="c" * 22, node_id=1, directory_id=UUID(int=5))
        again = LogDirectory.open(disk, "data", new_meta=meta)
        again.restore_deleted({WHERE: TOPIC_ID})
        again.load(lambda _: config, now_ms=0)
        if (log := again.logs.get(WHERE)) is not None:
            assert (log.log_start_offset, log.log_end_offset) == (0, 30), (seed, crash_at_step)
        crash_at_step += 1
    assert crash_at_step > 10


def test_no_drawn_id_begins_with_a_dash() -> None:
    rng = random.Random(3)
    texts = [encode_uuid(draw_uuid(rng)) for _ in range(2_000)]
    assert len(set(texts)) == len(texts)
    assert [text for text in texts if text.startswith("-")] == []
    assert {decode_uuid(text).version for text in texts} == {4}
