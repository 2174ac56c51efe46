"""Every command, in every state, by every caller: nobody changes another's ride, quote or driver."""

from dataclasses import dataclass
from datetime import timedelta

from booking.app.cancel_ride import CancelRide
from booking.app.change_destination import ChangeDestination
from booking.app.drive import CompleteRide, ReportArrival, StartRide
from booking.app.drivers import GoOffline, GoOnline, ReportLocation
from booking.app.offer_quote import OfferQuote
from booking.app.permissions import ByCaller
from booking.app.ports import Command
from booking.app.request_ride import RequestRide
from booking.app.update_drivers import MoveClock, UpdateDrivers
from booking.app.world import Changes
from booking.domain.caller import Caller, Role
from booking.domain.driver import DriverStatus
from booking.domain.errors import NotAllowed, NotFound, Refusal
from booking.domain.ride import TERMINAL, Ride, RideState
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.property.booking.stored import PLACES, START, Stored, prepare

RIDERS = ("r1", "r2", "r3")
DRIVERS = ("d1", "d2", "d3", "r1")  # one of them has a rider's id: a role is a part of who one is
CALLERS = st.sampled_from(
    [
        *(Caller(role=Role.RIDER, subject=subject) for subject in RIDERS),
        *(Caller(role=Role.DRIVER, subject=subject) for subject in DRIVERS),
        Caller(role=Role.FLEET, subject="fleet"),
        Caller(role=Role.OPERATOR, subject="r1"),
        Caller(role=Role.OPERATOR, subject="d1"),
    ]
)
KINDS = st.sampled_from(
    [
        *("quote", "accept", "accept", "online", "online", "arrive", "start", "complete"),
        *("rider_cancels", "driver_cancels", "elsewhere", "offline", "location", "clock", "updates"),
    ]
)


@dataclass(frozen=True, slots=True)
class Move:
    """A caller and a command. When `fits`, the caller is mostly the one whom the command is for."""

    caller: Caller
    kind: str
    which: int
    who: int
    where: int
    fits: bool


MOVES = st.lists(
    st.builds(Move, CALLERS, KINDS, st.integers(0, 5), st.integers(0, 3), st.integers(0, 3), st.booleans()),
    min_size=20,
    max_size=80,
)


def command_of(move: Move, number: int, stored: Stored) -> tuple[Command[object], Caller]:
    """The command, and who gives it."""
    rides, quotes = list(stored.rides), list(stored.quotes)
    open_rides = [ride_id for ride_id in rides if stored.rides[ride_id].state not in TERMINAL] or rides
    ride_id = open_rides[-1 - move.which % len(open_rides)] if open_rides else "none"
    quote_id = quotes[-1 - move.which % len(quotes)] if quotes else "none"
    ride, quote = stored.rides.get(ride_id), stored.quotes.get(quote_id)
    rider_id = RIDERS[move.who % 3]
    driver_id = ride.driver_id if ride is not None and ride.driver_id and move.fits else DRIVERS[move.who]
    place = PLACES[move.where]
    own: Command[object]
    by_rider = Caller(role=Role.RIDER, subject=ride.rider_id if ride is not None else "none")
    by_driver = Caller(role=Role.FLEET if move.which == 5 else Role.DRIVER, subject=driver_id)
    match move.kind:
        case "quote":
            own = OfferQuote(quote_id=f"q{number}", rider_id=rider_id, pickup=place, dropoff=PLACES[0])
            owner = Caller(role=Role.RIDER, subject=rider_id)
        case "accept":
            own = RequestRide(ride_id=f"ride-{number}", quote_id=quote_id)
            owner = Caller(role=Role.RIDER, subject=quote.rider_id if quote is not None else "none")
        case "rider_cancels":
            own, owner = CancelRide(ride_id=ride_id, by="rider", reason="late"), by_rider
        case "elsewhere":
            own, owner = ChangeDestination(ride_id=ride_id, dropoff=place), by_rider
        case "driver_cancels":
            own = CancelRide(ride_id=ride_id, by="driver", driver_id=driver_id, reason="flat tyre")
            owner = by_driver
        case "arrive":
            own, owner = ReportArrival(ride_id=ride_id, driver_id=driver_id), by_driver
        case "start":
            own, owner = StartRide(ride_id=ride_id, driver_id=driver_id), by_driver
        case "complete":
            own, owner = CompleteRide(ride_id=ride_id, driver_id=driver_id, distance_m=1_000), by_driver
        case "online":
            own, owner = GoOnline(driver_id=driver_id, position=place), by_driver
        case "offline":
            own, owner = GoOffline(driver_id=driver_id), by_driver
        case "location":
            own, owner = ReportLocation(driver_id=driver_id, position=place), by_driver
        case "updates":
            # Parts are wrapped each, as the route does it.
            caller = by_driver if move.fits else move.caller
            parts: list[Command[object]] = [
                GoOnline(driver_id=driver_id, position=place),
                ReportArrival(ride_id=ride_id, driver_id=driver_id),
                CancelRide(ride_id=ride_id, by="driver", driver_id=driver_id, reason="flat tyre"),
            ]
            updates = [(ByCaller(caller=caller, command=part), None) for part in parts]
            return UpdateDrivers(updates=updates), caller  # type: ignore[arg-type]  # parts give drivers and rides
        case _:
            own, owner = MoveClock(), Caller(role=Role.OPERATOR, subject="clock")
    return own, owner if move.fits else move.caller


