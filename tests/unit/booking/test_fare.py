"""What a ride costs."""

import math

import pytest
from booking.domain.fare import Tariff
from booking.domain.place import Place, great_circle_m
from booking.domain.roads import Roads


def test_a_fare_is_base_way_and_time_times_the_multiplier_rounded_half_up() -> None:
    tariff = Tariff(base_minor=300, per_km_minor=134, per_minute_minor=40, minimum_minor=800)
    # 300 + 134 · 5.25 + 40 · 15.5 = 300 + 703.5 + 620 = 1623.5
    assert tariff.fare_minor(distance_m=5_250, duration_s=930, multiplier=1.0) == 1_624
    # 1623.5 · 1.3 = 2110.55
    assert tariff.fare_minor(distance_m=5_250, duration_s=930, multiplier=1.3) == 2_111


def test_a_long_ride_is_metered_to_the_cent() -> None:
    tariff = Tariff(base_minor=0, per_km_minor=134, per_minute_minor=40, minimum_minor=0)
    # 134 · 75 = 10,050 and 40 · 90 = 3,600
    assert tariff.fare_minor(distance_m=75_000, duration_s=5_400, multiplier=1.0) == 13_650


def test_the_tariff_is_that_of_the_readme() -> None:
    tariff = Tariff()
    assert tariff.fare_minor(distance_m=0, duration_s=0, multiplier=1.0) == 800
    # 3.00 + 20 · 1.34 + 30 · 0.40
    assert tariff.fare_minor(distance_m=20_000, duration_s=1_800, multiplier=1.0) == 4_180
    # 3.00 + 10 · 1.34
    assert tariff.fare_minor(distance_m=10_000, duration_s=0, multiplier=1.0) == 1_640
    assert tariff.base_minor == 300


def test_no_fare_is_below_the_minimum_which_surges_as_well() -> None:
    tariff = Tariff(minimum_minor=800)
    assert tariff.fare_minor(distance_m=0, duration_s=0, multiplier=1.0) == 800
    assert tariff.fare_minor(distance_m=0, duration_s=0, multiplier=2.5) == 2_000


def test_the_multiplier_is_the_number_that_was_shown() -> None:
    # 0.1 + 0.2 as floats must not add a cent: 1_000 · 1.1 is 1_100, by binary floats 1_100.0000000000002
    tariff = Tariff(base_minor=1_000, per_km_minor=0, per_minute_minor=0, minimum_minor=0)
    assert tariff.fare_minor(distance_m=1, duration_s=1, multiplier=1.1) == 1_100


def test_ways_are_estimated_from_the_great_circle() -> None:
    times_square = Place(lat=40.7580, lng=-73.9855, cell="")
    jfk = Place(lat=40.6413, lng=-73.7781, cell="")
    assert 21_700 < great_circle_m(times_square, jfk) < 21_900
    assert Roads().way_m(times_square, jfk) == round(great_circle_m(times_square, jfk) * 1.35)
    assert Roads().drive_s(5_000) == 1_000
    assert great_circle_m(jfk, jfk) == 0


def test_a_quarter_of_a_meridian_is_a_quarter_of_the_circumference() -> None:
    equator, pole = Place(lat=0, lng=-74, cell=""), Place(lat=90, lng=-74, cell="")
    assert great_circle_m(equator, pole) == pytest.approx(6_371_000 * math.pi / 2, abs=0.1)


@pytest.mark.parametrize(
    ("quoted", "metered", "final"),
    [
        (2_000, 500, 2_000),
        (2_000, 2_500, 2_000),
        (2_000, 2_501, 2_501),
        # A quarter of a short ride is less than 3.00.
        (800, 1_100, 800),
        (800, 1_101, 1_101),
        (2_000, 4_000, 4_000),
        (2_000, 99_999, 4_000),
    ],
)
def test_a_quoted_fare_is_honoured_within_bounds(quoted: int, metered: int, final: int) -> None:
    assert Tariff().final_minor(quoted_minor=quoted, metered_minor=metered) == final


TIMES_SQUARE = Place(lat=40.7580, lng=-73.9855, cell="")
JFK = Place(lat=40.6413, lng=-73.7781, cell="")


def test_roads_approach_what_trips_say() -> None:
    roads = Roads()
    straight_m = great_circle_m(TIMES_SQUARE, JFK)
    for _ in range(2_000):
        roads = roads.learn(TIMES_SQUARE, JFK, driven_m=round(straight_m * 1.2), took_s=round(straight_m * 1.2 / 9))
    assert roads.detour == pytest.approx(1.2, abs=0.02)
    assert roads.speed_m_per_s == pytest.approx(9, abs=0.1)
    assert roads.trips == 2_000


def test_one_trip_moves_the_estimate_by_little() -> None:
    roads = Roads().learn(TIMES_SQUARE, JFK, driven_m=round(great_circle_m(TIMES_SQUARE, JFK) * 2), took_s=3_000)
    assert roads.detour == pytest.approx(1.35 + 0.65 / 51, abs=1e-4)


@pytest.mark.parametrize(
    ("driven_m", "took_s"),
    [(900_000, 3_000), (10, 3_000), (29_000, 0), (29_000, 100), (29_000, 50_000)],
)
def test_a_trip_that_cannot_be_teaches_nothing(driven_m: int, took_s: int) -> None:
    roads = Roads()
    assert roads.learn(TIMES_SQUARE, JFK, driven_m=driven_m, took_s=took_s) is roads


def test_a_short_trip_teaches_nothing() -> None:
    roads = Roads()
    assert roads.learn(JFK, JFK, driven_m=100, took_s=60) is roads
