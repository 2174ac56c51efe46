"""The ledger's own computation of surge's prices, beside surge's."""

import random

import h3
import pytest
from hailbus_demo.ledger.lines.pricing import _busy_intervals
from hailbus_demo.ledger.lines.repricing import Riders, Update, demand_at, pricing_cell, reprice
from hailbus_demo.ledger.log import LogReader
from ride_events.geo import ROLL_UP_RESOLUTION
from surge.domain.pricing import CALM, CellPrice, PricingRules
from surge.domain.pricing import reprice as reprice_by_surge
from surge.domain.windows import Activity

CENTRE = "882a100d25fffff"
CELLS = sorted(h3.grid_disk(CENTRE, 2))
START = 23_317_500
MINUTES = 40


def ring(cell: str) -> list[str]:
    return sorted(h3.grid_ring(cell, 1))


def expected_updates(
    asked: Riders, quoted: Riders, sightings: dict[int, dict[str, tuple[int, bool, str]]], until: int
) -> list[Update]:
    """Count riders and drivers minute by minute, and price them by surge's own functions."""
    rules = PricingRules()
    prices: dict[str, CellPrice] = {}
    updates = []
    for end in range(START - 1, until + 1):
        minutes = range(end - 5, end)
        requests = {(cell, rider) for (cell, at), riders in asked.items() if at in minutes for rider in riders}
        quotes = {(cell, rider) for (cell, at), riders in quoted.items() if at in minutes for rider in riders}
        free = [
            cell
            for at_ms, busy, cell in sightings.get(end - 1, {}).values()
            if not busy and cell and at_ms > end * 60_000 - 30_000
        ]
        activity = {}
        for cell in {cell for cell, _ in requests | quotes} | set(prices):
            demand = 1.0 * sum(one == cell for one, _ in requests) + 0.3 * sum(
                one == cell for one, _ in quotes - requests
            )
            supply = free.count(cell) + 0.5 * sum(free.count(other) for other in ring(cell))
            activity[cell] = Activity(demand=demand, supply=supply)
        after = reprice_by_surge(prices, activity, ring=ring, elapsed_s=60, rules=rules)
        for cell, price in sorted(after.items()):
            stays = price.multiplier == prices.get(cell, CALM).multiplier
            if stays and (price.multiplier == 1.0 or price.valid_until_ms - end * 60_000 > 60_000):
                continue
            after[cell] = CellPrice(
                average=price.average,
                level=price.level,
                multiplier=price.multiplier,
                valid_until_ms=end * 60_000 + 300_000,
            )
            counted = activity.get(cell)
            supply = free.count(cell) + 0.5 * sum(free.count(other) for other in ring(cell))
            updates.append(Update(cell, end, price.multiplier, 0.0 if counted is None else counted.demand, supply))
        prices = after
    return updates


def rounded(updates: list[Update]) -> list[Update]:
    return sorted(one._replace(demand=round(one.demand, 9), supply=round(one.supply, 9)) for one in updates)


@pytest.mark.parametrize("busy", [2, 6, 30])
def test_prices_are_those_that_surge_computes(busy: int) -> None:
    seed = random.SystemRandom().randrange(1_000_000)
    print(f"seed {seed}")
    rng = random.Random(seed)
    asked: Riders = {}
    quoted: Riders = {}
    reader = LogReader()
    for minute in range(START, START + MINUTES):
        if minute % 20 < 14:
            for _ in range(rng.randrange(busy)):
                rider = f"rider-{rng.randrange(60)}"
                kind = rng.choice([asked, quoted])
                kind.setdefault((rng.choice(CELLS[:5]), minute), set()).add(rider)
        reader.sightings[minute] = {
            f"driver-{number}": (
                (minute + 1) * 60_000 - rng.choice([0, 1, 15_000, 29_999, 30_000, 30_001]),
                rng.random() < 0.4,
                rng.choice(["", h3.cell_to_children(rng.choice(CELLS), 9)[0], rng.choice(CELLS)]),
            )
            for number in range(rng.randrange(8))
        }
    coarse = {
        minute: {
            driver: (at_ms, is_busy, pricing_cell(cell) or "" if cell else "")
            for driver, (at_ms, is_busy, cell) in drivers.items()
        }
        for minute, drivers in reader.sightings.items()
    }
    until = START + MINUTES + 20
    expected = expected_updates(asked, quoted, coarse, until)
    assert rounded(reprice(reader, asked, quoted, until_ms=until * 60_000)) == rounded(expected)
    assert busy < 30 or any(one.multiplier > 1.5 for one in expected)


