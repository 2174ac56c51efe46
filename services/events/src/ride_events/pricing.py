"""Surge multipliers and forecasts of demand and supply per H3 cell. Owner: surge."""

from datetime import datetime, timedelta

from hailbus import Event, Topic

from ride_events.geo import Cell

SURGE = Topic("surge.v1", partitions=6, cleanup_policy="compact", description="The latest multiplier of every cell")
FORECASTS = Topic(
    "forecasts.v1",
    partitions=6,
    retention=timedelta(days=7),
    description="Demand and supply expected per cell, and how far off that was",
)


class SurgeUpdated(Event, topic=SURGE, key="cell", type="surge.updated", version=1):
    """A cell's price multiplier changed. After `valid_until` the multiplier is 1.0 again.

    `surge_version` grows with each update of the cell; `demand` and `supply` are the weighted counts behind it.
    """

    cell: Cell
    multiplier: float
    surge_version: int
    window_end: datetime
    demand: float
    supply: float
    valid_until: datetime


class DemandForecastPublished(Event, topic=FORECASTS, key="cell", type="demand.forecast_published", version=1):
    """Pickups expected in a cell in the `horizon_min` minutes after `issued_at`."""

    cell: Cell
    horizon_min: int
    p10: float
    p50: float
    p90: float
    mean: float
    model: str
    issued_at: datetime


class DemandForecastScored(Event, topic=FORECASTS, key="model", type="demand.forecast_scored", version=1):
    """How far the forecasts of all cells of a resolution, made at `issued_at` for `horizon_min` minutes, were off.

    Both errors are sums over `forecasts` cells, so that a mean may be taken over any time: divide by the sum of
    `forecasts`. `absolute_error` is that of the median, `naive_absolute_error` that of the forecast "as many pickups as
    in the `horizon_min` minutes before".
    """

    model: str
    resolution: int
    horizon_min: int
    forecasts: int
    absolute_error: float
    naive_absolute_error: float
    issued_at: datetime


class SupplyForecastPublished(Event, topic=FORECASTS, key="cell", type="supply.forecast_published", version=1):
    """Free drivers expected in a cell `horizon_min` minutes after `issued_at`."""

    cell: Cell
    horizon_min: int
    p10: float
    p50: float
    p90: float
    mean: float
    model: str
    issued_at: datetime


class SupplyForecastScored(Event, topic=FORECASTS, key="model", type="supply.forecast_scored", version=1):
    """How far the supply forecasts of all cells of a resolution, made at `issued_at` for `horizon_min`, were off.

    As `DemandForecastScored`; the naive forecast is "as many free drivers as at `issued_at`".
    """

    model: str
    resolution: int
    horizon_min: int
    forecasts: int
    absolute_error: float
    naive_absolute_error: float
    issued_at: datetime