def owned_by(caller: Caller, ride: Ride | None, driver_id: str) -> bool:
    """Whether a ride is the caller's, said without the help of what is tested."""
    if ride is None:
        return False
    if caller.role is Role.RIDER:
        return ride.rider_id == caller.subject
    drivers = {ride.driver_id, *ride.declined}
    if caller.role is Role.DRIVER:
        return caller.subject in drivers and caller.subject == driver_id
    return caller.role is Role.FLEET and driver_id in drivers


def may(caller: Caller, command: Command[object], stored: Stored) -> bool:
    """Whether the command is for this caller, said without the help of what is tested."""
    match command:
        case OfferQuote():
            return caller == Caller(role=Role.RIDER, subject=command.rider_id)
        case RequestRide():
            quote = stored.quotes.get(command.quote_id)
            return quote is not None and caller == Caller(role=Role.RIDER, subject=quote.rider_id)
        case CancelRide(by="rider") | ChangeDestination():
            return caller.role is Role.RIDER and owned_by(caller, stored.rides.get(command.ride_id), "")
        case CancelRide() | ReportArrival() | StartRide() | CompleteRide():
            of_driver = caller.role is not Role.RIDER
            return of_driver and owned_by(caller, stored.rides.get(command.ride_id), command.driver_id or "")
        case GoOnline() | GoOffline() | ReportLocation():
            return caller.role is Role.FLEET or caller == Caller(role=Role.DRIVER, subject=command.driver_id)
        case UpdateDrivers():
            return caller.role in {Role.DRIVER, Role.FLEET}
        case _:
            return caller.role is Role.OPERATOR


def check_changes(caller: Caller, changes: Changes, before: Stored) -> None:
    """What changed is the caller's, or was dispatched: a waiting ride got a driver, or a driver a ride or none."""
    for quote in changes.quotes.values():
        assert caller == Caller(role=Role.RIDER, subject=quote.rider_id)
    for ride in changes.rides.values():
        known = before.rides.get(ride.ride_id)
        if known is None:
            assert caller == Caller(role=Role.RIDER, subject=ride.rider_id)
        elif not (
            caller == Caller(role=Role.RIDER, subject=ride.rider_id)
            or (caller.role is Role.DRIVER and caller.subject == known.driver_id)
            or caller.role is Role.FLEET
        ):
            assert known.waiting
            assert (ride.rider_id, ride.fare_minor, ride.dropoff) == (known.rider_id, known.fare_minor, known.dropoff)
            # In one batch a driver can come online, get the ride, and cancel it.
            assert ride.state is RideState.MATCHED or caller.subject in ride.declined
            event("dispatched for somebody else")
    for driver in changes.drivers.values():
        own = caller.role is Role.FLEET or caller == Caller(role=Role.DRIVER, subject=driver.driver_id)
        if not own:
            known_driver = before.drivers[driver.driver_id]
            assert {known_driver.status, driver.status} <= {DriverStatus.FREE, DriverStatus.BUSY}
            assert driver.position == known_driver.position


@settings(max_examples=150, deadline=None)
@given(MOVES)
def test_nobody_touches_what_is_anothers(moves: list[Move]) -> None:
    stored = Stored()
    world = stored.load()
    now = START
    for number, move in enumerate(moves):
        now += timedelta(seconds=5)
        inner, caller = command_of(move, number, stored)
        command = ByCaller(caller=caller, command=inner)
        prepare(world, stored, command)
        world.begin(now)
        allowed = may(caller, inner, stored)
        refusal: Refusal | None = None
        try:
            command.decide(world)
        except Refusal as error:
            refusal = error
            world.undo()
        changes = world.take_changes()
        if not allowed:
            assert isinstance(refusal, NotAllowed | NotFound), (caller, inner)
            assert changes == Changes()
            event(f"refused: {type(inner).__name__}")
        else:
            assert not isinstance(refusal, NotAllowed), (caller, inner)
            event(f"allowed: {type(inner).__name__}")
        check_changes(caller, changes, stored)
        stored.flush(changes)
        world.forget_settled(changes)


@given(CALLERS, st.integers(0, 3))
def test_a_refusal_says_nothing_about_what_exists(caller: Caller, who: int) -> None:
    """Another's ride and quote are refused in the words for an id that never was."""
    stored = Stored()
    world = stored.load()
    owner = Caller(role=Role.RIDER, subject="owner")
    for step in (
        OfferQuote(quote_id="q", rider_id="owner", pickup=PLACES[0], dropoff=PLACES[1]),
        RequestRide(ride_id="ride", quote_id="q"),
        OfferQuote(quote_id="open", rider_id="owner", pickup=PLACES[0], dropoff=PLACES[1]),
    ):
        world.begin(START)
        ByCaller(caller=owner, command=step).decide(world)
    driver_id = caller.subject if caller.role is Role.DRIVER else DRIVERS[who]
    attempts: list[tuple[Command[object], Command[object]]] = [
        (RequestRide(ride_id="x", quote_id="open"), RequestRide(ride_id="x", quote_id="none")),
        (CancelRide(ride_id="ride", by="rider", reason="x"), CancelRide(ride_id="none", by="rider", reason="x")),
        (ChangeDestination(ride_id="ride", dropoff=PLACES[0]), ChangeDestination(ride_id="none", dropoff=PLACES[0])),
        (StartRide(ride_id="ride", driver_id=driver_id), StartRide(ride_id="none", driver_id=driver_id)),
    ]
    for there, never in attempts:
        refusals: list[str] = []
        for command in (there, never):
            world.begin(START)
            try:
                ByCaller(caller=caller, command=command).decide(world)
            except (NotAllowed, NotFound) as error:
                refusals.append(
                    f"{type(error).__name__} {error}".replace("'ride'", "'none'").replace("'open'", "'none'")
                )
                world.undo()
        assert len(refusals) == 2
        assert refusals[0] == refusals[1]
