"""Which two rides may share a driver, and who is picked up first."""

from typing import Final

from booking.domain.place import great_circle_m
from booking.domain.ride import Ride

APART_S: Final = 300
"""Requests of pooled rides are at most this far apart."""
APART_M: Final = 3_000
"""So far apart are two pickups at most, and two drop-offs, as the crow flies."""
SEATS: Final = 4
"""Passengers of both rides together."""


def obstacle(ride: Ride, partner: Ride) -> str | None:
    """Say why two waiting rides cannot share a driver, None if they can."""
    if ride.rider_id == partner.rider_id:
        return "both are of the same rider"
    if ride.passengers + partner.passengers > SEATS:
        return f"{ride.passengers} and {partner.passengers} passengers are more than {SEATS} seats"
    if abs((ride.requested_at - partner.requested_at).total_seconds()) > APART_S:
        return f"they were requested more than {APART_S} s apart"
    for what, one, other in (
        ("pickups", ride.pickup, partner.pickup),
        ("drop-offs", ride.dropoff, partner.dropoff),
    ):
        if great_circle_m(one, other) > APART_M:
            return f"their {what} are more than {APART_M} m apart"
    return None


def in_pickup_order(ride: Ride, partner: Ride) -> tuple[Ride, Ride]:
    """Return two rides in the order of their pickups: who asked first is picked up first."""
    first, second = sorted((ride, partner), key=lambda one: (one.requested_at, one.ride_id))
    return first, second
