"""Offer a rider a fare, at the current multiplier of the pickup's cell."""

from dataclasses import dataclass

from ride_events.quotes import QuoteOffered

from booking.app import story
from booking.app.ports import Needs, Work
from booking.domain.place import Place
from booking.domain.quote import Quote


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferQuote:
    """A rider asks what a ride costs."""

    quote_id: str
    rider_id: str
    pickup: Place
    dropoff: Place
    passengers: int = 1
    simulated: bool = False

    def needs(self) -> Needs:
        """Nothing that is stored."""
        return Needs()

    def decide(self, work: Work) -> Quote:
        """Offer the fare, good for the policy's time."""
        surge = work.multiplier(self.pickup.cell)
        if surge is not None and work.now >= surge.valid_until:
            surge = None  # nobody renewed it: fail cheap
        # Booking's own estimates: no number of the client's decides a price.
        distance_m = work.roads.way_m(self.pickup, self.dropoff)
        duration_s = work.roads.drive_s(distance_m)
        multiplier = surge.multiplier if surge else 1.0
        quote = Quote(
            quote_id=self.quote_id,
            rider_id=self.rider_id,
            pickup=self.pickup,
            dropoff=self.dropoff,
            passengers=self.passengers,
            distance_m=distance_m,
            duration_s=duration_s,
            fare_minor=work.policy.tariff.fare_minor(
                distance_m=distance_m, duration_s=duration_s, multiplier=multiplier
            ),
            multiplier=multiplier,
            surge_version=surge.version if surge else None,
            offered_at=work.now,
            expires_at=work.now + work.policy.quote_ttl,
            simulated=self.simulated,
        )
        work.put_quote(quote)
        work.record(
            QuoteOffered(
                quote_id=quote.quote_id,
                seq=quote.seq,
                simulated=quote.simulated,
                rider_id=quote.rider_id,
                pickup=story.lat_lng(quote.pickup),
                dropoff=story.lat_lng(quote.dropoff),
                pickup_cell=quote.pickup.cell,
                dropoff_cell=quote.dropoff.cell,
                fare=story.money(quote.fare_minor),
                multiplier=quote.multiplier,
                surge_version=quote.surge_version,
                distance_m=quote.distance_m,
                duration_s=quote.duration_s,
                expires_at=quote.expires_at,
            ),
            aggregate=quote.quote_id,
            seq=quote.seq,
            at=quote.offered_at,
            story=quote.quote_id,
        )
        work.set_timer("quote_expiry", quote.quote_id, quote.seq, quote.expires_at, simulated=quote.simulated)
        return quote
