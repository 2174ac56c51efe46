"""A city that is rebuilt from its rows, wherever the process died, continues as if nothing had happened."""

import io
import itertools
import json
import random
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from surge.app.city import SLOT_MS, CellForecast, City, ForecastScore, MinuteClosed
from surge.domain.cells import parent, resolution_of, ring
from surge.domain.forecast import HORIZONS_MIN
from surge.domain.pricing import PricingRules
from surge.domain.windows import MINUTE_MS, Fact, Quoted, Requested, Seen

CENTRE = "882a100d25fffff"
CELLS = (CENTRE, *ring(CENTRE))
START_MS = 1_400_025_600_000 - SLOT_MS
"""The last slot of a day in May 2014."""
RULES = PricingRules()


def facts(seed: int, minutes: int) -> list[Fact]:
    chance = random.Random(seed)
    told: list[Fact] = []
    for number in range(minutes * 20):
        at_ms = START_MS + number * 3_000
        cell = CENTRE if chance.random() < 0.6 else chance.choice(CELLS)
        match chance.randrange(4):
            case 0:
                told.append(Quoted(at_ms=at_ms, cell=cell, rider_id=f"u{chance.randrange(40)}"))
            case 1 | 2:
                area = parent(cell if chance.random() < 0.9 else chance.choice(ring(cell)))
                told.append(
                    Requested(
                        at_ms=at_ms, cell=cell, area=area, ride_id=f"r{number}", rider_id=f"u{chance.randrange(40)}"
                    )
                )
            case _:
                free = chance.random() < 0.5
                told.append(Seen(at_ms=at_ms, driver_id=f"d{chance.randrange(9)}", cell=cell, free=free))
    return told


class Table:
    """The rows as a crash finds them: written rows survive, in JSON as in the database."""

    def __init__(self) -> None:
        self.windows: dict[str, str] = {}
        self.state: str | None = None
        self.slots: dict[int, str] = {}
        self.drivers: dict[int, str] = {}
        self.snapshots: list[tuple[int, bytes]] = []

    def take_snapshot(self, city: City, *, drops_rows: bool) -> None:
        """Keep what was learnt; the rows of these slots may be gone afterwards."""
        arrays = city.snapshot()
        if arrays is None or city.closed_until_ms is None:
            return
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, **arrays)
        next_slot = city.closed_until_ms // SLOT_MS
        self.snapshots.append((next_slot, file.getvalue()))
        if drops_rows:
            for rows in (self.slots, self.drivers):
                for number in [number for number in rows if number < next_slot]:
                    del rows[number]

    def city(self) -> City:
        city = City(rules=RULES, least_counts=0.0)
        city.restore(
            state=None if self.state is None else json.loads(self.state),
            windows={key: json.loads(row) for key, row in self.windows.items()},
            slots={number: json.loads(row) for number, row in self.slots.items()},
            drivers={number: json.loads(row) for number, row in self.drivers.items()},
            snapshot=dict(np.load(io.BytesIO(self.snapshots[-1][1]))) if self.snapshots else None,
        )
        return city


def run(told: list[Fact], *, crashes: random.Random | None) -> tuple[dict[int, MinuteClosed], int]:
    """Minutes by their end as published, and how often the process died. Every write may be its last."""
    table, published, deaths = Table(), dict[int, MinuteClosed](), 0
    city, position = table.city(), 0

    def dies() -> bool:
        return crashes is not None and deaths < len(told) // 28 and crashes.random() < 0.06

    while position < len(told):
        crashed = False
        batch = told[position : position + 7]
        for fact in batch:
            city.apply(fact)
        for key, row in city.changed_rows().items():
            if crashed := dies():
                break
            table.windows[key] = json.dumps(row)
        if not crashed:
            position += len(batch)  # acknowledged: never heard again
            watermark_ms = batch[-1].at_ms - 30_000
            while not crashed and (end_ms := city.next_end(watermark_ms)) is not None:
                minute = city.close_minute(end_ms)
                assert published.setdefault(end_ms, minute) == minute
                if minute.slot is not None:
                    table.slots[minute.slot.number] = json.dumps(minute.slot.pickups)
                    if crashed := dies():
                        break
                    table.drivers[minute.slot.number] = json.dumps(minute.slot.drivers)
                if crashed := dies():
                    break
                table.state = json.dumps(city.state_row())
                for key in city.obsolete_rows():
                    table.windows.pop(key, None)
                if minute.slot is not None and crashes is not None and crashes.random() < 0.5:
                    table.take_snapshot(city, drops_rows=crashes.random() < 0.5)
        if crashed or dies():
            deaths += 1
            city = table.city()
    return published, deaths


