"""The city's table and the simulator: same seed, same plans; rates and places as the table says."""

from collections import Counter
from datetime import UTC, datetime
from itertools import islice
from random import Random

import h3
import pytest
from hailbus_demo.city.plan import HOUR_MS, DriverStarts, DriverStops, RidePlan, as_line, hour_of_week, to_ms, to_text
from hailbus_demo.city.simulate import COMPANION_SHARE, Riders, Simulator, with_company, with_drivers
from hailbus_demo.city.table import City, city_table, kilometres
from hailbus_demo.regions import region_at, split_city

FRIDAY_AT_FIVE = to_ms(datetime(2014, 5, 2, 17, tzinfo=UTC))


@pytest.fixture(scope="module")
def city() -> City:
    return City()


def plans_as_bytes(city: City, *, seed: int, count: int = 3000) -> bytes:
    rides = Simulator(city, seed=seed).rides(FRIDAY_AT_FIVE)
    return "\n".join(as_line(plan) for plan in islice(with_drivers(rides, seed=seed), count)).encode()


def test_same_seed_gives_identical_bytes(city: City) -> None:
    assert plans_as_bytes(city, seed=7) == plans_as_bytes(City(), seed=7)


def test_another_seed_gives_another_city(city: City) -> None:
    assert plans_as_bytes(city, seed=7, count=500) != plans_as_bytes(city, seed=8, count=500)


def test_table_is_whole() -> None:
    table = city_table()
    assert len(table.zones) == 260
    assert table.zones[132].name == "JFK Airport"
    assert len(table.pickups) == 710
    assert all(len(hours) == 168 for hours in table.pickups.values())
    assert all(h3.get_resolution(cell) == 8 for cell in table.pickups)
    assert set(table.pickups) <= set(table.zone_of)
    assert len(table.speed) == 168


def test_hours_of_week_begin_on_monday() -> None:
    assert hour_of_week(to_ms(datetime(2014, 5, 5, tzinfo=UTC))) == 0
    assert hour_of_week(to_ms(datetime(2014, 5, 4, 23, 59, tzinfo=UTC))) == 167
    assert to_text(FRIDAY_AT_FIVE) == "2014-05-02T17:00:00.000Z"


def test_rate_is_the_mean_over_the_week(city: City) -> None:
    simulator = Simulator(city, seed=3, rides_per_minute=2.0)
    week = 168 * HOUR_MS
    count = sum(1 for _ in simulator.rides(FRIDAY_AT_FIVE, FRIDAY_AT_FIVE + week))
    # 20,160 expected; a Poisson count strays by its root, 142.
    assert abs(count - 2.0 * 60 * 168) < 5 * 142


def test_as_many_cells_as_asked_for(city: City) -> None:
    few, many = Simulator(city, seed=1, cells=3), Simulator(city, seed=1, cells=2000)
    assert len(few.cells) == 3
    assert len(set(many.cells)) == 2000
    pickups = {h3.latlng_to_cell(*ride.pickup, 8) for ride in islice(few.rides(FRIDAY_AT_FIVE), 300)}
    # H3's small cells stick out of the large one that they belong to, by less than the ring around it.
    assert pickups <= {near for cell in few.cells for near in h3.grid_disk(cell, 1)}


def test_rides_are_in_order_and_plausible(city: City) -> None:
    rides = list(Simulator(city, seed=5).rides(FRIDAY_AT_FIVE, FRIDAY_AT_FIVE + HOUR_MS))
    assert [r.asks_at_ms for r in rides] == sorted(r.asks_at_ms for r in rides)
    assert len({r.key for r in rides}) == len(rides)
    assert all(r.simulated for r in rides)
    accepted = sum(r.accepts for r in rides) / len(rides)
    assert 0.75 < accepted < 0.85
    assert all(60 <= r.duration_s <= 4 * 3600 and r.distance_m > 0 for r in rides)
    assert Counter(r.gives_up is not None for r in rides)[True] > 0


