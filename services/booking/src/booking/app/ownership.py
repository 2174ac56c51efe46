"""Which region a command is for: a process decides only what its region owns, and names the owner of the rest."""

from booking.app.cancel_ride import CancelRide
from booking.app.change_destination import ChangeDestination
from booking.app.drive import CompleteRide, ReportArrival, StartRide
from booking.app.drivers import GoOffline, GoOnline, ReportLocation
from booking.app.offer_quote import OfferQuote
from booking.app.pool_ride import PoolRide
from booking.app.ports import Command, Work
from booking.app.request_ride import RequestRide
from booking.domain.errors import Misdirected
from booking.domain.region import Realm, Region


def check_region(command: Command[object], work: Work) -> None:
    """Return if this process's region owns what the command is about.

    A pickup and the place where a driver goes online belong to the region around them, quotes and rides to the region
    in their id, and a driver who is online to the region where that happened.

    Raises:
        Misdirected: Another region does.
    """
    realm = work.realm
    if realm is None:
        return
    match command:
        case OfferQuote(pickup=place) | GoOnline(position=place):
            _check(realm, realm.regions.of_cell(place.cell), f"the place {place.lat:.5f}, {place.lng:.5f}")
        case RequestRide(quote_id=key):
            check_id(realm, "quote", key)
        case (
            CancelRide(ride_id=key)
            | ChangeDestination(ride_id=key)
            | ReportArrival(ride_id=key)
            | StartRide(ride_id=key)
            | CompleteRide(ride_id=key)
            | PoolRide(ride_id=key)
        ):
            check_id(realm, "ride", key)
        case ReportLocation(driver_id=driver_id) | GoOffline(driver_id=driver_id):
            check_driver(realm, driver_id, work.online_elsewhere(driver_id))
        case _:  # many updates, each of which is checked by itself; the clock, which each process has
            return


def check_id(realm: Realm, kind: str, key: str) -> None:
    """Return if a quote or ride is of this region, or raise `Misdirected`."""
    _check(realm, realm.regions.of_id(key), f"{kind} {key}")


def check_driver(realm: Realm, driver_id: str, region: str | None) -> None:
    """Return unless a driver is online in another region, or raise `Misdirected`."""
    owner = None if region is None else realm.regions.named(region)
    if owner is not None:
        _check(realm, owner, f"driver {driver_id}")


def _check(realm: Realm, owner: Region, what: str) -> None:
    if owner is not realm.own:
        raise Misdirected(what, owner=owner.name, address=owner.address)
