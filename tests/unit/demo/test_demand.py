"""More riders than the plan has: as many as asked for, guests all of them, in order of time."""

from __future__ import annotations

from hailbus_demo.city.demand import CROWD_ZONE, SPREAD_MS, Demand
from hailbus_demo.city.plan import DriverStarts, Plan, RidePlan
from hailbus_demo.city.table import City

CITY = City()
NOON_MS = 1_398_945_600_000


def ride(number: int) -> RidePlan:
    return RidePlan(
        key=f"s1-{number}",
        asks_at_ms=NOON_MS + 60_000 * number,
        rider_id=f"rider-{number}",
        pickup=(40.7210, -73.9880),
        dropoff=(40.7527, -73.9772),
        passengers=2,
        distance_m=4_000,
        duration_s=900,
        fleet="f",
        asks_recommender=False,
        shares=False,
        accepts=False,
        accepts_after_ms=4_000,
        max_multiplier=1.2,
        gives_up=None,
        gives_up_after_ms=0,
        driver_cancels=0,
        driver_cancels_after_ms=0,
        boards_after_ms=30_000,
        simulated=False,
    )


def added(demand: Demand, plans: list[Plan]) -> list[RidePlan]:
    """Return the further riders of a plan."""
    found = list(demand.added_to(iter(plans)))
    assert [plan for plan in found if plan in plans] == plans
    return [plan for plan in found if plan not in plans and isinstance(plan, RidePlan)]


def test_nobody_comes_on_top_unless_asked_for() -> None:
    assert added(Demand(CITY), [ride(number) for number in range(50)]) == []


def test_so_many_riders_come_for_each_and_no_driver() -> None:
    demand = Demand(CITY)
    demand.factor = 2.5
    driver = DriverStarts(at_ms=NOON_MS, driver_id="d1", place=(40.7, -74.0))
    plans: list[Plan] = [driver, *(ride(number) for number in range(400))]
    more = added(demand, plans)
    assert 550 < len(more) < 650
    assert len({plan.key for plan in more}) == len({plan.rider_id for plan in more}) == len(more)
    assert all(plan.rider_id.startswith("visitor-") and plan.simulated and plan.accepts for plan in more)
    assert {CITY.zone_of(plan.pickup) for plan in more} == {CITY.zone_of(ride(1).pickup)}
    assert len({plan.dropoff for plan in more}) > 100
    again = Demand(CITY)
    again.factor = 2.5
    assert added(again, plans) == more


def test_a_crowd_gathers_once_at_its_place_and_asks_within_seconds() -> None:
    demand = Demand(CITY)
    demand.gather(40)
    assert demand.gathering == 40
    crowd = added(demand, [ride(1), ride(2)])
    assert demand.gathering == 0
    assert len(crowd) == 40
    assert {CITY.zone_of(plan.pickup) for plan in crowd} == {CROWD_ZONE}
    first = ride(1).asks_at_ms
    assert all(first <= plan.asks_at_ms < first + SPREAD_MS for plan in crowd)