def test_a_rider_who_takes_a_ride_is_not_drawn_again_before_its_end(city: City) -> None:
    riders = Riders(city, 5)
    booked_until: dict[str, int] = {}
    guests = 0
    for number in range(1200):
        at_ms = FRIDAY_AT_FIVE + number * 6_000
        plan = riders.plan(
            key=f"k-{number}", at_ms=at_ms, pickup=(40.75, -73.99), random=Random(number), accepts=number % 3 != 0
        )
        assert booked_until.get(plan.rider_id, 0) <= at_ms
        if plan.accepts:
            booked_until[plan.rider_id] = at_ms + plan.accepts_after_ms + plan.duration_s * 1000
        guests += plan.rider_id.startswith("guest")
    assert 0 < guests < 400, "a zone has 400 riders; those who come while all of them ride are guests"


def test_some_riders_have_a_companion_who_goes_the_same_way(city: City) -> None:
    rides = list(Simulator(city, seed=6).rides(FRIDAY_AT_FIVE, FRIDAY_AT_FIVE + 2 * HOUR_MS))
    by_key = {ride.key: ride for ride in rides}
    companions = [ride for ride in rides if ride.key.endswith("-companion")]
    share = len(companions) / (len(rides) - len(companions))
    assert 0.7 * COMPANION_SHARE < share < 1.3 * COMPANION_SHARE
    for companion in companions:
        first = by_key[companion.key.removesuffix("-companion")]
        assert first.shares
        assert companion.shares
        assert 5_000 <= companion.asks_at_ms - first.asks_at_ms <= 60_000
        assert first.passengers + companion.passengers <= 4
        for here, there in ((first.pickup, companion.pickup), (first.dropoff, companion.dropoff)):
            assert city.zone_of(here) == city.zone_of(there), "the recommender looks for partners by zone"
            assert kilometres(here, there) < 3
        for count in (2, 3, 4):
            areas = split_city(count)
            assert region_at(first.pickup, areas) == region_at(companion.pickup, areas)
    assert sum(ride.shares for ride in rides) - len(companions) >= len(companions), "only they share"
    assert sum(ride.shares for ride in rides) <= 2 * len(companions) + 2  # the last ones' companions come too late


def test_a_place_without_another_one_near_is_near_itself(city: City) -> None:
    nowhere = (0.0, 0.0)
    near = city.place_near(nowhere, Random(1))
    assert h3.latlng_to_cell(*near, 8) == h3.latlng_to_cell(*nowhere, 8)


def test_drivers_come_before_rides_and_go_home_after_the_last(city: City) -> None:
    rides = Simulator(city, seed=5).rides(FRIDAY_AT_FIVE, FRIDAY_AT_FIVE + HOUR_MS)
    online: set[str] = set()
    most = 0
    last_ride_ms = 0
    for plan in with_drivers(rides, seed=5):
        match plan:
            case DriverStarts():
                assert plan.driver_id not in online
                online.add(plan.driver_id)
            case DriverStops():
                online.remove(plan.driver_id)
            case RidePlan():
                last_ride_ms = plan.asks_at_ms
                assert online, "a rider asked before the first driver came"
        most = max(most, len(online))
    assert not online
    assert most > 100
    assert last_ride_ms > FRIDAY_AT_FIVE


def test_company_of_recorded_rides_is_simulated_and_in_order(city: City) -> None:
    riders = Riders(city, 4)
    recorded = [
        riders.plan(
            key=f"f-{i}", at_ms=FRIDAY_AT_FIVE + i * 9000, pickup=(40.75, -73.99), random=Random(i), recorded=True
        )
        for i in range(1000)
    ]
    everybody = list(with_company(recorded, riders))
    extra = [p for p in everybody if p.simulated]
    assert [p for p in everybody if not p.simulated] == recorded
    assert all(p.gives_up is None and p.accepts for p in recorded)
    assert not any(p.shares for p in everybody), "recorded riders must not share"
    assert [p.asks_at_ms for p in everybody] == sorted(p.asks_at_ms for p in everybody)
    # One in five quotes is not accepted: 250 lookers for 1,000 rides; and about 60 who cancel.
    assert 200 < sum(not p.accepts for p in extra) < 300
    assert 30 < sum(p.gives_up is not None for p in extra) < 95
