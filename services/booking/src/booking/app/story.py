"""The events that tell of a ride and its driver: used by several use cases, written once."""

import uuid

from ride_events import LatLng, Money
from ride_events.drivers import DriverBecameBusy, DriverBecameFree
from ride_events.rides import RideMatched

from booking.app.ports import Work
from booking.domain.driver import Driver
from booking.domain.place import Place
from booking.domain.ride import Ride

NAMESPACE = uuid.UUID("6f2c1d0e-5c4b-5d61-9d0c-8a1b6a3f7e20")
"""Of all ids that booking derives."""


def derived_id(*parts: object) -> str:
    """Return the uuid5 of the parts: the same parts give the same id, before and after a crash."""
    return str(uuid.uuid5(NAMESPACE, "/".join(str(part) for part in parts)))


def lat_lng(place: Place) -> LatLng:
    """Return a place as events say it."""
    # Places were validated at the edge; a second validation would be half of an event's cost.
    return LatLng.model_construct(lat=place.lat, lng=place.lng)


def money(amount_minor: int) -> Money:
    """Return an amount as events say it."""
    return Money(amount_minor=amount_minor)


def marked(said: bool | None, *things: Ride | Driver | None) -> bool:
    """Return whether a fact is simulated: as the caller says, else when anything that takes part is."""
    return said if said is not None else any(thing.simulated for thing in things if thing is not None)


def tell_matched(work: Work, ride: Ride, driver: Driver) -> None:
    """Tell that a driver took the ride."""
    assert driver.position is not None and ride.eta_s is not None  # noqa: PT018 both follow from the match
    work.record(
        RideMatched(
            ride_id=ride.ride_id,
            seq=ride.seq,
            simulated=marked(None, ride, driver),
            driver_id=driver.driver_id,
            driver_position=lat_lng(driver.position),
            pickup_cell=ride.pickup.cell,
            eta_s=ride.eta_s,
        ),
        aggregate=ride.ride_id,
        seq=ride.seq,
        at=ride.updated_at,
        story=ride.quote_id,
    )


def tell_busy(work: Work, driver: Driver, ride: Ride) -> None:
    """Tell that a driver is busy with a ride."""
    work.record(
        DriverBecameBusy(driver_id=driver.driver_id, seq=driver.seq, simulated=driver.simulated, ride_id=ride.ride_id),
        aggregate=driver.driver_id,
        seq=driver.seq,
        at=driver.updated_at,
        story=ride.quote_id,
    )


def tell_free(work: Work, driver: Driver, story: str) -> None:
    """Tell that a driver is free again."""
    assert driver.position is not None
    work.record(
        DriverBecameFree(
            driver_id=driver.driver_id,
            seq=driver.seq,
            simulated=driver.simulated,
            position=lat_lng(driver.position),
            cell=driver.position.cell,
        ),
        aggregate=driver.driver_id,
        seq=driver.seq,
        at=driver.updated_at,
        story=story,
    )
