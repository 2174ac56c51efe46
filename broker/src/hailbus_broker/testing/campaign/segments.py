"""Looks at the segment files of the broker's disk, as far as they can be judged without the broker."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Final

from hailbus_broker.records import iterate_batches
from hailbus_broker.records.errors import RecordsError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hailbus_broker.testing.simulation.disk import SimulatedDisk

_LOG: Final = ".log"
_SWAP: Final = ".log.swap"


def overlapping_segments(disk: SimulatedDisk) -> Iterator[str]:
    """Name the segments that hold offsets of the segment behind them: those would be there twice."""
    for directory, bases in _segments(disk):
        for base, next_base in pairwise(bases):
            last = _last_offset(disk, f"{directory}/{base:020d}{_LOG}")
            if last >= next_base:
                yield f"{directory}: the segment {base} ends at {last}, the next one begins at {next_base}"


def has_replaced_segments(disk: SimulatedDisk) -> bool:
    """Whether a compaction's swap was cut after one segment had become complete that replaces several."""
    for directory, bases in _segments(disk):
        for path in disk.paths():
            if path.startswith(directory + "/") and path.endswith(_SWAP):
                base = int(path[len(directory) + 1 : -len(_SWAP)])
                last = _last_offset(disk, path)
                if any(base < other <= last for other in bases):
                    return True
    return False


def _segments(disk: SimulatedDisk) -> Iterator[tuple[str, list[int]]]:
    """Return each directory of a partition with the base offsets of its segments, in order."""
    logs = (path for path in disk.paths() if path.endswith(_LOG))
    for directory, paths in groupby(logs, key=lambda path: path.rpartition("/")[0]):
        yield directory, sorted(int(path[len(directory) + 1 : -len(_LOG)]) for path in paths)


def _last_offset(disk: SimulatedDisk, path: str) -> int:
    """Return the last offset before the end of a segment or before its first damage; -1 for none."""
    last = -1
    try:
        for batch in iterate_batches(disk.read_bytes(path) or b"", whole=False):
            batch.check_crc()
            last = batch.header.last_offset
    except RecordsError:
        pass  # a torn tail
    return last
