"""Whatever riders and drivers do in whatever order, the books agree."""

from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import h3
from booking.app.apply_payment import ApplyPayment
from booking.app.cancel_ride import CancelRide
from booking.app.change_destination import ChangeDestination
from booking.app.drive import CompleteRide, ReportArrival, StartRide
from booking.app.drivers import GoOffline, GoOnline, HearPosition, ReportLocation
from booking.app.offer_quote import OfferQuote
from booking.app.policy import Policy
from booking.app.ports import Command, Needs, Work
from booking.app.request_ride import RequestRide
from booking.app.update_drivers import UpdateDrivers
from booking.app.world import World
from booking.domain.driver import DriverStatus
from booking.domain.errors import Refusal
from booking.domain.payment import PaymentNews
from booking.domain.place import Place
from booking.domain.quote import Quote
from booking.domain.ride import TERMINAL, Ride, RideState
from hailbus import event_info
from hypothesis import given, settings, target
from hypothesis import strategies as st
from ride_events.timers import RideOverdue, TimerElapsed

from tests.property.booking.stored import PLACES, START, Stored, elapsed, prepare

DRIVERS = ("d1", "d2", "d3")
ACTIVE = {RideState.MATCHED, RideState.ARRIVED, RideState.IN_PROGRESS}
TIMER_OF = {
    RideState.REQUESTED: "match_timeout",
    RideState.REDISPATCHED: "match_timeout",
    RideState.MATCHED: "pickup_timeout",
    RideState.ARRIVED: "no_show",
    RideState.IN_PROGRESS: "ride_timeout",
}


Move = tuple[str, int, int, int, int]
MOVES = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "online",
                "online",
                "offline",
                "move",
                "hear",
                "book",
                "book",
                "quote",
                "ride",
                "arrive",
                "arrive",
                "start",
                "start",
                "complete",
                "complete",
                "rider_cancels",
                "driver_cancels",
                "no_show",
                "elsewhere",
                "timer",
                "payment",
                "payment",
                "updates",
                "flush",
                "restart",
            ]
        ),
        st.integers(0, 5),
        st.integers(0, 3),
        st.integers(0, 30),
        st.integers(0, 9),
    ),
    min_size=20,
    max_size=80,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    """Quote and ride in one, so that most runs have rides."""

    number: int
    rider_id: str
    place: Place

    def needs(self) -> Needs:
        return Needs()

    def decide(self, work: Work) -> Ride:
        quote_id = f"quote-{self.number}"
        OfferQuote(quote_id=quote_id, rider_id=self.rider_id, pickup=self.place, dropoff=PLACES[0]).decide(work)
        return RequestRide(ride_id=f"ride-{self.number}", quote_id=quote_id).decide(work)


def luck_of(move: Move) -> int:
    return move[4]


def command_of(move: Move, number: int, stored: Stored, quotes: list[str], rides: list[str]) -> Command[object] | None:
    kind, which, where, _, luck = move
    driver_id, place = DRIVERS[which % 3], PLACES[where]
    quote_id = quotes[which % len(quotes)] if quotes else "none"
    # Mostly the ride that is open and the driver who has it, now and then any other.
    open_rides = [ride_id for ride_id in rides if stored.rides[ride_id].state not in TERMINAL] or rides
    chosen = rides if luck == 0 else open_rides
    ride_id = chosen[-1 - which % len(chosen)] if chosen else "none"
    ride = stored.rides.get(ride_id)
    by = ride.driver_id if ride is not None and ride.driver_id is not None and luck != 1 else driver_id
    match kind:
        case "online":
            return GoOnline(driver_id=driver_id, position=place)
        case "offline":
            return GoOffline(driver_id=driver_id)
        case "move":
            return ReportLocation(driver_id=driver_id, position=place)
        case "hear":
            return HearPosition(driver_id=driver_id, position=place)
        case "quote":
            return OfferQuote(quote_id=f"quote-{number}", rider_id=f"r{which}", pickup=place, dropoff=PLACES[0])
        case "book":
            return Book(number=number, rider_id=f"r{which}", place=PLACES[where % 3])
        case "ride":
            return RequestRide(ride_id=f"ride-{number}", quote_id=quote_id)
        case "arrive":
            return ReportArrival(ride_id=ride_id, driver_id=by)
        case "start":
            return StartRide(ride_id=ride_id, driver_id=by)
        case "complete":
            return CompleteRide(ride_id=ride_id, driver_id=by, distance_m=1_000)
        case "rider_cancels":
            return CancelRide(ride_id=ride_id, by="rider", reason="late")
        case "driver_cancels":
            return CancelRide(ride_id=ride_id, by="driver", driver_id=by, reason="flat tyre")
        case "no_show":
            return CancelRide(ride_id=ride_id, by="driver", driver_id=by, reason="no_show")
        case "elsewhere":
            return ChangeDestination(ride_id=ride_id, dropoff=place)
        case "payment" if ride is not None:
            kinds = ("authorised", "captured", "failed", "failed", "released", "refunded")
            stage = ("authorise", "reauthorise", "capture")[where % 3]
            owed_minor = 700 if ride.state in TERMINAL else None
            seq = ride.payment.seq + 1
            # Any: mypy takes a member of the tuple for any text
            said: Any = kinds[which]
            return ApplyPayment(
                ride_id=ride_id,
                news=PaymentNews(kind=said, seq=seq, amount_minor=700, stage=stage, owed_minor=owed_minor),
            )
        case "updates":
            return UpdateDrivers(
                updates=[
                    (GoOnline(driver_id=driver_id, position=place), None),
                    (GoOffline(driver_id="nobody"), None),
                    (ReportLocation(driver_id=driver_id, position=PLACES[0]), None),
                ]
            )
        case "timer" if stored.timers:
            return elapsed(sorted(stored.timers.values(), key=lambda one: one.id)[which % len(stored.timers)])
        case _:
            return None


