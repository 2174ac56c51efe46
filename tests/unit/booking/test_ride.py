"""The ride's transition table, walked."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path

import pytest
from booking.app.permissions import may_see
from booking.domain.caller import Caller, Role
from booking.domain.errors import NotYourRide, WrongState
from booking.domain.place import Place
from booking.domain.ride import TERMINAL, TRANSITIONS, WAITING, Ride, RideState, Step

NOW = datetime(2014, 5, 1, 8, tzinfo=UTC)
HERE = Place(lat=40.75, lng=-73.98, cell="882a100d29fffff")


def ride(state: RideState = RideState.REQUESTED) -> Ride:
    with_driver = state in {RideState.MATCHED, RideState.ARRIVED, RideState.IN_PROGRESS, RideState.COMPLETED}
    return Ride(
        ride_id="ride",
        quote_id="quote",
        rider_id="rider",
        pickup=HERE,
        dropoff=HERE,
        passengers=1,
        route_m=1_000,
        fare_minor=1_000,
        multiplier=1.0,
        surge_version=None,
        requested_at=NOW,
        updated_at=NOW,
        simulated=False,
        state=state,
        driver_id="driver" if with_driver else None,
    )


def take(one: Ride, step: Step) -> Ride:
    at = NOW + timedelta(seconds=1)
    match step:
        case Step.MATCH:
            return one.match("driver", eta_s=60, at=at)
        case Step.ARRIVE:
            return one.arrive(at=at)
        case Step.START:
            return one.start(at=at)
        case Step.COMPLETE:
            return one.complete(distance_m=1_000, at=at)
        case Step.CANCEL:
            return one.cancel(by="rider", reason="changed my mind", at=at)
        case Step.REDISPATCH:
            return one.redispatch(at=at)
        case Step.GIVE_UP:
            return one.give_up(reason="timeout", at=at)
        case Step.REPRICE:
            return one.reprice(dropoff=HERE, route_m=900, fare_minor=900, at=at)
        case Step.POOL:
            return one.pool("other", fare_minor=800, at=at)


NEXT = {
    RideState.REQUESTED: {
        Step.MATCH: RideState.MATCHED,
        Step.CANCEL: RideState.CANCELLED,
        Step.GIVE_UP: RideState.UNMATCHED,
        Step.REPRICE: RideState.REQUESTED,
        Step.POOL: RideState.REQUESTED,
    },
    RideState.MATCHED: {
        Step.ARRIVE: RideState.ARRIVED,
        Step.CANCEL: RideState.CANCELLED,
        Step.REDISPATCH: RideState.REDISPATCHED,
        Step.GIVE_UP: RideState.UNMATCHED,
        Step.REPRICE: RideState.MATCHED,
    },
    RideState.ARRIVED: {
        Step.START: RideState.IN_PROGRESS,
        Step.CANCEL: RideState.CANCELLED,
        Step.REDISPATCH: RideState.REDISPATCHED,
        Step.GIVE_UP: RideState.UNMATCHED,
        Step.REPRICE: RideState.ARRIVED,
    },
    RideState.IN_PROGRESS: {
        Step.COMPLETE: RideState.COMPLETED,
        Step.REPRICE: RideState.IN_PROGRESS,
    },
    RideState.REDISPATCHED: {
        Step.MATCH: RideState.MATCHED,
        Step.CANCEL: RideState.CANCELLED,
        Step.GIVE_UP: RideState.UNMATCHED,
        Step.REPRICE: RideState.REDISPATCHED,
    },
    RideState.COMPLETED: {},
    RideState.CANCELLED: {},
    RideState.UNMATCHED: {},
}
"""What each step makes of a ride, written down apart from booking's own table."""


@pytest.mark.parametrize(("state", "step"), list(product(RideState, Step)))
def test_each_step_leads_where_it_should_and_counts_one_event(state: RideState, step: Step) -> None:
    before = ride(state)
    expected = NEXT[state].get(step)
    if expected is None:
        with pytest.raises(WrongState) as refused:
            take(before, step)
        assert (refused.value.state, refused.value.step) == (state, step)
        return
    after = take(before, step)
    assert after.state is expected
    assert after.seq == before.seq + 1
    assert after.updated_at == NOW + timedelta(seconds=1)


def test_booking_prints_the_table_that_it_works_by() -> None:
    assert {(state, step): after for state, steps in NEXT.items() for step, after in steps.items()} == TRANSITIONS
    assert {state for state, steps in NEXT.items() if not steps} == TERMINAL
    assert {RideState.REQUESTED, RideState.REDISPATCHED} == WAITING


def test_a_driver_who_cancels_is_remembered_and_the_next_wait_has_a_timer_of_its_own() -> None:
    redispatched = take(ride(RideState.ARRIVED), Step.REDISPATCH)
    assert redispatched.declined == ("driver",)
    assert (redispatched.driver_id, redispatched.matched_at, redispatched.arrived_at) == (None, None, None)
    assert redispatched.timer_seq == redispatched.seq
    repriced = take(redispatched, Step.REPRICE)
    assert repriced.timer_seq == redispatched.timer_seq


def test_the_last_driver_of_a_ride_that_is_given_up_is_remembered() -> None:
    given_up = replace(ride(RideState.MATCHED), declined=("a", "b", "c")).give_up(reason="redispatch_limit", at=NOW)
    assert (given_up.driver_id, given_up.declined, given_up.redispatches) == (None, ("a", "b", "c", "driver"), 3)
    last = Caller(role=Role.DRIVER, subject="driver")
    assert may_see(last, given_up), "a driver reads the rides that were once the driver's"
    timed_out = replace(ride(), declined=("a",)).give_up(reason="timeout", at=NOW)
    assert (timed_out.declined, timed_out.redispatches) == (("a",), 1)


def test_each_state_of_an_open_ride_has_a_timer_of_its_own() -> None:
    matched = take(ride(), Step.MATCH)
    assert matched.timer_seq == matched.seq == 2
    arrived = take(matched, Step.ARRIVE)
    assert arrived.timer_seq == arrived.seq == 3
    assert take(arrived, Step.REPRICE).timer_seq == 3
    started = take(arrived, Step.START)
    assert started.timer_seq == started.seq == 4


def test_a_ride_never_goes_back_in_time() -> None:
    late = replace(ride(), updated_at=NOW + timedelta(minutes=5))
    assert late.match("driver", eta_s=1, at=NOW).matched_at == NOW + timedelta(minutes=5)


def test_only_its_driver_takes_steps() -> None:
    assert ride(RideState.MATCHED).by_driver("driver").driver_id == "driver"
    with pytest.raises(NotYourRide):
        ride(RideState.MATCHED).by_driver("another")
    with pytest.raises(NotYourRide):
        ride().by_driver("driver")


def test_the_stage_of_a_second_wait_is_requested() -> None:
    assert ride(RideState.REDISPATCHED).stage == "requested"
    assert ride(RideState.ARRIVED).stage == "arrived"


def test_the_readme_prints_the_table() -> None:
    readme = (Path(__file__).resolve().parents[3] / "services" / "booking" / "README.md").read_text()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in readme.splitlines() if "|" in line]
    header = next(row for row in rows if row[0].startswith("from"))
    assert header[1:] == [step.name.lower() for step in Step]
    printed = {
        (RideState(row[0]), Step[name.upper()]): RideState(cell)
        for row in rows
        if row[0] in set(RideState)
        for name, cell in zip(header[1:], row[1:], strict=True)
        if cell != "·"
    }
    assert printed == dict(TRANSITIONS)
