"""The destination model: back-off, time, decay, habits."""

from datetime import UTC, datetime

import pytest
from recommender.domain.areas import Area, Areas
from recommender.domain.destinations import DestinationModel, Reason
from recommender.domain.trips import Trip, is_weekend, wall_seconds

MONDAY_8 = wall_seconds(datetime(2023, 1, 2, 8, 0, tzinfo=UTC))
HOUR, DAY = 3600.0, 86400.0
HOME, OFFICE, BAR, FAR = range(4)


def city() -> Areas:
    return Areas(
        [
            Area(key=10, lat=40.70, lng=-74.00),
            Area(key=20, lat=40.75, lng=-74.00),
            Area(key=30, lat=40.70, lng=-73.98),
            Area(key=40, lat=40.90, lng=-73.80),
        ],
        capacity=8,
    )


def learned(*trips: tuple[int, int, float, int], rider_id: str | None = None) -> DestinationModel:
    model = DestinationModel(city())
    for origin, destination, at_s, count in trips:
        for _ in range(count):
            model.observe(Trip(origin=origin, destination=destination, started_s=at_s, rider_id=rider_id))
    return model


def test_without_any_trip_every_area_is_ranked_by_gravity() -> None:
    answer = DestinationModel(city()).rank(HOME, MONDAY_8)
    assert sorted(option.area for option in answer) == [HOME, OFFICE, BAR, FAR]
    assert sum(option.share for option in answer) == pytest.approx(1.0)
    assert {option.reason for option in answer} <= {Reason.NEAR_AND_POPULAR, Reason.USUAL_AROUND_HERE}


def test_an_unknown_origin_falls_back_to_its_surroundings() -> None:
    model = learned((BAR, OFFICE, MONDAY_8, 40))
    best = model.rank(HOME, MONDAY_8, limit=1)[0]
    assert (best.area, best.reason) == (OFFICE, Reason.USUAL_AROUND_HERE)


def test_the_hour_decides_between_two_destinations() -> None:
    model = learned((HOME, OFFICE, MONDAY_8, 60), (HOME, BAR, MONDAY_8 + 13 * HOUR, 60))
    morning, evening = model.rank(HOME, MONDAY_8 + DAY), model.rank(HOME, MONDAY_8 + DAY + 13 * HOUR)
    assert (morning[0].area, morning[0].reason) == (OFFICE, Reason.USUAL_AT_THIS_HOUR)
    assert (evening[0].area, evening[0].reason) == (BAR, Reason.USUAL_AT_THIS_HOUR)


def test_weekend_counts_do_not_speak_for_weekdays() -> None:
    saturday = MONDAY_8 + 5 * DAY
    assert is_weekend(saturday)
    model = learned((HOME, BAR, saturday, 50), (HOME, OFFICE, MONDAY_8, 45))
    assert model.rank(HOME, MONDAY_8 + 7 * DAY)[0].area == OFFICE
    assert model.rank(HOME, saturday + 7 * DAY)[0].area == BAR


def test_old_trips_fade() -> None:
    model = learned((HOME, BAR, MONDAY_8, 30), (HOME, OFFICE, MONDAY_8 + 728 * DAY, 10))
    assert model.rank(HOME, MONDAY_8 + 735 * DAY)[0].area == OFFICE


def test_counts_survive_the_rescaling_of_many_years() -> None:
    model = learned((HOME, OFFICE, MONDAY_8, 30), (HOME, BAR, MONDAY_8 + 20 * 364 * DAY, 30))
    answer = model.rank(HOME, MONDAY_8 + 20 * 364 * DAY)
    assert answer[0].area == BAR
    assert sum(option.share for option in answer) == pytest.approx(1.0)


def test_the_riders_own_habit_comes_first_and_says_so() -> None:
    model = learned((HOME, BAR, MONDAY_8, 20))
    for week in range(4):
        model.observe(Trip(origin=HOME, destination=FAR, started_s=MONDAY_8 + week * 7 * DAY, rider_id="rider-1"))
    mine = model.rank(HOME, MONDAY_8 + 28 * DAY, rider_id="rider-1")[0]
    assert (mine.area, mine.reason) == (FAR, Reason.RIDER_AT_THIS_HOUR)
    assert model.rank(HOME, MONDAY_8 + 28 * DAY + 8 * HOUR, rider_id="rider-1")[0].reason == Reason.RIDER_FROM_HERE
    assert model.rank(HOME, MONDAY_8 + 28 * DAY, rider_id="rider-2")[0].area == BAR


def test_the_order_of_learning_does_not_matter() -> None:
    trips = [(HOME, OFFICE, MONDAY_8 + day * DAY, 3) for day in range(5)] + [(HOME, BAR, MONDAY_8 + DAY, 4)]
    forward, backward = learned(*trips), learned(*reversed(trips))
    for one, other in zip(forward.rank(HOME, MONDAY_8), backward.rank(HOME, MONDAY_8), strict=True):
        assert one.area == other.area
        assert one.share == pytest.approx(other.share, rel=0.01)


def test_best_agrees_with_rank_without_habits() -> None:
    model = learned((HOME, OFFICE, MONDAY_8, 6), (HOME, BAR, MONDAY_8, 3))
    assert model.best(HOME, MONDAY_8, limit=3) == [option.area for option in model.rank(HOME, MONDAY_8, limit=3)]


def test_areas_beyond_capacity_are_taken_for_the_nearest() -> None:
    areas = Areas([Area(key=1, lat=40.0, lng=-74.0), Area(key=2, lat=41.0, lng=-74.0)], capacity=2)
    assert areas.index_of(Area(key=3, lat=40.9, lng=-74.0)) == 1
    assert len(areas) == 2


def test_a_question_from_the_far_future_changes_nothing() -> None:
    model = learned((HOME, OFFICE, MONDAY_8, 30))
    before = model.rank(HOME, MONDAY_8)
    model.rank(HOME, MONDAY_8 + 500 * 365 * DAY)
    assert model.rank(HOME, MONDAY_8) == before
