"""Pooled rides: both riders agree, one driver serves both, and who is left alone pays the fare of before."""

from datetime import UTC, datetime, timedelta
from typing import TypeVar

import pytest
from booking.adapters.streams.service import _command
from booking.app.cancel_ride import CancelRide
from booking.app.drive import CompleteRide, ReportArrival, StartRide
from booking.app.drivers import GoOnline, ReportLocation
from booking.app.elapse import Elapse
from booking.app.offer_quote import OfferQuote
from booking.app.policy import Policy
from booking.app.pool_ride import PoolRide
from booking.app.ports import Command
from booking.app.request_ride import RequestRide
from booking.app.world import World
from booking.domain.driver import DriverStatus
from booking.domain.errors import CannotPool, RidePooled
from booking.domain.fare import Tariff
from booking.domain.place import Place
from booking.domain.ride import Ride
from hailbus import Event
from ride_events.drivers import DriverBecameBusy, DriverBecameFree
from ride_events.rides import RidePooled as RidePooledEvent
from ride_events.rides import RideRepriced
from ride_events.timers import RideOverdue

START = datetime(2014, 5, 1, 8, tzinfo=UTC)
HERE = Place(lat=40.75, lng=-73.98, cell="882a100d29fffff")
THERE = Place(lat=40.70, lng=-74.00, cell="882a1072d7fffff")
FAR = Place(lat=40.78, lng=-73.98, cell="882a100897fffff")
A = TypeVar("A")


class City:
    """A world without a database, with two rides that wait."""

    def __init__(self) -> None:
        self.world = World(Policy())
        self.events: list[Event] = []
        self.timers: dict[str, Event] = {}

    def do(self, command: Command[A], after_s: float = 10) -> A:
        self.world.begin(START + timedelta(seconds=after_s))
        try:
            result = command.decide(self.world)
        except BaseException:
            self.world.undo()
            raise
        changes = self.world.take_changes()
        self.events += [one.event for one in changes.outgoing]
        for schedule_id in changes.cancelled:
            self.timers.pop(schedule_id, None)
        self.timers.update({name: timer.event for name, timer in changes.timers.items()})
        return result

    def elapse(self, name: str) -> bool:
        """Let a timer of a ride elapse at its time."""
        timer = self.timers.pop(name)
        assert isinstance(timer, RideOverdue)
        return self.do(_command(timer), (timer.due_at - START).total_seconds()) is True

    def timers_of(self, *names: str) -> set[str]:
        return {name for name in self.timers if name.rpartition(":")[2] in names}

    def request(
        self,
        name: str,
        *,
        pickup: Place = HERE,
        passengers: int = 1,
        after_s: float = 0,
        seeks_partner: bool = False,
    ) -> Ride:
        command = OfferQuote(
            quote_id=f"q-{name}", rider_id=f"r-{name}", pickup=pickup, dropoff=THERE, passengers=passengers
        )
        self.do(command, after_s)
        return self.do(RequestRide(ride_id=name, quote_id=f"q-{name}", seeks_partner=seeks_partner), after_s)

    def agree(self) -> None:
        for one, other in ("ab", "ba"):
            self.do(PoolRide(ride_id=one, partner_ride_id=other))

    def of(self, kind: type[A]) -> list[A]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def city() -> City:
    city = City()
    city.request("a")
    city.request("b", after_s=5)
    return city


def test_one_wish_is_no_pool_and_says_nothing_of_the_other_ride(city: City) -> None:
    answers = [city.do(PoolRide(ride_id="a", partner_ride_id=other)) for other in ("b", "nobody's")]
    assert [(ride.seq, ride.pooled_with, ride.pool_wish) for ride in answers] == [(1, None, "b"), (1, None, "nobody's")]
    assert not city.of(RidePooledEvent)


def test_both_pay_a_fifth_less_and_one_driver_serves_both(city: City) -> None:
    single = city.world.ride("a").fare_minor
    city.agree()
    told = [(e.ride_id, e.seq, e.partner_ride_id, e.pickup_order) for e in city.of(RidePooledEvent)]
    assert told == [("a", 2, "b", 1), ("b", 2, "a", 2)]
    assert {city.world.ride(name).fare_minor for name in "ab"} == {Tariff().pooled_minor(single)}
    city.do(GoOnline(driver_id="d1", position=HERE))
    assert {city.world.ride(name).driver_id for name in "ab"} == {"d1"}
    for name in "ab":
        city.do(ReportArrival(ride_id=name, driver_id="d1"), 20)
        city.do(StartRide(ride_id=name, driver_id="d1"), 30)
    city.do(CompleteRide(ride_id="a", driver_id="d1", distance_m=6_000), 9_000)
    driver = city.world.driver("d1")
    assert driver is not None
    assert (driver.status, driver.ride_id) == (DriverStatus.BUSY, "b")
    done = city.do(CompleteRide(ride_id="b", driver_id="d1", distance_m=6_000), 9_000)
    assert done.fare_minor == Tariff().pooled_minor(single), "the way to the other's ends is no cost of the rider's"
    assert [event.ride_id for event in city.of(DriverBecameBusy)] == ["a", "b"]
    assert len(city.of(DriverBecameFree)) == 1


