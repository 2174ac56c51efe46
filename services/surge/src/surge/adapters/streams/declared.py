"""What the worker publishes, for documents. It reads and writes through faust, so this service is never started."""

from hailbus import Service
from ride_events import CATALOGUE
from ride_events.pricing import (
    DemandForecastPublished,
    DemandForecastScored,
    SupplyForecastPublished,
    SupplyForecastScored,
    SurgeUpdated,
)

from surge.adapters.streams.records import SOURCE


def create_service() -> Service:
    """Return the worker's declaration, for `hailbus docs`."""
    service = Service("surge", source=SOURCE, catalogue=CATALOGUE)
    service.publishes(
        SurgeUpdated | DemandForecastPublished | DemandForecastScored | SupplyForecastPublished | SupplyForecastScored
    )
    return service
