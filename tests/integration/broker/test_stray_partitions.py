"""Partitions that the metadata does not know are set aside within the data directory."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from hailbus_broker.log import LogConfig, PartitionLog, TailCache
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
