"""Pricing a ride anew: a part of two use cases, not one of its own."""

from typing import Literal

from ride_events.rides import RideRepriced

from booking.app import story
from booking.app.ports import Work
from booking.domain.place import Place
from booking.domain.ride import Ride


def reprice(
    work: Work,
    ride: Ride,
    *,
    dropoff: Place,
    route_m: int,
    fare_minor: int,
    reason: Literal["destination_changed", "took_longer"],
    simulated: bool | None,
) -> Ride:
    """Give the ride another fare. May raise `WrongState`."""
    after = ride.reprice(dropoff=dropoff, route_m=route_m, fare_minor=fare_minor, at=work.now)
    work.put_ride(after)
    work.record(
        RideRepriced(
            ride_id=after.ride_id,
            seq=after.seq,
            simulated=story.marked(simulated, after),
            dropoff=story.lat_lng(after.dropoff),
            dropoff_cell=after.dropoff.cell,
            fare=story.money(after.fare_minor),
            reason=reason,
        ),
        aggregate=after.ride_id,
        seq=after.seq,
        at=after.updated_at,
        story=after.quote_id,
    )
    return after
