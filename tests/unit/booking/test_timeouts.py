"""Nobody waits for ever: a driver who does not arrive, and a ride that its driver does not end."""

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
from booking.app.ports import Command
from booking.app.request_ride import RequestRide
from booking.app.world import Changes, World
from booking.domain.driver import DriverStatus
from booking.domain.errors import NotYourRide, WrongState
from booking.domain.place import Place
from booking.domain.ride import Ride, RideState
from hailbus import Event, event_info
from ride_events.rides import RideCompleted, RideRedispatched
from ride_events.timers import RideOverdue, TimerElapsed

START = datetime(2014, 5, 1, 8, tzinfo=UTC)
HERE = Place(lat=40.75, lng=-73.98, cell="882a100d29fffff")
THERE = Place(lat=40.70, lng=-74.00, cell="882a1072d7fffff")
A = TypeVar("A")


class City:
    """A world without a database: changes pile up, and timers are kept by their names."""

    def __init__(self) -> None:
        self.world = World(Policy())
        self.events: list[Event] = []
        self.timers: dict[str, Event] = {}

    def do(self, command: Command[A], after_s: float = 0) -> A:
        self.world.begin(START + timedelta(seconds=after_s))
        result = command.decide(self.world)
        changes: Changes = self.world.take_changes()
        for schedule_id in changes.cancelled:
            self.timers.pop(schedule_id, None)
        self.timers.update({name: timer.event for name, timer in changes.timers.items()})
        self.events += [one.event for one in changes.outgoing]
        return result

    def elapse(self, name: str) -> bool:
        """Let a timer elapse at its time."""
        timer = self.timers.pop(name)
        assert isinstance(timer, RideOverdue)
        command = _command(timer)
        assert isinstance(command, Elapse)
        assert name == f"{command.kind}:{command.subject_id}"
        return self.do(command, (timer.due_at - START).total_seconds())

    def ride(self) -> Ride:
        """Request a ride at the start."""
        self.do(OfferQuote(quote_id="q1", rider_id="r1", pickup=HERE, dropoff=THERE))
        return self.do(RequestRide(ride_id="a", quote_id="q1"))

    def types(self) -> list[str]:
        return [event_info(event).type for event in self.events]


@pytest.fixture
def city() -> City:
    return City()


def test_a_ride_whose_driver_does_not_arrive_is_offered_again(city: City) -> None:
    city.do(GoOnline(driver_id="d1", position=HERE))
    ride = city.ride()
    assert ride.driver_id == "d1"
    timer = city.timers["pickup_timeout:a"]
    assert isinstance(timer, RideOverdue)
    assert timer.due_at == START + timedelta(seconds=600 + (ride.eta_s or 0))
    assert city.elapse("pickup_timeout:a")
    ride = city.world.ride("a")
    assert (ride.state, ride.declined, ride.updated_at) == (RideState.REDISPATCHED, ("d1",), timer.due_at)
    (told,) = [event for event in city.events if isinstance(event, RideRedispatched)]
    assert (told.driver_id, told.reason) == ("d1", "driver_late")
    driver = city.world.driver("d1")
    assert driver is not None
    assert (driver.status, driver.ride_id) == (DriverStatus.FREE, None)
    assert city.types()[-1] == "driver.became_free"
    assert "match_timeout:a" in city.timers
    with pytest.raises(NotYourRide):
        city.do(ReportArrival(ride_id="a", driver_id="d1"), 700)


def test_a_ride_that_is_offered_again_has_a_timer_of_its_own(city: City) -> None:
    for driver_id in ("d1", "d2"):
        city.do(GoOnline(driver_id=driver_id, position=HERE))
    first = city.ride()
    stale = city.timers["pickup_timeout:a"]
    assert isinstance(stale, RideOverdue)
    after = city.do(CancelRide(ride_id="a", by="driver", driver_id="d1", reason="flat tyre"), 10)
    assert (first.driver_id, after.driver_id) == ("d1", "d2")
    timer = city.timers["pickup_timeout:a"]
    assert isinstance(timer, RideOverdue)
    assert timer.seq == after.timer_seq > stale.seq
    # The first driver's timer may have been published before it was cancelled.
    late = Elapse(kind="pickup_timeout", subject_id="a", seq=stale.seq, due_at=stale.due_at)
    assert not city.do(late, 600)
    assert city.world.ride("a") == after


