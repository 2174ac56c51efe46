"""The numbers that booking's decisions depend on."""

from dataclasses import dataclass, field
from datetime import timedelta

from booking.domain.fare import Tariff


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How long things may take, and how far a driver may be.

    Attributes:
        quote_ttl: How long a quote is good.
        match_timeout: How long a ride waits for a driver, each time it waits.
        partner_wait: How long a ride waits for a partner to be pooled with before a driver is looked for. It is a part
            of the first `match_timeout`.
        no_show_after: How long a driver waits at the pickup.
        pickup_grace: How long after the estimated arrival a matched ride waits for its driver.
        ride_grace: How long after the estimated end a ride under way waits for its driver to end it.
        silent_after: How long a driver is matched after the last sign of life.
        match_rings: How many H3 rings (resolution 8, about 0.85 km each) around the pickup are searched.
        max_redispatches: How often another driver is looked for.
        tariff: What a ride costs.
    """

    quote_ttl: timedelta = timedelta(seconds=120)
    match_timeout: timedelta = timedelta(seconds=300)
    partner_wait: timedelta = timedelta(seconds=120)
    no_show_after: timedelta = timedelta(seconds=300)
    pickup_grace: timedelta = timedelta(seconds=600)
    ride_grace: timedelta = timedelta(seconds=14_400)
    silent_after: timedelta = timedelta(seconds=30)
    match_rings: int = 8
    max_redispatches: int = 3
    tariff: Tariff = field(default_factory=Tariff)
