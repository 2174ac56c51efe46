"""Change where a ride goes: the fare changes with the way, the multiplier stays the quote's."""

from dataclasses import dataclass

from ride_events.rides import RideRepriced

from booking.app import story
from booking.app.ports import Needs, Work
from booking.domain.place import Place, drive_s, route_m
from booking.domain.ride import Ride


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
        """Reprice the ride, or raise `NotFound` or `WrongState`."""
        ride = work.ride(self.ride_id)
        distance_m = route_m(ride.pickup, self.dropoff)
        ride = ride.reprice(
            dropoff=self.dropoff,
            fare_minor=work.policy.tariff.fare_minor(
                distance_m=distance_m, duration_s=drive_s(distance_m), multiplier=ride.multiplier
            ),
            at=work.now,
        )
        work.put_ride(ride)
        work.record(
            RideRepriced(
                ride_id=ride.ride_id,
                seq=ride.seq,
                simulated=story.marked(self.simulated, ride),
                dropoff=story.lat_lng(ride.dropoff),
                dropoff_cell=ride.dropoff.cell,
                fare=story.money(ride.fare_minor),
                reason="destination_changed",
            ),
            aggregate=ride.ride_id,
            seq=ride.seq,
            at=ride.updated_at,
            story=ride.quote_id,
        )
        return ride
