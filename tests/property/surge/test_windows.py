"""Windows in event time: the same whatever the order and however often facts come, within the watermark."""

import random

from hypothesis import given
from hypothesis import strategies as st
from surge.domain.cells import parent, ring
from surge.domain.watermark import LATENESS_MS, Watermark
from surge.domain.windows import MINUTE_MS, Fact, Quoted, Requested, Seen, Windows

CENTRE = "882a100d25fffff"
CELLS = (CENTRE, *ring(CENTRE))
START_MS = 1_400_000_040_000 - 1_400_000_040_000 % MINUTE_MS

moments = st.integers(min_value=START_MS, max_value=START_MS + 20 * MINUTE_MS)
names = st.integers(min_value=0, max_value=9).map(str)
cells = st.sampled_from(CELLS)
facts = st.lists(
    st.one_of(
        st.builds(
            lambda at, cell, rider: Requested(
                at_ms=at, cell=cell, area=parent(cell), ride_id=f"{rider}@{at}", rider_id=rider
            ),
            moments,
            cells,
            names,
        ),
        st.builds(lambda at, cell, rider: Quoted(at_ms=at, cell=cell, rider_id=rider), moments, cells, names),
        st.builds(
            lambda at, driver, cell, free: Seen(at_ms=at, driver_id=driver, cell=cell, free=free),
            moments,
            names,
            cells,
            st.booleans(),
        ),
    ),
    max_size=60,
)


def replay(order: list[Fact]) -> tuple[list[object], int]:
    """Activity and rides at each minute's end, and how many facts were late."""
    windows, watermark = Windows(closed_until_ms=START_MS), Watermark()
    out: list[object] = []

    def close(until_ms: int) -> None:
        while windows.closed_until_ms is not None and windows.closed_until_ms + MINUTE_MS <= until_ms:
            end_ms = windows.closed_until_ms + MINUTE_MS
            out.append(
                (end_ms, windows.activity(end_ms, also=(), ring=ring), windows.rides(end_ms - MINUTE_MS, end_ms))
            )
            windows.close(end_ms)
            windows.forget_before(end_ms - 4 * MINUTE_MS)

    for fact in order:
        windows.apply(fact)
        watermark.observe("one", fact.at_ms, now_ms=0)
        current = watermark.current(now_ms=0)
        assert current is not None
        close(current)
    close(START_MS + 30 * MINUTE_MS)
    return out, windows.late_count


@given(facts, st.integers(0, 2**32))
def test_shuffling_within_the_watermark_changes_nothing(told: list[Fact], seed: int) -> None:
    chance = random.Random(seed)
    in_order = sorted(told, key=lambda fact: fact.at_ms)
    shuffled = sorted(told, key=lambda fact: fact.at_ms + chance.uniform(0, LATENESS_MS))
    expected, late = replay(in_order)
    assert late == 0
    assert replay(shuffled) == (expected, 0)


@given(facts, st.integers(0, 2**32))
def test_hearing_a_fact_again_changes_nothing(told: list[Fact], seed: int) -> None:
    chance = random.Random(seed)
    in_order = sorted(told, key=lambda fact: fact.at_ms)
    again = sorted([*told, *told], key=lambda fact: fact.at_ms + chance.uniform(0, LATENESS_MS))
    assert replay(again)[0] == replay(in_order)[0]


@given(facts)
def test_demand_and_supply_are_what_a_recount_gives(told: list[Fact]) -> None:
    end_ms = START_MS + 10 * MINUTE_MS
    windows = Windows()
    for fact in told:
        windows.apply(fact)
    activity = windows.activity(end_ms, also=CELLS, ring=ring)
    last: dict[str, tuple[int, bool, str]] = {}
    for fact in told:
        if isinstance(fact, Seen) and end_ms - MINUTE_MS <= fact.at_ms < end_ms:
            last[fact.driver_id] = max(
                last.get(fact.driver_id, (0, False, "")), (fact.at_ms, not fact.free, fact.cell or "")
            )
    free = [cell for at_ms, busy, cell in last.values() if not busy and at_ms > end_ms - 30_000]
    for cell in CELLS:
        inside = [
            fact
            for fact in told
            if not isinstance(fact, Seen) and fact.cell == cell and end_ms - 5 * MINUTE_MS <= fact.at_ms < end_ms
        ]
        asked = {fact.rider_id for fact in inside if isinstance(fact, Requested)}
        quoted = {fact.rider_id for fact in inside if isinstance(fact, Quoted)} - asked
        assert abs(activity[cell].demand - (len(asked) + 0.3 * len(quoted))) < 1e-9
        assert activity[cell].supply == free.count(cell) + 0.5 * sum(free.count(other) for other in ring(cell))


def test_a_late_fact_is_counted_and_not_applied() -> None:
    windows = Windows(closed_until_ms=START_MS)
    assert not windows.apply(Requested(at_ms=START_MS - 1, cell=CENTRE, area=parent(CENTRE), ride_id="r", rider_id="a"))
    assert windows.apply(Requested(at_ms=START_MS, cell=CENTRE, area=parent(CENTRE), ride_id="r", rider_id="a"))
    assert windows.late_count == 1
    assert windows.demand(START_MS + MINUTE_MS) == {CENTRE: 1.0}
