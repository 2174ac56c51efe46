"""Who may do what to whose ride, quote and driver: checked in the decision, on the state that the decision sees.

A name in the path or body that is not the caller's own is `NotAllowed`: that is decided without a look at the state, so
it says nothing about what exists. A ride or quote of somebody else is `NotFound`, as an id that was never given out.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from booking.app.cancel_ride import CancelRide
from booking.app.change_destination import ChangeDestination
from booking.app.drive import CompleteRide, ReportArrival, StartRide
from booking.app.drivers import GoOffline, GoOnline, ReportLocation
from booking.app.offer_quote import OfferQuote
from booking.app.ownership import check_region
from booking.app.pool_ride import PoolRide
from booking.app.ports import Command, Needs, Work
from booking.app.request_ride import RequestRide
from booking.app.update_drivers import MoveClock, UpdateDrivers
from booking.domain.caller import Caller, Role
from booking.domain.errors import NotAllowed, NotFound
from booking.domain.quote import Quote
from booking.domain.ride import Ride

A_co = TypeVar("A_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByCaller(Generic[A_co]):
    """A command that is done only if its caller may do it. Each part of `UpdateDrivers` is wrapped by itself."""

    caller: Caller
    command: Command[A_co]

    def needs(self) -> Needs:
        """What the command needs: permission depends on nothing else."""
        return self.command.needs()

    def decide(self, work: Work) -> A_co:
        """Do it, or raise `Misdirected`, `NotAllowed`, `NotFound`, or what the command raises."""
        check_region(self.command, work)
        check(self.caller, self.command, work)
        return self.command.decide(work)


def check(caller: Caller, command: Command[object], work: Work) -> None:
    """Return if the caller may give this command.

    Raises:
        NotAllowed: The command names another rider or driver, or is not for the caller's role.
        NotFound: The ride or quote does not exist, or is not the caller's.
    """
    if caller.role is Role.ANYONE:
        return
    match command:
        case OfferQuote(rider_id=rider_id):
            _as_rider(caller, rider_id)
        case RequestRide(quote_id=quote_id):
            quote = work.quote(quote_id)
            if not is_of_rider(quote, caller):
                raise NotFound("quote", quote_id)
        case CancelRide(ride_id=ride_id, by="rider") | ChangeDestination(ride_id=ride_id) | PoolRide(ride_id=ride_id):
            if not is_of_rider(work.ride(ride_id), caller):
                raise NotFound("ride", ride_id)
        case (
            CancelRide(ride_id=ride_id, driver_id=driver_id)
            | ReportArrival(ride_id=ride_id, driver_id=driver_id)
            | StartRide(ride_id=ride_id, driver_id=driver_id)
            | CompleteRide(ride_id=ride_id, driver_id=driver_id)
        ):
            _as_driver(caller, driver_id or "")
            if driver_id not in drivers_of(work.ride(ride_id)):
                raise NotFound("ride", ride_id)
        case GoOnline(driver_id=driver_id) | ReportLocation(driver_id=driver_id) | GoOffline(driver_id=driver_id):
            _as_driver(caller, driver_id)
        case UpdateDrivers():
            if caller.role not in {Role.DRIVER, Role.FLEET}:
                raise NotAllowed(f"{caller} may not send drivers' updates")
        case MoveClock():
            if caller.role is not Role.OPERATOR:
                raise NotAllowed(f"{caller} may not move the clock")
        case _:
            raise NotAllowed(f"{caller} may not do this")


def is_of_rider(thing: Quote | Ride, caller: Caller) -> bool:
    """Return whether the caller is the rider of a ride or quote."""
    return caller.role is Role.RIDER and thing.rider_id == caller.subject


def drivers_of(ride: Ride) -> frozenset[str]:
    """Return the drivers who may know of a ride: its driver and those who had it before."""
    return frozenset((*ride.declined, *([ride.driver_id] if ride.driver_id else [])))


def may_see(caller: Caller, thing: Quote | Ride) -> bool:
    """Return whether the caller may read a ride or quote: its rider, its drivers, operators."""
    match caller.role:
        case Role.ANYONE | Role.OPERATOR:
            return True
        case Role.RIDER:
            return is_of_rider(thing, caller)
        case Role.DRIVER:
            return isinstance(thing, Ride) and caller.subject in drivers_of(thing)
        case Role.FLEET:
            return False


def check_sees_driver(caller: Caller, driver_id: str) -> None:
    """Return if the caller may read a driver: the driver and operators.

    Raises:
        NotAllowed: It is another driver, whether or not there is one of that id.
    """
    if caller.role is Role.DRIVER:
        _as_driver(caller, driver_id)


def _as_rider(caller: Caller, rider_id: str) -> None:
    if caller.role is not Role.RIDER or caller.subject != rider_id:
        raise NotAllowed(f"{caller} may not act for rider {rider_id!r}")


def _as_driver(caller: Caller, driver_id: str) -> None:
    if caller.role is not Role.FLEET and (caller.role is not Role.DRIVER or caller.subject != driver_id):
        raise NotAllowed(f"{caller} may not act for driver {driver_id!r}")
