"""What campaigns see in the segment files of a disk: segments that overlap, and swaps that were cut."""

from __future__ import annotations

import random
from struct import Struct

from hailbus_broker.records import RecordToWrite, build_batch
from hailbus_broker.testing.campaign.segments import has_replaced_segments, overlapping_segments
from hailbus_broker.testing.simulation.disk import SimulatedDisk

BASE_OFFSET = Struct(">q")


def disk_with(**segments: tuple[int, ...]) -> SimulatedDisk:
    """A disk with a partition; each file, named after its base offset, has one batch of one record at each offset."""
    disk = SimulatedDisk(random.Random(1))
    disk.make_directory("/data/t-0")
    for name, offsets in segments.items():
        base, _, suffix = name.removeprefix("at_").partition("_")
        path = f"/data/t-0/{int(base):020d}.log" + (f".{suffix}" if suffix else "")
        file = disk.open(path, create=True)
        for offset in offsets:
            batch = build_batch([RecordToWrite(key=b"k", value=b"v", timestamp=1)])
            BASE_OFFSET.pack_into(batch, 0, offset)
            file.append(batch)
    return disk


def test_segments_that_follow_each_other_do_not_overlap() -> None:
    disk = disk_with(at_0=(0, 1, 4), at_5=(), at_6=(6, 7))
    disk.open("/data/t-0/00000000000000000006.log").append(b"\0" * 100)  # a torn tail
    assert list(overlapping_segments(disk)) == []
    assert not has_replaced_segments(disk)


def test_a_segment_that_reaches_into_the_next_one_is_found() -> None:
    disk = disk_with(at_0=(0, 1, 4), at_4=(4, 5), at_6=(6,))
    assert list(overlapping_segments(disk)) == ["/data/t-0: the segment 0 ends at 4, the next one begins at 4"]


def test_a_swap_is_cut_as_long_as_a_segment_behind_the_first_is_left() -> None:
    assert has_replaced_segments(disk_with(at_0=(0,), at_3=(3, 4), at_5=(5,), at_0_swap=(0, 4)))
    assert has_replaced_segments(disk_with(at_3=(3, 4), at_5=(5,), at_0_swap=(0, 4)))
    assert not has_replaced_segments(disk_with(at_5=(5,), at_0_swap=(0, 4)))
    assert not has_replaced_segments(disk_with(at_0=(0, 4), at_5=(5,), at_0_swap=(0, 4)))
