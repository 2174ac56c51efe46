"""Events as facts that the city counts, and the city's answers as events."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, TypeVar
from uuid import UUID, uuid5

from hailbus import Event, event_info
from ride_events.drivers import (
    DriverBecameBusy,
    DriverBecameFree,
    DriverLocationReported,
    DriverWentOffline,
    DriverWentOnline,
)
from ride_events.pricing import (
    DemandForecastPublished,
    DemandForecastScored,
    SupplyForecastPublished,
    SupplyForecastScored,
    SurgeUpdated,
)
from ride_events.quotes import QuoteOffered
from ride_events.rides import RideRequested

from surge.app.city import CellForecast, ForecastScore, Outlook, PriceChange
from surge.domain.cells import ROLL_UP_RESOLUTION, pricing_cell
from surge.domain.forecast import MODEL
from surge.domain.windows import MINUTE_MS, Fact, Quoted, Requested, Seen

SOURCE = "/surge"
IDS = UUID("6f0a3c1e-5b0e-5d2a-9d55-3f2f5c7f9a10")
"""Ids of published events are derived from this and what the event says: published again, it keeps its id."""


Forecast = DemandForecastPublished | DemandForecastScored | SupplyForecastPublished | SupplyForecastScored
E = TypeVar("E", bound=Event)
E_co = TypeVar("E_co", bound=Event, covariant=True)


@dataclass(frozen=True, slots=True)
class Answer(Generic[E_co]):
    """An event to publish, with the id and the time that it has however often it is published."""

    event: E_co
    id: str
    time: datetime


def milliseconds(moment: datetime) -> int:
    """Unix milliseconds of a moment."""
    return round(moment.timestamp() * 1000)


def moment_of(at_ms: int) -> datetime:
    """The moment of Unix milliseconds, UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def fact_of(event: Event, at_ms: int) -> Fact | None:
    """What an event tells a city, None for one that says nothing of demand or supply."""
    match event:
        case DriverLocationReported():
            return Seen(at_ms=at_ms, driver_id=event.driver_id, cell=pricing_cell(event.cell), free=event.free)
        case QuoteOffered():
            cell = pricing_cell(event.pickup_cell)
            return None if cell is None else Quoted(at_ms=at_ms, cell=cell, rider_id=event.rider_id)
        case RideRequested():
            cell = pricing_cell(event.pickup_cell)
            if cell is None:
                return None
            area = event.pickup.cell(ROLL_UP_RESOLUTION)
            return Requested(at_ms=at_ms, cell=cell, area=area, ride_id=event.ride_id, rider_id=event.rider_id)
        case DriverWentOnline() | DriverBecameFree():
            return Seen(at_ms=at_ms, driver_id=event.driver_id, cell=pricing_cell(event.cell), free=True)
        case DriverBecameBusy() | DriverWentOffline():
            return Seen(at_ms=at_ms, driver_id=event.driver_id, cell=None, free=False)
        case _:
            return None


def price_event(change: PriceChange) -> Answer[SurgeUpdated]:
    """`surge.updated`: the id is that of cell and version, the time the window's end."""
    event = SurgeUpdated(
        cell=change.cell,
        multiplier=change.multiplier,
        surge_version=change.version,
        window_end=moment_of(change.window_end_ms),
        demand=change.demand,
        supply=change.supply,
        valid_until=moment_of(change.valid_until_ms),
    )
    return _answer(event, f"{change.cell}/{change.version}", change.window_end_ms)


def forecast_events(demand: Outlook, supply: Outlook) -> Iterator[Answer[Forecast]]:
    """The events of `forecasts.v1`, in the order in which they are published."""
    for outlook, published, scored in (
        (demand, DemandForecastPublished, DemandForecastScored),
        (supply, SupplyForecastPublished, SupplyForecastScored),
    ):
        yield from (_forecast_event(published, forecast) for forecast in outlook.forecasts)
        yield from (_score_event(scored, score) for score in outlook.scores)


def _forecast_event(
    kind: type[DemandForecastPublished | SupplyForecastPublished], forecast: CellForecast
) -> Answer[Forecast]:
    """The id is that of cell, horizon and issue time."""
    event = kind(
        cell=forecast.cell,
        horizon_min=forecast.horizon_min,
        p10=forecast.p10,
        p50=forecast.p50,
        p90=forecast.p90,
        mean=forecast.mean,
        model=MODEL,
        issued_at=moment_of(forecast.issued_at_ms),
    )
    return _answer(event, f"{forecast.cell}/{forecast.horizon_min}/{forecast.issued_at_ms}", forecast.issued_at_ms)


def _score_event(kind: type[DemandForecastScored | SupplyForecastScored], score: ForecastScore) -> Answer[Forecast]:
    """The id is that of resolution, horizon and issue time; its time is the end."""
    event = kind(
        model=MODEL,
        resolution=score.resolution,
        horizon_min=score.horizon_min,
        forecasts=score.forecasts,
        absolute_error=score.absolute_error,
        naive_absolute_error=score.naive_absolute_error,
        issued_at=moment_of(score.issued_at_ms),
    )
    ended_ms = score.issued_at_ms + score.horizon_min * MINUTE_MS
    return _answer(event, f"{score.resolution}/{score.horizon_min}/{score.issued_at_ms}", ended_ms)


def _answer(event: E, name: str, at_ms: int) -> Answer[E]:
    return Answer(event, str(uuid5(IDS, f"{event_info(event).type}/{name}")), moment_of(at_ms))
