"""Bodies of requests and answers."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from ride_events import LatLng, Money, cell

from bike.domain.hire import Bike, Hire, HireState, Place

Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:-]{1,64}$")]


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


class NewBike(Body):
    """A bike and where it stands."""

    bike_id: Id
    place: PlaceBody


class NewHire(Body):
    """Who wants which bike."""

    bike_id: Id
    rider_id: Id
    simulated: bool = False


class Nothing(Body):
    """No field."""


class Return(Body):
    """Where the bike stands now, and how far it went (metres)."""

    place: PlaceBody
    distance_m: int = Field(ge=0, le=1_000_000)


class BikeView(BaseModel):
    """A bike."""

    bike_id: str
    state: Literal["free", "reserved", "in_use"]
    place: LatLng
    cell: str
    hire_id: str | None

    @classmethod
    def of(cls, bike: Bike, holder: Hire | None, now: datetime) -> "BikeView":
        """Return the view of a bike at a moment."""
        state = holder.as_of(now).state if holder is not None else HireState.LAPSED
        taken = state in {HireState.RESERVED, HireState.IN_USE}
        return cls(
            bike_id=bike.bike_id,
            state="free" if not taken else "reserved" if state is HireState.RESERVED else "in_use",
            place=LatLng(lat=bike.place.lat, lng=bike.place.lng),
            cell=bike.place.cell,
            hire_id=bike.hire_id if taken else None,
        )


class HireView(BaseModel):
    """A hire."""

    hire_id: str
    bike_id: str
    rider_id: str
    state: Literal["reserved", "in_use", "returned", "lapsed"]
    seq: int = Field(description="Number of the hire's latest event, from 1.")
    pickup: LatLng
    pickup_cell: str
    dropoff: LatLng | None
    dropoff_cell: str | None
    reserved_at: datetime
    expires_at: datetime
    started_at: datetime | None
    returned_at: datetime | None
    distance_m: int | None
    duration_s: int | None
    fare: Money | None
    simulated: bool

    @classmethod
    def of(cls, hire: Hire, now: datetime) -> "HireView":
        """Return the view of a hire at a moment."""
        hire = hire.as_of(now)
        dropoff = hire.dropoff
        return cls(
            hire_id=hire.hire_id,
            bike_id=hire.bike_id,
            rider_id=hire.rider_id,
            state=hire.state.value,
            seq=hire.seq,
            pickup=LatLng(lat=hire.pickup.lat, lng=hire.pickup.lng),
            pickup_cell=hire.pickup.cell,
            dropoff=LatLng(lat=dropoff.lat, lng=dropoff.lng) if dropoff else None,
            dropoff_cell=dropoff.cell if dropoff else None,
            reserved_at=hire.reserved_at,
            expires_at=hire.expires_at,
            started_at=hire.started_at,
            returned_at=hire.returned_at,
            distance_m=hire.distance_m,
            duration_s=hire.duration_s,
            fare=Money(amount_minor=hire.fare_minor) if hire.fare_minor is not None else None,
            simulated=hire.simulated,
        )


class BikeList(BaseModel):
    """Bikes by id. `next` goes into `after`."""

    bikes: list[BikeView]
    next: str | None


class ClockView(BaseModel):
    """What time it is for the service. `now` is null before the first event."""

    clock: Literal["wall", "event"]
    now: datetime | None