def test_a_ride_whose_drivers_never_arrive_ends_with_the_limit(city: City) -> None:
    for driver_id in ("d1", "d2", "d3", "d4"):
        city.do(GoOnline(driver_id=driver_id, position=HERE))
    city.ride()
    while (timer := city.timers.get("pickup_timeout:a")) is not None:
        assert isinstance(timer, RideOverdue)
        for driver_id in ("d1", "d2", "d3", "d4"):
            city.do(ReportLocation(driver_id=driver_id, position=HERE), (timer.due_at - START).total_seconds())
        assert city.elapse("pickup_timeout:a")
    ride = city.world.ride("a")
    assert (ride.state, ride.reason) == (RideState.UNMATCHED, "redispatch_limit")
    assert [name for name in city.timers if name.endswith(":a")] == []


def test_a_ride_that_its_driver_does_not_end_is_completed_at_the_quoted_fare(city: City) -> None:
    city.do(GoOnline(driver_id="d1", position=HERE))
    quoted = city.ride()
    city.do(ReportArrival(ride_id="a", driver_id="d1"), 10)
    assert [name for name in city.timers if name.endswith(":a")] == ["no_show:a"]
    city.do(StartRide(ride_id="a", driver_id="d1"), 20)
    assert [name for name in city.timers if name.endswith(":a")] == ["ride_timeout:a"]
    roads = city.world.roads
    assert city.elapse("ride_timeout:a")
    ride = city.world.ride("a")
    assert (ride.state, ride.reason) == (RideState.COMPLETED, "ride_timeout")
    assert ride.duration_s == roads.drive_s(ride.route_m) + 14_400
    assert ride.fare_minor == quoted.fare_minor
    (told,) = [event for event in city.events if isinstance(event, RideCompleted)]
    assert (told.reason, told.distance_m, told.fare.amount_minor) == ("ride_timeout", ride.route_m, quoted.fare_minor)
    assert city.world.roads is roads, "nobody knows how long such a ride took"
    driver = city.world.driver("d1")
    assert driver is not None
    assert (driver.status, driver.position) == (DriverStatus.FREE, HERE)
    assert city.world.open_ride("r1") is None
    with pytest.raises(WrongState):
        city.do(CompleteRide(ride_id="a", driver_id="d1", distance_m=9_000), 20_000)


def test_a_ride_that_goes_well_leaves_no_timer(city: City) -> None:
    city.do(GoOnline(driver_id="d1", position=HERE))
    city.ride()
    city.do(ReportArrival(ride_id="a", driver_id="d1"), 10)
    city.do(StartRide(ride_id="a", driver_id="d1"), 20)
    city.do(CompleteRide(ride_id="a", driver_id="d1", distance_m=9_000), 1_500)
    assert city.timers == {}


@pytest.mark.parametrize("kind", ["pickup_timeout", "ride_timeout"])
def test_a_timer_of_a_ride_that_has_gone_on_changes_nothing(city: City, kind: str) -> None:
    city.do(GoOnline(driver_id="d1", position=HERE))
    city.ride()
    city.do(ReportArrival(ride_id="a", driver_id="d1"), 10)
    arrived = city.world.ride("a")
    for seq in range(1, arrived.seq + 1):
        command = Elapse(
            kind="pickup_timeout" if kind == "pickup_timeout" else "ride_timeout",
            subject_id="a",
            seq=seq,
            due_at=START + timedelta(seconds=60),
        )
        assert not city.do(command, 60)
    assert city.world.ride("a") == arrived


def test_timers_are_told_by_two_events(city: City) -> None:
    city.ride()
    assert isinstance(city.timers["match_timeout:a"], TimerElapsed)