@given(st.integers(0, 2**32), st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_a_crash_at_any_write_changes_nothing_that_is_published(seed: int, fate: int) -> None:
    assert_crashes_change_nothing(facts(seed, minutes=17), fate)


@given(st.integers(0, 2**32), st.integers(0, 2**32))
@settings(max_examples=2, deadline=None)
def test_a_crash_at_any_write_changes_no_score(seed: int, fate: int) -> None:
    demand, supply = assert_crashes_change_nothing(facts(seed, minutes=37), fate)
    assert {5, 15} <= demand & supply


def assert_crashes_change_nothing(told: list[Fact], fate: int) -> tuple[set[int], set[int]]:
    """Return the horizons of demand and of supply that were scored."""
    whole, _ = run(told, crashes=None)
    assert len(whole) >= len(told) // 20 - 2
    broken, _ = run(told, crashes=random.Random(fate))
    assert broken == whole
    demand = {score.horizon_min for minute in broken.values() for score in minute.demand.scores}
    supply = {score.horizon_min for minute in broken.values() for score in minute.supply.scores}
    return demand, supply


def test_scores_are_what_the_published_forecasts_and_the_slots_after_and_before_them_give() -> None:
    closed, _ = run(facts(7, minutes=67), crashes=None)
    slots = {minute.slot.number: minute.slot.pickups for minute in closed.values() if minute.slot is not None}
    medians: dict[tuple[int, int, int], dict[str, float]] = {}
    for minute in closed.values():
        for made in minute.demand.forecasts:
            key = (resolution_of(made.cell), made.horizon_min, made.issued_at_ms)
            medians.setdefault(key, {})[made.cell] = made.p50

    def pickups(cell: str, since_ms: int, until_ms: int) -> int:
        return sum(slots[number].get(cell, 0) for number in range(since_ms // SLOT_MS, until_ms // SLOT_MS))

    scored = set()
    for minute in closed.values():
        for score in minute.demand.scores:
            key = (score.resolution, score.horizon_min, score.issued_at_ms)
            since_ms, long_ms = score.issued_at_ms, score.horizon_min * MINUTE_MS
            assert minute.end_ms == since_ms + long_ms
            error = naive_error = 0.0
            for cell, median in medians[key].items():
                came = pickups(cell, since_ms, since_ms + long_ms)
                error += abs(came - median)
                naive_error += abs(came - pickups(cell, since_ms - long_ms, since_ms))
            assert (score.absolute_error, score.naive_absolute_error) == (error, naive_error)
            assert score.forecasts == len(medians[key])
            assert error > 0
            scored.add(key)
    # Whatever has ended is scored, but for the first ones, for which the time before them was not counted.
    first_ms, last_ms = START_MS, max(closed)
    assert scored == {
        (resolution, horizon_min, issued_ms)
        for resolution, horizon_min, issued_ms in medians
        if issued_ms - horizon_min * MINUTE_MS >= first_ms and issued_ms + horizon_min * MINUTE_MS <= last_ms
    }
    assert {horizon_min for _, horizon_min, _ in scored} == set(HORIZONS_MIN)


def test_scores_of_supply_are_what_the_published_forecasts_and_the_free_drivers_then_give() -> None:
    closed, _ = run(facts(7, minutes=67), crashes=None)
    free = {minute.end_ms: minute.slot.drivers for minute in closed.values() if minute.slot is not None}
    medians: dict[tuple[int, int], dict[str, float]] = {}
    for minute in closed.values():
        for made in minute.supply.forecasts:
            medians.setdefault((made.horizon_min, made.issued_at_ms), {})[made.cell] = made.p50
    scored = set()
    for minute in closed.values():
        for score in minute.supply.scores:
            key = (score.horizon_min, score.issued_at_ms)
            assert minute.end_ms == score.issued_at_ms + score.horizon_min * MINUTE_MS
            then, now = free[minute.end_ms], free[score.issued_at_ms]
            assert score.absolute_error == sum(abs(then.get(cell, 0) - median) for cell, median in medians[key].items())
            assert score.naive_absolute_error == sum(abs(then.get(cell, 0) - now.get(cell, 0)) for cell in medians[key])
            assert score.forecasts == len(medians[key])
            scored.add(key)
    last_ms = max(closed)
    assert scored == {key for key in medians if key[1] + key[0] * MINUTE_MS <= last_ms}
    assert {horizon_min for horizon_min, _ in scored} == set(HORIZONS_MIN)


def test_no_forecast_is_scored_over_a_gap() -> None:
    city = City(rules=RULES, least_counts=0.0)
    night_ms = 12 * 3_600_000
    told = facts(3, minutes=27)
    told += [replace(fact, at_ms=fact.at_ms + night_ms) for fact in facts(4, minutes=32)]
    scores: list[ForecastScore] = []
    for fact in told:
        city.apply(fact)
        while (end_ms := city.next_end(fact.at_ms)) is not None:
            scores.extend(city.close_minute(end_ms).demand.scores)
    begins_ms = START_MS + night_ms
    assert {score.issued_at_ms >= begins_ms for score in scores} == {True, False}
    for score in scores:
        long_ms = score.horizon_min * MINUTE_MS
        assert score.issued_at_ms < begins_ms or score.issued_at_ms - long_ms >= begins_ms


def test_prices_rise_are_published_on_change_and_refreshed_before_they_expire() -> None:
    city = City(rules=RULES)
    published: list[Any] = []
    for minute in range(40):
        start_ms = START_MS + minute * MINUTE_MS
        for number in range(6):
            name = f"{minute}-{number}"
            city.apply(
                Requested(at_ms=start_ms + number * 1000, cell=CENTRE, area=parent(CENTRE), ride_id=name, rider_id=name)
            )
        while (end_ms := city.next_end(start_ms)) is not None:
            published.extend(change for change in city.close_minute(end_ms).prices if change.cell == CENTRE)
    steady = [change for change in published if change.window_end_ms > START_MS + 25 * MINUTE_MS]
    # Its own average is at the cap of 3.0, and a quarter of its price is that of the calm ring around: 2.5.
    assert published[0].multiplier < steady[0].multiplier
    assert {change.multiplier for change in steady} == {2.5}
    # Unchanged, a price is published again when a minute is left of its five.
    gaps = {after.window_end_ms - before.window_end_ms for before, after in itertools.pairwise(steady)}
    assert gaps == {4 * MINUTE_MS}
    versions = [change.version for change in published]
    assert versions == sorted(set(versions))
    for before, after in itertools.pairwise(published):
        assert after.window_end_ms <= before.valid_until_ms


def test_a_city_asleep_skips_the_night() -> None:
    city = City(rules=RULES)
    city.apply(Requested(at_ms=START_MS, cell=CENTRE, area=parent(CENTRE), ride_id="a", rider_id="a"))
    ends = []
    later_ms = START_MS + 365 * 24 * 60 * MINUTE_MS
    city.apply(Requested(at_ms=later_ms, cell=CENTRE, area=parent(CENTRE), ride_id="b", rider_id="b"))
    while (end_ms := city.next_end(later_ms + 10 * MINUTE_MS)) is not None:
        ends.append(end_ms)
        city.close_minute(end_ms)
    assert len(ends) < 200
    assert later_ms + MINUTE_MS in ends
    assert city.late_count == 0


def test_roll_up_cells_are_counted_from_the_point_and_survive_a_restart() -> None:
    """Near its edge a pricing cell reaches into another roll-up cell than its parent."""
    beyond = next(other for other in map(parent, ring(CENTRE)) if other != parent(CENTRE))
    city = City(rules=RULES, least_counts=1.0)
    for number, area in enumerate([parent(CENTRE), beyond, beyond]):
        at_ms = START_MS + number * 1000
        city.apply(Requested(at_ms=at_ms, cell=CENTRE, area=area, ride_id=f"r{number}", rider_id=f"u{number}"))
    rows = json.loads(json.dumps(city.changed_rows()))
    again = City(rules=RULES, least_counts=1.0)
    again.restore(state=None, windows=rows, slots={}, drivers={})
    for one in (city, again):
        closed: list[MinuteClosed] = []
        while (end_ms := one.next_end(START_MS + SLOT_MS)) is not None:
            closed.append(one.close_minute(end_ms))
        (slot,) = [minute.slot for minute in closed if minute.slot is not None]
        assert slot.pickups == {CENTRE: 3, parent(CENTRE): 1, beyond: 2}
        assert {made.cell for minute in closed for made in minute.demand.forecasts} == {CENTRE, parent(CENTRE), beyond}


def test_slots_of_a_version_that_knew_no_roll_up_cells_count_for_the_parents() -> None:
    old, new = City(rules=RULES, least_counts=1.0), City(rules=RULES, least_counts=1.0)
    number = START_MS // SLOT_MS
    state = {"closed_until_ms": START_MS + SLOT_MS, "late_count": 0, "prices": {}}
    old.restore(state=state, windows={}, slots={number: {CENTRE: 5}}, drivers={})
    new.restore(state=state, windows={}, slots={number: {CENTRE: 5, parent(CENTRE): 5}}, drivers={})
    for one in (old, new):
        one.apply(Requested(at_ms=START_MS + SLOT_MS, cell=CENTRE, area=parent(CENTRE), ride_id="r", rider_id="u"))
    made = []
    for one in (old, new):
        forecasts: list[CellForecast] = []
        while (end_ms := one.next_end(START_MS + 2 * SLOT_MS)) is not None:
            forecasts.extend(one.close_minute(end_ms).demand.forecasts)
        made.append(forecasts)
    assert made[0] == made[1]
    assert {forecast.cell for forecast in made[0]} == {CENTRE, parent(CENTRE)}


def test_a_cell_with_few_recent_pickups_gets_no_forecast() -> None:
    city = City(rules=RULES)  # at least three, which halve each day
    quiet = CELLS[-1]
    for number, cell in enumerate([CENTRE] * 4 + [quiet] * 2):
        at_ms = START_MS + number * 1000
        city.apply(Requested(at_ms=at_ms, cell=cell, area=parent(cell), ride_id=f"r{number}", rider_id=f"u{number}"))
    forecasts: list[CellForecast] = []
    while (end_ms := city.next_end(START_MS + SLOT_MS)) is not None:
        forecasts.extend(city.close_minute(end_ms).demand.forecasts)
    assert CENTRE in {made.cell for made in forecasts}
    assert quiet not in {made.cell for made in forecasts}
