"""The disk in memory: what of directories and their names lasts."""

from __future__ import annotations

import random

from hailbus_broker.testing.simulation.disk import SimulatedDisk


def put(disk: SimulatedDisk, path: str, data: bytes, *, is_synced: bool) -> None:
    file = disk.open(path, create=True)
    file.append(data)
    if is_synced:
        file.sync()
        disk.sync_directory(path.rpartition("/")[0])


def set_aside_and_made_again(seed: int, *, is_synced: bool) -> SimulatedDisk:
    """A disk with a synced directory that was renamed, while another one took its name."""
    disk = SimulatedDisk(random.Random(seed))
    disk.make_directory("/data/rides")
    disk.sync_directory("/data")
    put(disk, "/data/rides/log", b"old", is_synced=True)
    put(disk, "/data/rides/index", b"of the old one", is_synced=False)
    disk.rename("/data/rides", "/data/stray")
    disk.make_directory("/data/rides")
    put(disk, "/data/rides/log", b"new", is_synced=is_synced)
    return disk


def test_a_directory_that_takes_the_name_of_a_renamed_one_keeps_what_was_synced() -> None:
    for seed in range(20):
        disk = set_aside_and_made_again(seed, is_synced=True)
        disk.sync_directory("/data")
        disk.cut_power()
        assert disk.read_bytes("/data/rides/log") == b"new"
        assert disk.read_bytes("/data/stray/log") == b"old"
        assert not disk.exists("/data/rides/index")


def test_an_unsynced_rename_of_a_directory_arrives_or_not() -> None:
    found = set()
    for seed in range(40):
        disk = set_aside_and_made_again(seed, is_synced=False)
        disk.cut_power()
        assert not (disk.exists("/data/rides/index") and disk.exists("/data/stray"))
        found.add((disk.read_bytes("/data/rides/log"), disk.read_bytes("/data/stray/log")))
    assert {(b"old", None), (None, b"old")} <= found
    assert all(b"old" in places for places in found)
