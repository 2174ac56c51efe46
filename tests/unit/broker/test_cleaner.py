"""Compaction in the background, on a disk in memory."""

from __future__ import annotations

import asyncio
import random
import threading
from errno import EIO
from uuid import UUID

import pytest
from hailbus_broker.log import (
    CleanupPolicy,
    Isolation,
    LogConfig,
    LogDirectory,
    MetaProperties,
    PartitionLog,
    StorageError,
    TopicPartition,
)
from hailbus_broker.records import RecordToWrite, build_batch, iterate_batches, iterate_records
from hailbus_broker.runtime.cleaner import Cleaner
from hailbus_broker.runtime.threads import ThreadPool
from hailbus_broker.testing.simulation.disk import SimulatedDisk

WHERE = TopicPartition("accounts", 0)
CONFIG = LogConfig(cleanup_policy=frozenset({CleanupPolicy.COMPACT}), segment_bytes=1000)


def directory_on(disk: SimulatedDisk) -> LogDirectory:
    meta = MetaProperties(cluster_id="c" * 22, node_id=1, directory_id=UUID(int=5))
    return LogDirectory.open(disk, "data", new_meta=meta)


def fill(log: PartitionLog) -> None:
    for number in range(100):
        record = RecordToWrite(key=b"k%d" % (number % 3), value=b"v%d" % number, timestamp=0)
        log.append(build_batch([record]), now_ms=0)
    log.roll(now_ms=0)
    log.advance_high_watermark(log.sync())


def values_in(log: PartitionLog) -> list[bytes | None]:
    values: list[bytes | None] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        for view in iterate_batches(log.read(offset, 1 << 20, isolation=Isolation.LOG_END).to_bytes()):
            values += [record.value for record in iterate_records(view)]
            offset = view.header.next_offset
    return values


async def test_a_dirty_log_is_compacted_once() -> None:
    logs = directory_on(SimulatedDisk(random.Random(0)))
    log = logs.create(WHERE, UUID(int=1), CONFIG, now_ms=0)
    cleaner = Cleaner(logs, threads=ThreadPool(1, "cleaner"), wall_ms=lambda: 0, dedupe_buffer_bytes=1 << 20)
    assert not await cleaner.clean_one()
    fill(log)
    assert await cleaner.clean_one()
    assert values_in(log) == [b"v97", b"v98", b"v99"]
    assert logs.cleaned_offsets[WHERE] == 100
    assert not await cleaner.clean_one()
    assert cleaner.round_count == 1


async def test_few_keys_at_a_time_still_come_to_the_end() -> None:
    logs = directory_on(SimulatedDisk(random.Random(0)))
    log = logs.create(WHERE, UUID(int=1), CONFIG, now_ms=0)
    fill(log)
    cleaner = Cleaner(logs, threads=ThreadPool(1, "cleaner"), wall_ms=lambda: 0, dedupe_buffer_bytes=400)  # two keys
    log.config = LogConfig(
        cleanup_policy=frozenset({CleanupPolicy.COMPACT}), segment_bytes=1000, min_cleanable_dirty_ratio=0.0
    )
    while await cleaner.clean_one():
        pass
    assert logs.cleaned_offsets[WHERE] == 100
    assert values_in(log)[-3:] == [b"v97", b"v98", b"v99"]


async def test_a_log_that_cannot_be_compacted_is_left_alone() -> None:
    disk = SimulatedDisk(random.Random(0))
    logs = directory_on(disk)
    log = logs.create(WHERE, UUID(int=1), CONFIG, now_ms=0)
    fill(log)
    before = values_in(log)

    def fail(path: str, operation: str) -> None:
        if path.endswith(".cleaned") and operation == "append":
            raise StorageError("I/O error", path=path, errno=EIO)

    disk.failing = fail
    cleaner = Cleaner(logs, threads=ThreadPool(1, "cleaner"), wall_ms=lambda: 0, dedupe_buffer_bytes=1 << 20)
    assert await cleaner.clean_one()
    assert not await cleaner.clean_one()
    assert values_in(log) == before
    assert log.failure is None


