"""Bodies of requests and answers."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints
from ride_events import LatLng, Money, cell

from booking.domain.driver import Driver
from booking.domain.place import Place
from booking.domain.quote import Quote
from booking.domain.ride import Ride

Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:-]{1,64}$")]
Reason = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,200}$")]
Passengers = Annotated[int, Field(ge=1, le=8)]
DistanceM = Annotated[int, Field(ge=0, le=1_000_000, description="Metres.")]
Simulated = Annotated[bool, Field(description="No recording holds this.")]
MaybeSimulated = Annotated[
    bool | None, Field(description="Whether no recording holds this; left out: as the ride and its driver.")
]


class Body(BaseModel):
    """A request body: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PlaceBody(Body):
    """A place in WGS-84 degrees."""

    lat: float = Field(ge=-90, le=90, allow_inf_nan=False)
    lng: float = Field(ge=-180, le=180, allow_inf_nan=False)

    def place(self) -> Place:
        """Return the place with its cell."""
        return Place(lat=self.lat, lng=self.lng, cell=cell(self.lat, self.lng))


class NewQuote(Body):
    """What a rider wants to know the fare of."""

    rider_id: Id
    pickup: PlaceBody
    dropoff: PlaceBody
    passengers: Passengers = 1
    simulated: Simulated = False


class NewRide(Body):
    """The quote that is accepted."""

    quote_id: Id
    seeks_partner: bool = Field(
        default=False,
        description="The rider would share a car: no driver is looked for until the ride is pooled, see `pool`, or has "
        "waited for a partner for some minutes.",
    )
    simulated: Simulated = False


class Cancellation(Body):
    """Who cancels, and why."""

    by: Literal["rider", "driver"]
    reason: Reason
    driver_id: Id | None = Field(default=None, description="Needed when the driver cancels.")
    simulated: MaybeSimulated = None


class Destination(Body):
    """Where the rider wants to go now."""

    dropoff: PlaceBody
    simulated: MaybeSimulated = None


class Pool(Body):
    """With whom the rider would share a car."""

    partner_ride_id: Id = Field(description="The other ride, as the recommender offers it among `pooled_rides`.")
    simulated: MaybeSimulated = None


class Position(Body):
    """Where a driver is."""

    position: PlaceBody


class Online(Position):
    """Where a driver begins."""

    simulated: Simulated = False


class Nothing(Body):
    """No field."""


class ByDriver(Body):
    """Which driver takes the step."""

    driver_id: Id
    simulated: MaybeSimulated = None


class Completion(ByDriver):
    """How far the ride was by the driver's odometer. It decides no price."""

    distance_m: DistanceM


class _UpdateBase(Body):
    driver_id: Id
    event_time: AwareDatetime | None = Field(default=None, description="Only by the event clock; else the request's.")


class OnlineUpdate(_UpdateBase):
    """A driver goes online."""

    kind: Literal["online"]
    position: PlaceBody
    simulated: Simulated = False


class LocationUpdate(_UpdateBase):
    """A driver has moved."""

    kind: Literal["location"]
    position: PlaceBody


class OfflineUpdate(_UpdateBase):
    """A driver goes offline."""

    kind: Literal["offline"]


class StepUpdate(_UpdateBase):
    """A driver has arrived at the pickup, or starts the ride."""

    kind: Literal["arrived", "start"]
    ride_id: Id
    simulated: MaybeSimulated = None


class CompleteUpdate(_UpdateBase):
    """A driver has completed a ride."""

    kind: Literal["complete"]
    ride_id: Id
    distance_m: DistanceM
    simulated: MaybeSimulated = None


class CancelUpdate(_UpdateBase):
    """A driver cancels a ride."""

    kind: Literal["cancel"]
    ride_id: Id
    reason: Reason
    simulated: MaybeSimulated = None


AnyUpdate = OnlineUpdate | LocationUpdate | OfflineUpdate | StepUpdate | CompleteUpdate | CancelUpdate


class DriverUpdates(Body):
    """Updates of many drivers, done in order."""

    updates: list[Annotated[AnyUpdate, Field(discriminator="kind")]] = Field(max_length=1000)


# ---------------------------------------------------------------------------------------------------- answers


class QuoteView(BaseModel):
    """A quote."""

    quote_id: str
    rider_id: str
    state: Literal["offered", "accepted", "expired"]
    pickup: LatLng
    dropoff: LatLng
    pickup_cell: str
    dropoff_cell: str
    fare: Money
    multiplier: float
    surge_version: int | None
    distance_m: int
    duration_s: int
    passengers: int
    offered_at: datetime
    expires_at: datetime
    ride_id: str | None
    simulated: bool

    @classmethod
    def of(cls, quote: Quote) -> "QuoteView":
        """Return the view of a quote. Nothing is validated: it was, on its way in."""
        return cls.model_construct(
            quote_id=quote.quote_id,
            rider_id=quote.rider_id,
            state=quote.state.value,
            pickup=_lat_lng(quote.pickup),
            dropoff=_lat_lng(quote.dropoff),
            pickup_cell=quote.pickup.cell,
            dropoff_cell=quote.dropoff.cell,
            fare=Money.model_construct(amount_minor=quote.fare_minor),
            multiplier=quote.multiplier,
            surge_version=quote.surge_version,
            distance_m=quote.distance_m,
            duration_s=quote.duration_s,
            passengers=quote.passengers,
            offered_at=quote.offered_at,
            expires_at=quote.expires_at,
            ride_id=quote.ride_id,
            simulated=quote.simulated,
        )


