"""Accept a quote: request the ride at its fare, and match it at once when a driver is near.

A rider who would share a car can have the ride wait for a partner first.
"""

from dataclasses import dataclass

from ride_events.quotes import QuoteAccepted
from ride_events.rides import RideRequested

from booking.app import story
from booking.app.dispatch import seek_driver
from booking.app.ports import Needs, Work
from booking.domain.errors import PaymentDue, RideOpen
from booking.domain.ride import Ride


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRide:
    """A rider accepts a quote. With `seeks_partner` the ride waits to be pooled before a driver is looked for."""

    ride_id: str
    quote_id: str
    seeks_partner: bool = False
    simulated: bool = False

    def needs(self) -> Needs:
        """The quote, and that its rider gets no ride elsewhere."""
        return Needs(quotes=(self.quote_id,), riders_of=(self.quote_id,))

    def decide(self, work: Work) -> Ride:
        """Request the ride, or raise `NotFound`, `QuoteTaken`, `QuoteExpired`, `RideOpen` or `PaymentDue`."""
        quote = work.quote(self.quote_id).accept(self.ride_id, at=work.now)
        if (open_ride := work.open_ride(quote.rider_id)) is not None:
            raise RideOpen(quote.rider_id, open_ride)
        if (debt := work.debt(quote.rider_id)) is not None:
            raise PaymentDue(quote.rider_id, *debt)
        work.put_quote(quote)
        work.cancel_timer("quote_expiry", quote.quote_id)
        at = max(work.now, quote.offered_at)
        work.record(
            QuoteAccepted(
                quote_id=quote.quote_id,
                seq=quote.seq,
                simulated=quote.simulated,
                rider_id=quote.rider_id,
                ride_id=self.ride_id,
                pickup_cell=quote.pickup.cell,
            ),
            aggregate=quote.quote_id,
            seq=quote.seq,
            at=at,
            story=quote.quote_id,
        )
        ride = Ride(
            ride_id=self.ride_id,
            quote_id=quote.quote_id,
            rider_id=quote.rider_id,
            pickup=quote.pickup,
            dropoff=quote.dropoff,
            passengers=quote.passengers,
            route_m=quote.distance_m,
            fare_minor=quote.fare_minor,
            multiplier=quote.multiplier,
            surge_version=quote.surge_version,
            requested_at=at,
            updated_at=at,
            simulated=self.simulated,
            seeks_partner=self.seeks_partner,
        )
        work.put_ride(ride)
        work.record(
            RideRequested(
                ride_id=ride.ride_id,
                seq=ride.seq,
                simulated=ride.simulated,
                rider_id=ride.rider_id,
                quote_id=ride.quote_id,
                pickup=story.lat_lng(ride.pickup),
                dropoff=story.lat_lng(ride.dropoff),
                pickup_cell=ride.pickup.cell,
                dropoff_cell=ride.dropoff.cell,
                passengers=ride.passengers,
                fare=story.money(ride.fare_minor),
                multiplier=ride.multiplier,
                surge_version=ride.surge_version,
            ),
            aggregate=ride.ride_id,
            seq=ride.seq,
            at=at,
            story=ride.quote_id,
        )
        if not ride.seeks_partner:
            return seek_driver(work, ride)
        due_at = at + work.policy.partner_wait
        work.set_timer("partner_wait", ride.ride_id, ride.timer_seq, due_at, simulated=ride.simulated)
        return ride
