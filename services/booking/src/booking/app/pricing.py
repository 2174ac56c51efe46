"""Pricing a ride anew: a part of several use cases, not one of its own."""

from typing import Literal

from ride_events.rides import RideRepriced

from booking.app import story
from booking.app.ports import Work
from booking.domain.place import Place
from booking.domain.ride import Ride

Reason = Literal["destination_changed", "took_longer", "pool_ended"]


def reprice(
    work: Work,
    ride: Ride,
    *,
    dropoff: Place,
    route_m: int,
    fare_minor: int,
    reason: Reason,
    simulated: bool | None,
) -> Ride:
    """Give the ride another fare. May raise `WrongState`."""
    after = ride.reprice(dropoff=dropoff, route_m=route_m, fare_minor=fare_minor, at=work.now)
    work.put_ride(after)
    tell_repriced(work, after, reason=reason, simulated=simulated)
    return after


def tell_repriced(work: Work, ride: Ride, *, reason: Reason, simulated: bool | None) -> None:
    """Tell that a ride has another fare."""
    work.record(
        RideRepriced(
            ride_id=ride.ride_id,
            seq=ride.seq,
            simulated=story.marked(simulated, ride),
            dropoff=story.lat_lng(ride.dropoff),
            dropoff_cell=ride.dropoff.cell,
            fare=story.money(ride.fare_minor),
            reason=reason,
        ),
        aggregate=ride.ride_id,
        seq=ride.seq,
        at=ride.updated_at,
        story=ride.quote_id,
    )
