"""Change where a ride goes: the fare changes with the way, the multiplier stays the quote's."""

from dataclasses import dataclass

from booking.app.ports import Needs, Work
from booking.app.pricing import reprice
from booking.domain.errors import RidePooled
from booking.domain.place import Place
from booking.domain.ride import TRANSITIONS, Ride, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeDestination:
    """The rider wants to go elsewhere."""

    ride_id: str
    dropoff: Place
    simulated: bool | None = None

    def needs(self) -> Needs:
        """The ride."""
        return Needs(rides=(self.ride_id,))

    def decide(self, work: Work) -> Ride:
        """Reprice the ride, or raise `NotFound`, `WrongState` or `RidePooled`."""
        ride = work.ride(self.ride_id)
        if ride.pooled_with is not None and (ride.state, Step.REPRICE) in TRANSITIONS:
            raise RidePooled(ride.ride_id, ride.pooled_with)  # the partner agreed to this way
        route_m = work.roads.way_m(ride.pickup, self.dropoff)
        fare_minor = work.policy.tariff.fare_minor(
            distance_m=route_m, duration_s=work.roads.drive_s(route_m), multiplier=ride.multiplier
        )
        return reprice(
            work,
            ride,
            dropoff=self.dropoff,
            route_m=route_m,
            fare_minor=fare_minor,
            reason="destination_changed",
            simulated=self.simulated,
        )