def test_reading_goes_on_while_compacted_segments_are_swapped_in() -> None:
    logs = directory_on(SimulatedDisk(random.Random(0)))
    log = logs.create(WHERE, UUID(int=1), CONFIG, now_ms=0)
    fill(log)
    before = values_in(log)
    task = log.start_compaction(now_ms=0, first_dirty_offset=0)
    assert task is not None
    for _ in task.steps():
        pass
    assert log.begin_swap(task)
    task.swap_in()  # in production by a thread, while the loop goes on reading and deleting
    assert values_in(log) == before
    log.config = LogConfig(cleanup_policy=frozenset({CleanupPolicy.DELETE}), segment_bytes=1000, retention_bytes=1)
    assert log.start_retention(now_ms=0) is None
    log.end_swap(task)
    assert values_in(log) == [b"v97", b"v98", b"v99"]
    removal = log.start_retention(now_ms=0)
    assert removal is not None
    removal.run()
    assert log.log_start_offset > 0
    assert values_in(log) == [b"v97", b"v98", b"v99"]


async def test_a_swap_leaves_a_new_topic_of_the_same_name_alone() -> None:
    logs = directory_on(SimulatedDisk(random.Random(0)))
    log = logs.create(WHERE, UUID(int=1), CONFIG, now_ms=0)
    fill(log)
    names = threading.Lock()
    reported: list[StorageError] = []
    cleaner = Cleaner(
        logs,
        threads=ThreadPool(1, "cleaner"),
        wall_ms=lambda: 0,
        dedupe_buffer_bytes=1 << 20,
        names=names,
        report=reported.append,
    )
    with names:
        cleaning = asyncio.create_task(cleaner.clean_one())
        while not log._state.is_swapping:  # noqa: ASYNC110 - a log has no event to wait for
            await asyncio.sleep(0)
        logs.delete(WHERE, unique="f" * 32)
        new = logs.create(WHERE, UUID(int=2), CONFIG, now_ms=0)
        fill(new)
    assert not await cleaning
    assert len(values_in(new)) == 100
    assert new.failure is None
    assert reported == []


def test_the_directory_remembers_its_partitions() -> None:
    disk = SimulatedDisk(random.Random(0))
    logs = directory_on(disk)
    assert not logs.was_clean
    log = logs.create(WHERE, UUID(int=1), CONFIG, now_ms=0)
    fill(log)
    log.delete_records(50)
    logs.prepare_checkpoint().run()
    assert logs.close(now_ms=0) == []
    assert disk.read_bytes("data/log-start-offset-checkpoint") == b"0\n1\naccounts 0 50\n"
    assert disk.read_bytes("data/accounts-0/partition.metadata") == b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n"
    again = directory_on(disk)
    assert again.was_clean
    assert not disk.exists("data/.kafka_cleanshutdown")
    loaded = again.load(lambda _: CONFIG, now_ms=0)
    assert list(loaded) == [WHERE]
    assert again.topic_ids == {WHERE: UUID(int=1)}
    assert (loaded[WHERE].log_start_offset, loaded[WHERE].log_end_offset) == (50, 100)
    assert again.high_watermarks == {WHERE: 100}


def test_a_deleted_partition_is_gone_after_a_crash() -> None:
    disk = SimulatedDisk(random.Random(0))
    logs = directory_on(disk)
    logs.create(WHERE, UUID(int=1), CONFIG, now_ms=0)
    path = logs.delete(WHERE, unique="f" * 32)
    assert path == f"data/accounts-0.{'f' * 32}-delete"
    again = directory_on(disk)
    assert again.load(lambda _: CONFIG, now_ms=0) == {}
    assert not disk.exists(path)


def test_another_nodes_directory_is_refused() -> None:
    disk = SimulatedDisk(random.Random(0))
    directory_on(disk)
    other = MetaProperties(cluster_id="c" * 22, node_id=2, directory_id=UUID(int=5))
    with pytest.raises(StorageError, match="belongs to node 1, this is node 2"):
        LogDirectory.open(disk, "data", new_meta=other)