def test_a_rise_spreads_to_the_cells_between_two_busy_ones() -> None:
    one, other = CENTRE, ring(CENTRE)[0]
    between = set(ring(one)) & set(ring(other))
    assert len(between) == 2
    asked = {(cell, START): {f"{cell}-{number}" for number in range(30)} for cell in (one, other)}
    updates = reprice(LogReader(), asked, {}, until_ms=(START + 5) * 60_000)
    assert {update.cell for update in updates} == {one, other} | between
    # 3 − 2 · 0.5^(4/3) = 2.206 in both, and a quarter of (2 · 2.206 + 4) / 6 over three quarters of 1: 1.1005.
    assert {(update.version, update.multiplier) for update in updates if update.cell in between} == {(START + 4, 1.1)}


def test_a_cell_at_rest_begins_anew() -> None:
    """Its average comes within half a hundredth of 1 in minute 24, and what is left of it is forgotten."""
    asked = {(CENTRE, START + minute): {f"{minute}-{number}" for number in range(3)} for minute in (0, 24)}
    quoted = {(CENTRE, START + 24): {"ada", "ben"}}
    updates = reprice(LogReader(), asked, quoted, until_ms=(START + 32) * 60_000)
    assert rounded(updates) == rounded(expected_updates(asked, quoted, {}, START + 32))
    assert next(update for update in updates if update.version > START + 24).version == START + 26


def test_a_city_that_was_quiet_for_long_is_priced_again() -> None:
    asked = {(CENTRE, minute): {f"rider-{number}" for number in range(30)} for minute in (START, START + 500)}
    updates = reprice(LogReader(), asked, {}, until_ms=(START + 1_000) * 60_000)
    first = [update.version for update in updates if update.version < START + 500]
    again = [update.version - 500 for update in updates if update.version >= START + 500]
    assert first == again
    assert updates[-1].multiplier == 1.0
    assert reprice(LogReader(), {}, {}, until_ms=START * 60_000) == []
    assert reprice(LogReader(), asked, {}, until_ms=(START + 1) * 60_000 - 1) == []


def test_demand_counts_each_rider_once_and_a_request_in_place_of_a_quote() -> None:
    asked = {(CENTRE, START): {"ada", "ben"}, (CENTRE, START + 4): {"ada"}}
    quoted = {(CENTRE, START + 1): {"ada", "cleo"}}
    assert demand_at(asked, quoted, CENTRE, START) == 0
    assert demand_at(asked, quoted, CENTRE, START + 1) == 2
    assert demand_at(asked, quoted, CENTRE, START + 5) == pytest.approx(2.3)
    assert demand_at(asked, quoted, CENTRE, START + 6) == pytest.approx(1.3)
    assert demand_at(asked, quoted, CENTRE, START + 10) == 0


def test_cells_that_are_larger_than_a_priced_one_have_no_price() -> None:
    assert pricing_cell(CENTRE) == CENTRE
    assert pricing_cell(h3.cell_to_children(CENTRE, 10)[0]) == CENTRE
    assert pricing_cell(h3.cell_to_parent(CENTRE, 7)) is None


def test_the_busiest_cell_of_an_interval_is_named() -> None:
    far, centre = h3.latlng_to_cell(41.5, -73.0, 7), h3.cell_to_parent(CENTRE, ROLL_UP_RESOLUTION)
    slot = START // 5
    pickups = {slot - 5: {centre: list(range(9))}, slot: {centre: [9], far: list(range(20, 31))}, slot - 6: {far: [1]}}
    closed = (slot + 1) * 300_000
    busy = _busy_intervals(pickups, closed)
    assert busy == {closed: (far, list(range(20, 31)))}
    assert _busy_intervals(pickups, closed - 1) == {}
    assert _busy_intervals(pickups, None) == {}
    fewer = {**pickups, slot: {centre: [9]}}
    assert _busy_intervals(fewer, closed) == {closed: (centre, list(range(10)))}
    assert _busy_intervals({slot - 5: {centre: list(range(9))}}, closed) == {}
    equal = {slot: {centre: list(range(10)), far: list(range(20, 30))}}
    assert _busy_intervals(equal, closed)[closed][0] == min(centre, far)
