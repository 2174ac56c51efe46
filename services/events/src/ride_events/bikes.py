"""What the bike service says of hires. Owner: bike."""

from datetime import datetime, timedelta

from hailbus import Event, Topic

from ride_events.geo import Cell, LatLng
from ride_events.money import Money

BIKES = Topic("bikes.v1", partitions=6, retention=timedelta(days=90), description="Every step of every bike hire")


class BikeEvent(Event, topic=BIKES, key="hire_id"):
    """A fact about one hire. `seq` counts 1, 2, 3… per hire."""

    hire_id: str
    bike_id: str
    rider_id: str
    seq: int
    simulated: bool = False


class BikeReserved(BikeEvent, type="bike.reserved", version=1):
    """A rider holds the bike until `expires_at`."""

    position: LatLng
    cell: Cell
    expires_at: datetime


class BikeUnlocked(BikeEvent, type="bike.unlocked", version=1):
    """The hire began."""

    position: LatLng
    cell: Cell


class BikeReturned(BikeEvent, type="bike.returned", version=1):
    """The hire ended."""

    pickup: LatLng
    dropoff: LatLng
    pickup_cell: Cell
    dropoff_cell: Cell
    started_at: datetime
    distance_m: int
    duration_s: int
    fare: Money


class BikeReservationLapsed(BikeEvent, type="bike.reservation_lapsed", version=1):
    """The rider did not unlock the bike in time."""

    cell: Cell
