"""The city as the log tells it."""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import h3
from hailbus import ContractError, Event
from hailbus.codec import decode
from ride_events import CATALOGUE
from ride_events.drivers import (
    DRIVER_LOCATIONS,
    DriverBecameBusy,
    DriverBecameFree,
    DriverLocationReported,
    DriverWentOffline,
    DriverWentOnline,
)
from ride_events.geo import PRICING_RESOLUTION, LatLng
from ride_events.pricing import (
    DemandForecastPublished,
    DemandForecastScored,
    SupplyForecastPublished,
    SupplyForecastScored,
    SurgeUpdated,
)
from ride_events.quotes import QuoteOffered
from ride_events.recommendations import RecommendationChosen, RecommendationServed
from ride_events.rides import RideEvent, RideRequested
from ride_events.zones import zone_of_cell

from dashboard.domain.cars import Cars
from dashboard.domain.demand import HORIZON_MIN, Demand, Forecast, Score
from dashboard.domain.flow import Flow, OffsetTimes
from dashboard.domain.rides import RideBook
from dashboard.domain.supply import Supply
from dashboard.domain.timeline import Record, Timelines

_SHOWN_TYPES: Final = frozenset(
    {
        b"demand.forecast_published",
        b"demand.forecast_scored",
        b"supply.forecast_published",
        b"supply.forecast_scored",
        b"quote.offered",
        b"surge.updated",
        b"recommendation.served",
        b"recommendation.chosen",
    }
)
_SHOWN_PREFIXES: Final = (b"ride.", b"driver.went", b"driver.became")
_OF_RIDES: Final = frozenset({"rides.v1", "payments.v1"})
_OF_QUOTES: Final = "quotes.v1"
TIMELINE_TOPICS: Final = _OF_RIDES | {_OF_QUOTES}
"""Topics whose records are kept whole, for the timeline of a ride."""
_DURATIONS: Final = 20_000
_RECENT: Final = 8
_OUTSIDE: Final = "outside the city"


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiplier:
    """The price of a cell. After `valid_until_ms`, event time, it is 1.0 again."""

    multiplier: float
    demand: float
    supply: float
    valid_until_ms: int
    surge_version: int


@dataclass(slots=True)
class Recommendations:
    """What was recommended: totals, and the last eight."""

    served: int = 0
    chosen: int = 0
    chosen_first: int = 0
    recent: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_RECENT))  # Any: JSON

    def take(self, event: RecommendationServed, at_ms: int) -> None:
        """Count an answer, and keep what of it is shown."""
        self.served += 1
        zone = zone_of_cell(event.origin_cell)
        destinations = [option for option in event.options if option.kind == "destination"][:3]
        self.recent.appendleft(
            {
                "id": event.recommendation_id,
                "at": at_ms,
                "rider": event.rider_id,
                "from": zone.name if zone else _OUTSIDE,
                "options": [{"name": _name(option.cell), "score": round(option.score, 3)} for option in destinations],
                "reason": destinations[0].reason if destinations else "",
                "kinds": sorted({option.kind for option in event.options}),
            }
        )


def _name(cell: str | None) -> str:
    zone = zone_of_cell(cell) if cell is not None else None
    return zone.name if zone is not None else _OUTSIDE


