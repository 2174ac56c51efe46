"""The hire's transition table, and time."""

from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from bike.domain.errors import BikeTaken, WrongState
from bike.domain.hire import TRANSITIONS, Bike, Hire, HireState, Place, Step, Tariff

NOW = datetime(2014, 5, 1, 8, tzinfo=UTC)
HERE = Place(lat=40.75, lng=-73.98, cell="882a100d29fffff")


def hire(state: HireState = HireState.RESERVED) -> Hire:
    return Hire(
        hire_id="h1",
        bike_id="b1",
        rider_id="r1",
        state=state,
        seq=1,
        pickup=HERE,
        reserved_at=NOW,
        expires_at=NOW + timedelta(minutes=10),
        started_at=NOW if state in {HireState.IN_USE, HireState.RETURNED} else None,
        simulated=False,
    )


@pytest.mark.parametrize(("state", "step"), list(product(HireState, [Step.UNLOCK, Step.RETURN])))
def test_each_step_follows_the_table(state: HireState, step: Step) -> None:
    at = NOW + timedelta(minutes=1)

    def take() -> Hire:
        if step is Step.UNLOCK:
            return hire(state).unlock(at=at)
        return hire(state).bring_back(HERE, distance_m=500, tariff=Tariff(), at=at)

    expected = TRANSITIONS.get((state, step))
    if expected is None:
        with pytest.raises(WrongState):
            take()
    else:
        assert (take().state, take().seq) == (expected, 2)


def test_a_reservation_lapses_by_the_clock_alone() -> None:
    just_in_time = NOW + timedelta(minutes=10) - timedelta(microseconds=1)
    assert hire().unlock(at=just_in_time).state is HireState.IN_USE
    assert hire().as_of(NOW + timedelta(minutes=10)).state is HireState.LAPSED
    with pytest.raises(WrongState) as refused:
        hire().unlock(at=NOW + timedelta(minutes=10))
    assert refused.value.state == "lapsed"
    assert hire(HireState.IN_USE).as_of(NOW + timedelta(days=1)).state is HireState.IN_USE


def test_a_bike_is_taken_until_the_reservation_lapses_or_the_hire_ends() -> None:
    bike = Bike(bike_id="b1", place=HERE, hire_id="h1")
    with pytest.raises(BikeTaken):
        bike.give_to("h2", holder=hire(), now=NOW)
    with pytest.raises(BikeTaken):
        bike.give_to("h2", holder=hire(HireState.IN_USE), now=NOW + timedelta(days=1))
    assert bike.give_to("h2", holder=hire(), now=NOW + timedelta(minutes=10)).hire_id == "h2"
    assert bike.give_to("h2", holder=hire(HireState.RETURNED), now=NOW).hire_id == "h2"


def test_minutes_begun_are_paid() -> None:
    tariff = Tariff(unlock_minor=100, per_minute_minor=25)
    assert [tariff.fare_minor(seconds) for seconds in (0, 1, 60, 61)] == [100, 125, 125, 150]
    ended = hire(HireState.IN_USE).bring_back(HERE, distance_m=1, tariff=tariff, at=NOW + timedelta(seconds=61))
    assert (ended.fare_minor, ended.duration_s) == (150, 61)
