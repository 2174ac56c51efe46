"""The indexes against a sorted list."""

from __future__ import annotations

import random
from bisect import bisect_right

from hailbus_broker.log.offset_index import OffsetIndex
from hailbus_broker.testing.simulation.disk import SimulatedDisk
from hypothesis import given, settings
from hypothesis import strategies as st


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5000)), max_size=200),
    repeat=st.sampled_from([1, 1, 30]),
    flush_every=st.integers(1, 300),
    targets=st.lists(st.integers(0, 3_000_000), min_size=1, max_size=20),
    cut=st.integers(0, 3000),
)
def test_floor_and_truncation(
    steps: list[tuple[int, int]], repeat: int, flush_every: int, targets: list[int], cut: int
) -> None:
    index = OffsetIndex(SimulatedDisk(random.Random(0)), "t-0/0.index", 0, written_count=0)
    entries: list[tuple[int, int]] = []
    offset = position = 0
    for number, (offset_step, position_step) in enumerate(steps * repeat):
        offset += offset_step
        position += position_step
        index.add(offset, position)
        entries.append((offset, position))
        if number % flush_every == 0:
            index.flush()
        if number % 97 == 0:
            check(index, entries, targets[:3])
    check(index, entries, targets)
    index.keep_below(cut)
    kept = [entry for entry in entries if entry[0] < cut]
    assert list(index.entries()) == kept
    check(index, kept, targets)
    index.add(cut + 10_000, 10**7)
    check(index, [*kept, (cut + 10_000, 10**7)], targets)


def check(index: OffsetIndex, entries: list[tuple[int, int]], targets: list[int]) -> None:
    assert index.entry_count == len(entries)
    assert index.last_entry == (entries[-1] if entries else None)
    for target in targets:
        for column, found in ((0, index.floor(target)), (1, index.floor_by_second(target))):
            at = bisect_right(entries, target, key=lambda entry: entry[column])
            assert found == (entries[at - 1] if at else None)
