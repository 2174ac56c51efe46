"""Partitions that the metadata does not know are set aside within the data directory."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from hailbus_broker.log import LogConfig, PartitionLog, TailCache, TopicPartition
from hailbus_broker.records import RecordToWrite, build_batch
from hailbus_broker.runtime.data_directory import DataDirectory
from hailbus_broker.runtime.disk import RealDisk

if TYPE_CHECKING:
    from pathlib import Path


def test_a_stray_stays_in_the_data_directory_however_long_the_path_is(tmp_path: Path) -> None:
    path = tmp_path / "/".join("folder" * 10 for _ in range(5))  # cut at 200 characters it names another folder
    data = DataDirectory(RealDisk(), str(path), node_id=1, rng=random.Random(1), tail_cache=TailCache(0))
    topic = "t" * 249  # the longest name there is
    try:
        (made,) = data.make(topic, [0], b"1" * 16, LogConfig(), now_ms=0)
        assert isinstance(made, PartitionLog)
        data.add(topic, 0, b"1" * 16, made)
        before = {entry.name for entry in path.iterdir()}
        data.set_strays_aside({})
    finally:
        data.release()
    after = {entry.name for entry in path.iterdir()}
    assert before - after == {f"{topic}-0"}
    (stray,) = after - before
    assert stray.startswith("t" * 200)
    assert stray.endswith("-stray")


def append(log: PartitionLog, count: int) -> None:
    for _ in range(count):
        log.append(build_batch([RecordToWrite(key=None, value=b"v", timestamp=0)]), now_ms=0)
    log.sync()


def opened(path: Path) -> DataDirectory:
    """As after a kill."""
    data = DataDirectory(RealDisk(), str(path), node_id=1, rng=random.Random(1), tail_cache=TailCache(0))
    data.logs.load(lambda _: LogConfig(), now_ms=0)
    return data


def test_a_partition_has_none_of_the_offsets_of_a_stray_that_had_its_name(tmp_path: Path) -> None:
    data = opened(tmp_path)
    (stray,) = data.host("rides", [0], b"1" * 16, now_ms=0)
    data.add("rides", 0, b"1" * 16, stray)
    append(stray, 3)
    stray.advance_high_watermark(3)
    stray.delete_records(2)
    data.logs.cleaned_offsets[TopicPartition("rides", 0)] = 3
    data.logs.prepare_checkpoint().run()
    data.release()

    data = opened(tmp_path)
    data.set_strays_aside({("rides", 0): b"2" * 16})
    (log,) = data.host("rides", [0], b"2" * 16, now_ms=0)
    assert log.log_start_offset == 0
    assert data.logs.cleaned_offsets == {}
    append(log, 4)
    data.release()

    data = opened(tmp_path)
    (log,) = data.host("rides", [0], b"2" * 16, now_ms=0)
    assert (log.log_start_offset, log.log_end_offset) == (0, 4)
    data.release()