@settings(max_examples=100, deadline=None)
@given(MOVES)
def test_books_agree_whatever_happens(moves: list[Move]) -> None:
    stored = Stored()
    world = stored.load()
    quotes: list[str] = []
    rides: list[str] = []
    owed: dict[str, int] = {}
    now = START
    for number, move in enumerate(moves):
        now += timedelta(seconds=move[3])
        if move[0] == "restart":
            # Killed: what was not flushed never happened.
            world = stored.load()
            quotes, rides = list(stored.quotes), list(stored.rides)
            owed = {ride.ride_id: ride.payment.owed_minor for ride in stored.rides.values()}
            continue
        if move[0] != "flush":
            command = command_of(move, number, stored, quotes, rides)
            if command is None:
                continue
            prepare(world, stored, command)
            world.begin(now)
            before = world.counts()
            try:
                result = command.decide(world)
            except Refusal:
                world.undo()
                assert world.counts() == before
                continue
            if isinstance(result, Quote):
                quotes.append(result.quote_id)
            if isinstance(command, ApplyPayment):
                check_payment(command, world, owed)
            if isinstance(command, Book | RequestRide):
                assert isinstance(result, Ride)
                theirs = [one.ride_id for one in stored.rides.values() if one.rider_id == result.rider_id]
                assert not any(owed.get(ride_id) for ride_id in theirs)
            check_matches(world, stored)
            if luck_of(move) == 2:
                continue  # the next command sees it before it is stored
        changes = world.take_changes()
        stored.flush(changes)
        rides = list(stored.rides)
        world.forget_settled(changes)
        check_books(stored)
    stored.flush(world.take_changes())
    check_books(stored)
    target(float(max((ride.seq for ride in stored.rides.values()), default=0)), label="events of a ride")


def check_matches(world: World, stored: Stored) -> None:
    """Whoever got a ride by the last command was heard of shortly before."""
    for driver_id in DRIVERS:
        driver, before = world.driver(driver_id), stored.drivers.get(driver_id)
        if driver is not None and driver.ride_id is not None and (before is None or before.ride_id != driver.ride_id):
            matched_at = world.ride(driver.ride_id).matched_at
            assert matched_at is not None
            assert matched_at - driver.heard_at <= Policy().silent_after


def check_payment(command: ApplyPayment, world: World, owed: dict[str, int]) -> None:
    """What payment said is kept, and a declined authorisation leaves nobody waiting for a ride."""
    news, ride = command.news, world.ride(command.ride_id)
    assert ride.payment.seq == news.seq
    if news.kind == "captured":
        owed[command.ride_id] = 0
    elif news.kind == "failed" and news.owed_minor is not None:
        owed[command.ride_id] = news.owed_minor
    assert ride.payment.owed_minor == owed.get(command.ride_id, 0)
    if news.kind == "failed" and news.stage != "capture":
        assert ride.state in TERMINAL | {RideState.IN_PROGRESS}


def check_books(stored: Stored) -> None:
    seqs: dict[str, list[int]] = defaultdict(list)
    ids: set[str] = set()
    for item in stored.outgoing:
        assert item.id not in ids
        ids.add(item.id)
        kind = event_info(item.event).type
        subject = getattr(item.event, event_info(item.event).key_field or "")
        seqs[f"{kind.partition('.')[0]}/{subject}"].append(getattr(item.event, "seq"))  # noqa: B009 mypy knows no seq on Event
    for ride in stored.rides.values():
        assert seqs[f"ride/{ride.ride_id}"] == list(range(1, ride.seq + 1))
        assert ride.redispatches <= 3
        assert len(ride.declined) == ride.redispatches + (ride.reason == "redispatch_limit")  # the last one to leave
        if ride.state in ACTIVE:
            assert stored.drivers[ride.driver_id or ""].ride_id == ride.ride_id
        # Every open ride has the timer of its state and no other, so that nobody waits for ever.
        timers = [name for name in stored.timers if name.endswith(f":{ride.ride_id}")]
        for name in timers:
            timer = stored.timers[name].event
            assert isinstance(timer, TimerElapsed | RideOverdue)
            if ride.state not in TERMINAL:
                assert (name.partition(":")[0], timer.seq) == (TIMER_OF[ride.state], ride.timer_seq)
        assert len(timers) == (ride.state not in TERMINAL) or ride.state in TERMINAL
    riders = [ride.rider_id for ride in stored.rides.values() if ride.state not in TERMINAL]
    assert len(set(riders)) == len(riders)
    # Nobody waits beside a free driver, unless that driver was silent when both were last looked at.
    for ride in stored.rides.values():
        for driver in stored.drivers.values():
            if ride.waiting and driver.status is DriverStatus.FREE and driver.driver_id not in ride.declined:
                assert driver.position is not None
                met_at = max(ride.updated_at, driver.updated_at)
                assert (
                    h3.grid_distance(ride.pickup.cell, driver.position.cell) > Policy().match_rings
                    or met_at - driver.heard_at > Policy().silent_after
                )
    for driver in stored.drivers.values():
        assert seqs[f"driver/{driver.driver_id}"] == list(range(1, driver.seq + 1))
        if driver.status is DriverStatus.BUSY:
            ride = stored.rides[driver.ride_id or ""]
            assert ride.state in ACTIVE
            assert ride.driver_id == driver.driver_id
        else:
            assert driver.ride_id is None
    for quote in stored.quotes.values():
        assert seqs[f"quote/{quote.quote_id}"] == list(range(1, quote.seq + 1))