class RideView(BaseModel):
    """A ride."""

    ride_id: str
    quote_id: str
    rider_id: str
    state: Literal[
        "requested", "matched", "arrived", "in_progress", "redispatched", "completed", "cancelled", "unmatched"
    ]
    seq: int = Field(description="Number of the ride's latest event, from 1.")
    pickup: LatLng
    dropoff: LatLng
    pickup_cell: str
    dropoff_cell: str
    passengers: int
    fare: Money
    multiplier: float
    surge_version: int | None
    driver_id: str | None
    eta_s: int | None
    redispatches: int
    requested_at: datetime
    matched_at: datetime | None
    arrived_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    distance_m: int | None
    duration_s: int | None
    cancelled_by: Literal["rider", "driver", "system"] | None
    reason: str | None
    seeks_partner: bool = Field(description="Whether the ride waits for a partner; no driver is looked for yet.")
    pool_wish: str | None = Field(description="The ride that the rider would share a car with; see `pool`.")
    pooled_with: str | None = Field(description="The ride that shares the driver. The fare is then the lower one.")
    payment: Literal["pending", "authorised", "declined", "captured", "due", "released", "refunded"] = Field(
        description="What payment said of the ride's money last; it comes some time after the ride's own change."
    )
    paid: Money = Field(description="What the rider was charged, less what was paid back.")
    owed: Money = Field(description="What the rider owes. Until it is paid, the rider cannot request another ride.")
    simulated: bool

    @classmethod
    def of(cls, ride: Ride) -> "RideView":
        """Return the view of a ride. Nothing is validated: it was, on its way in."""
        return cls.model_construct(
            ride_id=ride.ride_id,
            quote_id=ride.quote_id,
            rider_id=ride.rider_id,
            state=ride.state.value,
            seq=ride.seq,
            pickup=_lat_lng(ride.pickup),
            dropoff=_lat_lng(ride.dropoff),
            pickup_cell=ride.pickup.cell,
            dropoff_cell=ride.dropoff.cell,
            passengers=ride.passengers,
            fare=Money.model_construct(amount_minor=ride.fare_minor),
            multiplier=ride.multiplier,
            surge_version=ride.surge_version,
            driver_id=ride.driver_id,
            eta_s=ride.eta_s,
            redispatches=ride.redispatches,
            requested_at=ride.requested_at,
            matched_at=ride.matched_at,
            arrived_at=ride.arrived_at,
            started_at=ride.started_at,
            ended_at=ride.ended_at,
            distance_m=ride.distance_m,
            duration_s=ride.duration_s,
            cancelled_by=ride.cancelled_by,
            reason=ride.reason,
            seeks_partner=ride.seeks_partner,
            pool_wish=ride.pool_wish,
            pooled_with=ride.pooled_with,
            payment=ride.payment.state.value,
            paid=Money.model_construct(amount_minor=ride.payment.paid_minor),
            owed=Money.model_construct(amount_minor=ride.payment.owed_minor),
            simulated=ride.simulated,
        )


class DriverView(BaseModel):
    """A driver."""

    driver_id: str
    status: Literal["free", "busy", "offline"]
    position: LatLng | None
    cell: str | None
    ride_id: str | None
    seq: int = Field(description="Number of the driver's latest event, from 1.")
    updated_at: datetime
    heard_at: datetime = Field(
        description="When the driver did or reported something last; silent drivers get no ride."
    )
    simulated: bool

    @classmethod
    def of(cls, driver: Driver) -> "DriverView":
        """Return the view of a driver. Nothing is validated: it was, on its way in."""
        return cls.model_construct(
            driver_id=driver.driver_id,
            status=driver.status.value,
            position=_lat_lng(driver.position) if driver.position else None,
            cell=driver.position.cell if driver.position else None,
            ride_id=driver.ride_id,
            seq=driver.seq,
            updated_at=driver.updated_at,
            heard_at=driver.heard_at,
            simulated=driver.simulated,
        )


class RideList(BaseModel):
    """Rides, the newest request first. `next` goes into `after`."""

    rides: list[RideView]
    next: str | None


class DriverList(BaseModel):
    """Drivers by id. `next` goes into `after`."""

    drivers: list[DriverView]
    next: str | None


class UpdateResult(BaseModel):
    """What became of one update: a driver, a ride, or a problem."""

    status: int
    body: dict[str, object]


class UpdateResults(BaseModel):
    """One result for each update, in the same order."""

    results: list[UpdateResult]


class ClockView(BaseModel):
    """What time it is for booking. `now` is null before the first event."""

    clock: Literal["wall", "event"]
    now: datetime | None


def _lat_lng(place: Place) -> LatLng:
    return LatLng.model_construct(lat=place.lat, lng=place.lng)
