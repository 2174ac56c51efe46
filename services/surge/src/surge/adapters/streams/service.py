"""Which events the worker reads and publishes, by the declaration of its service."""

from datetime import timedelta
from typing import Final

from hailbus import Bus, Event, Publisher, Service, SubscriberSettings, event_info
from ride_events import CATALOGUE
from ride_events.drivers import DRIVER_LOCATIONS, DRIVERS
from ride_events.pricing import (
    DemandForecastPublished,
    DemandForecastScored,
    SupplyForecastPublished,
    SupplyForecastScored,
    SurgeUpdated,
)
from ride_events.quotes import QUOTES
from ride_events.rides import RIDES

from surge.adapters.streams.records import SOURCE, Forecast

NAME: Final = "surge"
SOURCES: Final = (RIDES, QUOTES, DRIVERS, DRIVER_LOCATIONS)
HEARD: Final[tuple[type[Event], ...]] = tuple(cls for cls in CATALOGUE if event_info(cls).topic in SOURCES)
"""Every event of the topics, whether it tells anything of demand and supply or not: each moves event time on."""
BUFFERED: Final = 4_000
"""Events that wait for the city at most; beyond it nothing is fetched."""

Answers = Publisher[SurgeUpdated | Forecast]


def create_service(bus: Bus | None = None) -> tuple[Service, Answers]:
    """Return the service without its handler, and what publishes for it."""
    service = Service(
        NAME,
        source=SOURCE,
        bus=bus,
        catalogue=CATALOGUE,
        subscribing=SubscriberSettings(
            max_buffered=BUFFERED, commit_interval=timedelta(milliseconds=500), drain_timeout=timedelta(seconds=5)
        ),
    )
    publisher: Answers = service.publishes(
        SurgeUpdated | DemandForecastPublished | DemandForecastScored | SupplyForecastPublished | SupplyForecastScored
    )
    return service, publisher


def declare() -> Service:
    """Return the declaration alone, for `hailbus docs`."""
    return create_service()[0]
