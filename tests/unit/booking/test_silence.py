"""Drivers of whom nobody has heard for 30 s get no ride, and are matched again as soon as they report."""

from datetime import UTC, datetime, timedelta

import pytest
from booking.app.cancel_ride import CancelRide
from booking.app.drive import CompleteRide, ReportArrival, StartRide
from booking.app.drivers import GoOffline, GoOnline, HearPosition, ReportLocation
from booking.app.elapse import Elapse
from booking.app.offer_quote import OfferQuote
from booking.app.policy import Policy
from booking.app.ports import Command
from booking.app.request_ride import RequestRide
from booking.app.world import World
from booking.domain.driver import Driver, DriverStatus
from booking.domain.place import Place
from booking.domain.ride import Ride, RideState
from hailbus import Event

START = datetime(2014, 5, 1, 8, tzinfo=UTC)
HERE = Place(lat=40.75, lng=-73.98, cell="882a100d29fffff")
THERE = Place(lat=40.70, lng=-74.00, cell="882a1072d7fffff")


class City:
    """A world without a database."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.world = World(policy or Policy())
        self.reports: list[Event] = []

    def do(self, command: Command[object], after_s: float) -> None:
        self.world.begin(START + timedelta(seconds=after_s))
        command.decide(self.world)
        self.reports += [event for event, _ in self.world.take_changes().reports]

    def ride(self, after_s: float, ride_id: str = "a") -> Ride:
        """Request a ride for a rider of its own."""
        self.do(OfferQuote(quote_id=f"q-{ride_id}", rider_id=f"r-{ride_id}", pickup=HERE, dropoff=THERE), after_s)
        self.do(RequestRide(ride_id=ride_id, quote_id=f"q-{ride_id}"), after_s)
        return self.world.ride(ride_id)

    def driver(self, driver_id: str = "d") -> Driver:
        driver = self.world.driver(driver_id)
        assert driver is not None
        return driver


@pytest.fixture
def city() -> City:
    city = City()
    city.do(GoOnline(driver_id="d", position=HERE), 0)
    return city


def test_a_driver_is_matched_until_30_s_after_the_last_report(city: City) -> None:
    assert city.ride(30).driver_id == "d"


def test_a_driver_who_was_silent_for_longer_is_not_matched(city: City) -> None:
    ride = city.ride(30.001)
    assert (ride.state, ride.driver_id) == (RideState.REQUESTED, None)
    assert city.driver().status is DriverStatus.FREE


def test_the_policy_says_how_long(city: City) -> None:
    patient = City(Policy(silent_after=timedelta(seconds=90)))
    patient.do(GoOnline(driver_id="d", position=HERE), 0)
    assert patient.ride(90).driver_id == "d"
    assert city.ride(90).driver_id is None


@pytest.mark.parametrize(
    "report",
    [
        ReportLocation(driver_id="d", position=HERE),
        HearPosition(driver_id="d", position=HERE),
        GoOnline(driver_id="d", position=HERE),
    ],
)
def test_who_reports_again_is_matched_again(city: City, report: Command[object]) -> None:
    city.ride(100)
    city.do(report, 110)
    assert city.world.ride("a").driver_id == "d", "a waiting rider gets the driver at once"


def test_a_farther_driver_who_reports_is_taken_before_a_near_one_who_is_silent(city: City) -> None:
    city.do(GoOnline(driver_id="far", position=THERE), 60)
    assert city.ride(70).driver_id == "far"


def test_each_step_of_a_ride_is_a_sign_of_life(city: City) -> None:
    city.ride(10)
    city.do(ReportArrival(ride_id="a", driver_id="d"), 100)
    assert city.driver().heard_at == START + timedelta(seconds=100)
    city.do(StartRide(ride_id="a", driver_id="d"), 200)
    assert city.driver().heard_at == START + timedelta(seconds=200)
    city.ride(250, "waits")
    city.do(CompleteRide(ride_id="a", driver_id="d", distance_m=9_000), 300)
    assert city.world.ride("waits").driver_id == "d", "who completes a ride is there for the next one"


def test_a_driver_who_cancels_is_there_for_another_ride(city: City) -> None:
    city.ride(10)
    city.ride(250, "waits")
    city.do(CancelRide(ride_id="a", by="driver", driver_id="d", reason="no way"), 260)
    assert city.world.ride("waits").driver_id == "d"


def test_a_driver_who_vanished_with_a_ride_gets_no_other_one(city: City) -> None:
    """What booking does to the driver is no sign of life, or each rider would wait for the same driver in turn."""
    ride = city.ride(10)
    city.ride(250, "waits")
    due_at = START + timedelta(seconds=900)
    city.do(Elapse(kind="pickup_timeout", subject_id="a", seq=ride.timer_seq, due_at=due_at), 900)
    assert city.driver().status is DriverStatus.FREE
    assert city.world.ride("waits").driver_id is None
    assert city.ride(901, "later").driver_id is None


def test_the_driver_of_a_rider_who_cancels_must_report_first(city: City) -> None:
    city.ride(10)
    city.ride(250, "waits")
    city.do(CancelRide(ride_id="a", by="rider", reason="late"), 260)
    assert city.world.ride("waits").driver_id is None
    city.do(ReportLocation(driver_id="d", position=HERE), 270)
    assert city.world.ride("waits").driver_id == "d"


def test_a_position_that_the_driver_app_published_is_not_published_again(city: City) -> None:
    city.do(HearPosition(driver_id="d", position=THERE), 10)
    assert (city.driver().position, city.reports) == (THERE, [])
    city.do(ReportLocation(driver_id="d", position=HERE), 20)
    assert len(city.reports) == 1


def test_a_published_position_of_nobody_who_is_online_is_ignored(city: City) -> None:
    city.do(HearPosition(driver_id="nobody", position=HERE), 10)
    assert city.world.driver("nobody") is None
    city.do(GoOffline(driver_id="d"), 20)
    city.do(HearPosition(driver_id="d", position=HERE), 30)
    assert (city.driver().status, city.driver().position) == (DriverStatus.OFFLINE, None)


def test_an_old_published_position_is_ignored(city: City) -> None:
    city.do(ReportLocation(driver_id="d", position=HERE), 20)
    city.do(HearPosition(driver_id="d", position=THERE), 10)
    assert city.driver().position == HERE
