"""Share a car: two riders agree, and one driver serves both rides. Each rider speaks for the own ride only."""

from dataclasses import dataclass

from ride_events.rides import RidePooled

from booking.app import story
from booking.app.dispatch import seek_driver, wait_for_driver
from booking.app.ports import Needs, Work
from booking.domain.errors import CannotPool
from booking.domain.pool import in_pickup_order, obstacle
from booking.domain.ride import Ride, RideState


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRide:
    """A rider would share a car with the rider of another ride."""

    ride_id: str
    partner_ride_id: str
    simulated: bool | None = None

    def needs(self) -> Needs:
        """The ride. Its partner waits, or is of no use: rides that wait are always at hand."""
        return Needs(rides=(self.ride_id,))

    def decide(self, work: Work) -> Ride:
        """Note the wish; pool both rides if the partner's rider has the same wish, and look for their driver.

        Without that wish the answer does not depend on the partner: a caller learns nothing of another's ride.

        Raises:
            NotFound, WrongState, RidePooled: Of the caller's own ride.
            CannotPool: Both riders agree, and the rides do not fit; or the partner is the ride itself, or of another
                region.
        """
        ride = work.ride(self.ride_id).wish_pool(self.partner_ride_id)
        if self.partner_ride_id == self.ride_id:
            raise CannotPool(self.ride_id, self.partner_ride_id, "it is the same ride")
        if work.realm is not None and not work.realm.owns_id(self.partner_ride_id):
            raise CannotPool(self.ride_id, self.partner_ride_id, "the rides are of two regions")
        work.put_ride(ride)
        partner = work.open_ride_by_id(self.partner_ride_id)
        if partner is None or partner.pool_wish != self.ride_id or partner.state is not RideState.REQUESTED:
            return ride
        if (why := obstacle(ride, partner)) is not None:
            raise CannotPool(self.ride_id, self.partner_ride_id, why)
        for order, one in enumerate(in_pickup_order(ride, partner), start=1):
            other = partner if one is ride else ride
            fare_minor = work.policy.tariff.pooled_minor(one.fare_minor)
            pooled = one.pool(other.ride_id, fare_minor=fare_minor, at=work.now)
            work.put_ride(pooled)
            work.record(
                RidePooled(
                    ride_id=pooled.ride_id,
                    seq=pooled.seq,
                    simulated=story.marked(self.simulated, ride, partner),
                    rider_id=pooled.rider_id,
                    partner_ride_id=other.ride_id,
                    pickup_order=order,
                    fare=story.money(fare_minor),
                    single_fare=story.money(one.fare_minor),
                ),
                aggregate=pooled.ride_id,
                seq=pooled.seq,
                at=pooled.updated_at,
                story=pooled.quote_id,
            )
        # A ride that waits for a driver already has been offered to every driver who could take it.
        seeking = [one.ride_id for one in (ride, partner) if one.seeks_partner]
        for ride_id in seeking:
            work.cancel_timer("partner_wait", ride_id)
            wait_for_driver(work, work.ride(ride_id))
        if seeking:
            seek_driver(work, work.ride(seeking[0]))
        return work.ride(self.ride_id)