class City:
    """Takes records one by one; what changed since the last look is in `rides.changed` and `changed_cells`."""

    def __init__(self, *, tick_s: float) -> None:
        self.rides = RideBook()
        self.cells: dict[str, Multiplier] = {}
        self.changed_cells: set[str] = set()
        self.recommendations = Recommendations()
        self.demand = Demand()
        self.supply = Supply()
        self.timelines = Timelines()
        self.flow = Flow(tick_s=tick_s)
        self.offsets = OffsetTimes()
        self.drivers: dict[str, bool] = {}
        self.free_drivers = 0
        self.cars = Cars()
        self.event_ms = 0
        self.records = 0
        self.unreadable = 0
        self._durations: OrderedDict[str, int] = OrderedDict()

    def apply(self, record: Record) -> None:
        """Take a record of any topic."""
        topic = record.topic
        self.records += 1
        self.offsets.seen((topic, record.partition), record.offset, record.timestamp)
        if topic == _OF_QUOTES and record.key is not None:
            self.timelines.of_quote(record.key.decode(errors="replace"), record)
        elif topic in _OF_RIDES and record.key is not None:
            self.timelines.of_ride(record.key.decode(errors="replace"), record)
        kind = source = b""
        for name, value in record.headers:
            if name == "ce_type":
                kind = value
            elif name == "ce_source":
                source = value
        self.flow.count(source.decode(errors="replace"), topic)
        if record.value is None or not (self._is_shown(kind) or self._is_due(record)):
            return
        try:
            event, envelope = decode(record, CATALOGUE)
        except ContractError:
            self.unreadable += 1
            return
        self.take(event, _ms(envelope.time))

    def take(self, event: Event, at_ms: int) -> None:
        """Take an event that happened at `at_ms`."""
        self.event_ms = max(self.event_ms, at_ms)
        self.demand.passed(self.event_ms)
        match event:
            case RideRequested():
                self.timelines.begin(event.ride_id, event.quote_id)
                if self.rides.is_new(event.ride_id):
                    self.demand.requested(event.pickup_cell, at_ms)
                self.rides.apply(event, at_ms, duration_s=self._durations.pop(event.quote_id, None))
            case RideEvent():
                self.rides.apply(event, at_ms)
            case QuoteOffered():
                self._durations[event.quote_id] = event.duration_s
                if len(self._durations) > _DURATIONS:
                    self._durations.popitem(last=False)
            case SurgeUpdated():
                known = self.cells.get(event.cell)
                if known is None or event.surge_version >= known.surge_version:
                    self.cells[event.cell] = Multiplier(
                        multiplier=event.multiplier,
                        demand=event.demand,
                        supply=event.supply,
                        valid_until_ms=_ms(event.valid_until),
                        surge_version=event.surge_version,
                    )
                    self.changed_cells.add(event.cell)
            case DemandForecastPublished() | SupplyForecastPublished():
                # Requests are counted in pricing cells: forecasts of larger ones have nothing to stand beside.
                if event.horizon_min == HORIZON_MIN and h3.get_resolution(event.cell) == PRICING_RESOLUTION:
                    expected = Forecast(issued_ms=_ms(event.issued_at), p10=event.p10, p50=event.p50, p90=event.p90)
                    self._outlook(event).forecast(event.cell, expected)
            case DemandForecastScored() | SupplyForecastScored():
                if event.horizon_min == HORIZON_MIN and event.resolution == PRICING_RESOLUTION:
                    score = Score(
                        forecasts=event.forecasts, error=event.absolute_error, naive_error=event.naive_absolute_error
                    )
                    self._outlook(event).scores.take(_ms(event.issued_at), score)
            case RecommendationServed():
                self.recommendations.take(event, at_ms)
            case RecommendationChosen():
                self.recommendations.chosen += 1
                self.recommendations.chosen_first += event.rank == 1
            case DriverWentOnline() | DriverBecameFree():
                self._driver(event.driver_id, event.position)
            case DriverBecameBusy():
                self._driver(event.driver_id, None)
            case DriverWentOffline():
                self.free_drivers -= self.drivers.pop(event.driver_id, False)
                self.cars.gone(event.driver_id)
            case DriverLocationReported():
                # Booking says who is free; a position that is read late does not bring a busy car back.
                if self.drivers.get(event.driver_id):
                    self.cars.at(event.driver_id, event.position)
            case _:
                pass

    def _outlook(self, event: Event) -> Demand | Supply:
        """What a forecast or a score is about."""
        return self.supply if isinstance(event, SupplyForecastPublished | SupplyForecastScored) else self.demand

    def _is_shown(self, kind: bytes) -> bool:
        return kind in _SHOWN_TYPES or kind.startswith(_SHOWN_PREFIXES)

    def _is_due(self, record: Record) -> bool:
        """Return whether a position is read: positions are most of the log, and a dot need not move more often."""
        if record.topic != DRIVER_LOCATIONS.name or record.key is None:
            return False
        driver_id = record.key.decode(errors="replace")
        return bool(self.drivers.get(driver_id)) and self.cars.is_due(driver_id, record.timestamp)

    def _driver(self, driver_id: str, free_at: LatLng | None) -> None:
        self.free_drivers += int(free_at is not None) - int(self.drivers.get(driver_id, False))
        self.drivers[driver_id] = free_at is not None
        if free_at is None:
            self.cars.gone(driver_id)
        else:
            self.cars.at(driver_id, free_at)


def _ms(time: datetime) -> int:
    return int(time.timestamp() * 1000)


__all__ = ["TIMELINE_TOPICS", "City", "Multiplier", "Recommendations"]
