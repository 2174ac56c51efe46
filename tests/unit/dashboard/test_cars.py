"""Free cars on the map: few positions are read of them, and a busy car is none."""

from dashboard.domain.cars import Cars
from ride_events import LatLng

HERE, THERE = LatLng(lat=40.75, lng=-73.99), LatLng(lat=40.76, lng=-73.98)


def test_a_car_moves_and_goes() -> None:
    cars = Cars()
    cars.at("a", HERE)
    cars.at("b", HERE)
    cars.at("a", THERE)
    assert cars.places == {0: THERE, 1: HERE}
    cars.changed.clear()
    cars.gone("a")
    cars.gone("a")
    assert (cars.places, cars.changed) == ({1: HERE}, {0})
    cars.at("a", HERE)
    assert cars.places == {1: HERE, 2: HERE}


def test_one_position_a_second_is_read_and_fewer_where_cars_are_many() -> None:
    cars = Cars()
    assert [cars.is_due("a", at) for at in (10_000, 10_500, 11_000, 11_100)] == [True, False, True, False]
    for number in range(1_001):
        cars.at(str(number), HERE)
    assert [cars.is_due("a", at) for at in (12_500, 15_000)] == [False, True]


def test_five_thousand_cars_are_shown_at_most() -> None:
    cars = Cars()
    for number in range(6_000):
        cars.at(str(number), HERE)
    assert len(cars.places) == 5_000
    cars.gone("0")
    cars.at("5999", HERE)
    assert len(cars.places) == 5_000
