"""What booking says of rides. Owner: booking."""

from datetime import datetime, timedelta
from typing import Literal

from hailbus import Event, Topic

from ride_events.geo import Cell, LatLng
from ride_events.money import Money

RIDES = Topic("rides.v1", partitions=6, retention=timedelta(days=90), description="Every step of every ride")


class RideEvent(Event, topic=RIDES, key="ride_id"):
    """A fact about one ride.

    `seq` counts 1, 2, 3… per ride: consumers ignore what they have seen and notice a gap.
    `simulated` marks a fact that no recording holds.
    """

    ride_id: str
    seq: int
    simulated: bool = False


class RideRequested(RideEvent, type="ride.requested", version=1):
    """A rider booked a quoted ride."""

    rider_id: str
    quote_id: str
    pickup: LatLng
    dropoff: LatLng
    pickup_cell: Cell
    dropoff_cell: Cell
    passengers: int = 1
    fare: Money
    multiplier: float
    surge_version: int | None


class RideMatched(RideEvent, type="ride.matched", version=1):
    """A driver took the ride."""

    driver_id: str
    driver_position: LatLng
    pickup_cell: Cell
    eta_s: int


class RideDriverArrived(RideEvent, type="ride.driver_arrived", version=1):
    """The driver waits at the pickup."""

    driver_id: str


class RideStarted(RideEvent, type="ride.started", version=1):
    """The rider is on board."""

    driver_id: str
    pickup: LatLng
    dropoff: LatLng


class RideCompleted(RideEvent, type="ride.completed", version=1):
    """The rider reached the destination and pays `fare`.

    `distance_m` is the driver's odometer; `duration_s` runs from start to end by booking's clock. `reason` is set when
    booking ended the ride because its driver did not: `ride_timeout`. `distance_m` is then booking's estimate.
    """

    rider_id: str
    driver_id: str
    pickup: LatLng
    dropoff: LatLng
    pickup_cell: Cell
    dropoff_cell: Cell
    passengers: int
    requested_at: datetime
    started_at: datetime
    distance_m: int
    duration_s: int
    fare: Money
    multiplier: float
    reason: str | None = None


class RideCancelled(RideEvent, type="ride.cancelled", version=1):
    """The ride ended before it started. `stage` is the state it was in.

    `matched_at` is when the driver in `driver_id` took the ride; None without a driver.
    """

    rider_id: str
    driver_id: str | None
    pickup_cell: Cell
    by: Literal["rider", "driver", "system"]
    reason: str
    stage: Literal["requested", "matched", "arrived"]
    matched_at: datetime | None = None


class RideUnmatched(RideEvent, type="ride.unmatched", version=1):
    """No driver was found in time, or every driver found cancelled."""

    rider_id: str
    pickup_cell: Cell
    reason: Literal["timeout", "redispatch_limit"]


class RideRedispatched(RideEvent, type="ride.redispatched", version=1):
    """The driver cancelled; another one is looked for. `attempt` counts from 1 to 3."""

    driver_id: str
    pickup_cell: Cell
    attempt: int
    reason: str


class RideRepriced(RideEvent, type="ride.repriced", version=1):
    """The fare changed, never the multiplier.

    The rider changed the destination, the ride took much longer, or it is pooled no more (`pool_ended`).
    """

    dropoff: LatLng
    dropoff_cell: Cell
    fare: Money
    reason: str


class RidePooled(RideEvent, type="ride.pooled", version=1):
    """Both riders agreed to share a car: one driver serves this ride and `partner_ride_id`.

    The partner ride has an event of this type, too.

    `fare` is what the rider pays from now on, `single_fare` what the ride cost before and costs again if the pool ends
    before the rider is on board. `pickup_order` is 1 for the rider who is picked up first, 2 for the other.
    """

    rider_id: str
    partner_ride_id: str
    pickup_order: int
    fare: Money
    single_fare: Money
