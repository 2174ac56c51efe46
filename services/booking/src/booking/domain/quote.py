"""A quote: a fare that is good for a while."""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from booking.domain.errors import QuoteExpired, QuoteTaken
from booking.domain.place import Place


class QuoteState(StrEnum):
    """Where a quote is in its life."""

    OFFERED = "offered"
    ACCEPTED = "accepted"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """A fare offered to a rider. `seq` counts its events from 1."""

    quote_id: str
    rider_id: str
    pickup: Place
    dropoff: Place
    passengers: int
    distance_m: int
    duration_s: int
    fare_minor: int
    multiplier: float
    surge_version: int | None
    offered_at: datetime
    expires_at: datetime
    simulated: bool
    state: QuoteState = QuoteState.OFFERED
    seq: int = 1
    ride_id: str | None = None

    def accept(self, ride_id: str, *, at: datetime) -> "Quote":
        """Book at this fare.

        Raises:
            QuoteTaken: It was accepted before.
            QuoteExpired: `at` is not before `expires_at`, whether or not the timer has said so already.
        """
        if self.state is QuoteState.ACCEPTED:
            raise QuoteTaken(self.quote_id, self.ride_id)
        if self.state is QuoteState.EXPIRED or at >= self.expires_at:
            raise QuoteExpired(self.quote_id, self.expires_at)
        return replace(self, state=QuoteState.ACCEPTED, seq=self.seq + 1, ride_id=ride_id)

    def expire(self) -> "Quote | None":
        """Return the expired quote, `None` when it is settled already."""
        if self.state is not QuoteState.OFFERED:
            return None
        return replace(self, state=QuoteState.EXPIRED, seq=self.seq + 1)