def test_who_is_left_alone_pays_the_fare_of_before(city: City) -> None:
    single = city.world.ride("b").fare_minor
    city.agree()
    city.do(GoOnline(driver_id="d1", position=HERE))
    city.do(CancelRide(ride_id="a", by="rider", reason="late"), 20)
    left = city.world.ride("b")
    assert (left.fare_minor, left.pooled_with, left.driver_id) == (single, None, "d1")
    assert [(event.ride_id, event.reason) for event in city.of(RideRepriced)] == [("b", "pool_ended")]
    assert not city.of(DriverBecameFree)


def test_a_rider_on_board_keeps_the_lower_fare(city: City) -> None:
    city.agree()
    city.do(GoOnline(driver_id="d1", position=HERE))
    city.do(ReportArrival(ride_id="b", driver_id="d1"), 20)
    city.do(StartRide(ride_id="b", driver_id="d1"), 30)
    pooled = city.world.ride("b").fare_minor
    city.do(CancelRide(ride_id="a", by="driver", driver_id="d1", reason="not there"), 40)
    assert (city.world.ride("b").fare_minor, city.world.ride("a").pooled_with) == (pooled, None)
    assert [event.ride_id for event in city.of(RideRepriced)] == ["a"]


def test_rides_that_do_not_fit_are_not_pooled(city: City) -> None:
    city.request("far", pickup=FAR)
    city.request("full", passengers=4)
    city.request("late", after_s=301)
    for name, why in (("far", "pickups"), ("full", "seats"), ("late", "300 s apart")):
        city.do(PoolRide(ride_id=name, partner_ride_id="a"))
        with pytest.raises(CannotPool, match=why):
            city.do(PoolRide(ride_id="a", partner_ride_id=name))
    with pytest.raises(CannotPool, match="same ride"):
        city.do(PoolRide(ride_id="a", partner_ride_id="a"))


def test_a_pooled_ride_has_one_partner(city: City) -> None:
    city.agree()
    with pytest.raises(RidePooled):
        city.do(PoolRide(ride_id="a", partner_ride_id="c"))


def seeking_pair(*, online: bool = True) -> City:
    """Two rides that seek a partner, and a free driver beside them."""
    city = City()
    if online:
        city.do(GoOnline(driver_id="d1", position=HERE))
    for name in "ab":
        city.request(name, seeks_partner=True)
    return city


def test_a_ride_that_seeks_a_partner_leaves_free_drivers_alone() -> None:
    city = seeking_pair()
    assert [city.world.ride(name).driver_id for name in "ab"] == [None, None]
    city.do(GoOnline(driver_id="d2", position=HERE))
    assert [city.world.ride(name).driver_id for name in "ab"] == [None, None]
    assert city.timers_of("a", "b") == {"partner_wait:a", "partner_wait:b"}


def test_rides_that_sought_each_other_get_one_driver_at_once() -> None:
    city = seeking_pair()
    city.agree()
    for name in "ab":
        ride = city.world.ride(name)
        assert (ride.driver_id, ride.seq, ride.seeks_partner) == ("d1", 3, False)
    assert city.timers_of("a", "b") == {"pickup_timeout:a", "pickup_timeout:b"}


def test_pooled_rides_without_a_driver_wait_until_the_match_timeout() -> None:
    city = seeking_pair(online=False)
    city.agree()
    assert city.timers_of("a", "b") == {"match_timeout:a", "match_timeout:b"}
    city.do(GoOnline(driver_id="d1", position=HERE), 20)
    assert {city.world.ride(name).driver_id for name in "ab"} == {"d1"}
    assert city.timers_of("a", "b") == {"pickup_timeout:a", "pickup_timeout:b"}


def test_a_ride_that_sought_no_partner_can_be_pooled_with_one_that_does() -> None:
    city = City()
    city.request("a")
    city.request("b", seeks_partner=True)
    city.agree()
    assert city.timers_of("a", "b") == {"match_timeout:a", "match_timeout:b"}


def test_a_ride_that_finds_no_partner_goes_alone() -> None:
    city = seeking_pair()
    single = city.world.ride("a").fare_minor
    city.do(ReportLocation(driver_id="d1", position=HERE), 115)
    assert city.world.ride("a").driver_id is None
    assert city.elapse("partner_wait:a")
    ride = city.world.ride("a")
    assert (ride.driver_id, ride.fare_minor, ride.pooled_with) == ("d1", single, None)
    assert ride.matched_at == START + Policy().partner_wait
    assert city.elapse("partner_wait:b")
    assert city.timers_of("a", "b") == {"pickup_timeout:a", "match_timeout:b"}
    again = Elapse(kind="partner_wait", subject_id="b", seq=1, due_at=START)
    assert not city.do(again, 200)


def test_a_rider_may_cancel_while_seeking_a_partner() -> None:
    city = seeking_pair()
    city.do(CancelRide(ride_id="a", by="rider", reason="late"))
    assert city.timers_of("a", "b") == {"partner_wait:b"}
    assert not city.world.ride("a").seeks_partner


@pytest.mark.parametrize(("single", "pooled"), [(0, 0), (1, 1), (2, 2), (3, 2), (800, 640), (2_397, 1_918)])
def test_the_pooled_fare_is_four_fifths_rounded_half_up(single: int, pooled: int) -> None:
    assert Tariff().pooled_minor(single) == pooled
