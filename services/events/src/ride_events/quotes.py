"""What booking says of quotes. Owner: booking."""

from datetime import datetime, timedelta

from hailbus import Event, Topic

from ride_events.geo import Cell, LatLng
from ride_events.money import Money

QUOTES = Topic("quotes.v1", partitions=6, retention=timedelta(days=7), description="Fares offered to riders")


class QuoteEvent(Event, topic=QUOTES, key="quote_id"):
    """A fact about one quote. `seq` counts 1, 2, 3… per quote."""

    quote_id: str
    seq: int
    simulated: bool = False


class QuoteOffered(QuoteEvent, type="quote.offered", version=1):
    """A rider was shown a fare, good until `expires_at`."""

    rider_id: str
    pickup: LatLng
    dropoff: LatLng
    pickup_cell: Cell
    dropoff_cell: Cell
    fare: Money
    multiplier: float
    surge_version: int | None
    distance_m: int
    duration_s: int
    expires_at: datetime


class QuoteAccepted(QuoteEvent, type="quote.accepted", version=1):
    """The rider booked at the quoted fare; the ride honours the quote's multiplier."""

    rider_id: str
    ride_id: str
    pickup_cell: Cell


class QuoteExpired(QuoteEvent, type="quote.expired", version=1):
    """Nobody accepted the quote before `expires_at`."""

    rider_id: str
    pickup_cell: Cell
