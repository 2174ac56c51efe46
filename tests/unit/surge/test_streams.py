"""The pieces between the bus and the city."""

import datetime as dt

import pytest
from hailbus import Event, event_info
from hailbus.settings import read_settings
from ride_events import LatLng
from ride_events.drivers import DriverBecameBusy, DriverLocationReported, DriverWentOffline, DriverWentOnline
from ride_events.quotes import QuoteExpired
from ride_events.rides import RideCompleted
from surge.adapters.streams.records import fact_of, forecast_events, milliseconds, moment_of, price_event
from surge.adapters.streams.service import HEARD, SOURCES, declare
from surge.app.city import CellForecast, ForecastScore, Outlook, PriceChange
from surge.config import Settings
from surge.domain.forecast import MODEL
from surge.domain.windows import Seen

CELL = "882a100d25fffff"
PLACE = LatLng(lat=40.7484, lng=-73.9857)


@pytest.mark.parametrize(
    ("event", "fact"),
    [
        (
            DriverLocationReported(driver_id="d", position=PLACE, cell=CELL, free=False),
            Seen(at_ms=5, driver_id="d", cell=CELL, free=False),
        ),
        (
            DriverWentOnline(driver_id="d", seq=1, position=PLACE, cell=PLACE.cell(9)),
            Seen(at_ms=5, driver_id="d", cell=PLACE.cell(8), free=True),
        ),
        (DriverBecameBusy(driver_id="d", seq=1, ride_id="r"), Seen(at_ms=5, driver_id="d", cell=None, free=False)),
        (DriverWentOffline(driver_id="d", seq=1), Seen(at_ms=5, driver_id="d", cell=None, free=False)),
        (QuoteExpired(quote_id="q", seq=2, rider_id="u", pickup_cell=CELL), None),
    ],
)
def test_what_an_event_tells(event: Event, fact: Seen | None) -> None:
    assert fact_of(event, 5) == fact


def test_the_same_change_is_published_under_the_same_id() -> None:
    change = PriceChange(
        cell=CELL, multiplier=1.2, version=7, window_end_ms=420_000, demand=3.0, supply=1.0, valid_until_ms=720_000
    )
    first, second = price_event(change), price_event(change)
    assert first == second
    assert event_info(first.event).type == "surge.updated"
    assert first.time == dt.datetime(1970, 1, 1, 0, 7, tzinfo=dt.UTC)


def test_what_the_worker_publishes_is_declared() -> None:
    change = PriceChange(
        cell=CELL, multiplier=1.2, version=7, window_end_ms=420_000, demand=3.0, supply=1.0, valid_until_ms=720_000
    )
    forecast = CellForecast(cell=CELL, horizon_min=15, mean=1.0, p10=0.0, p50=1.0, p90=2.0, issued_at_ms=420_000)
    score = ForecastScore(
        resolution=8, horizon_min=15, forecasts=3, absolute_error=2.0, naive_absolute_error=4.0, issued_at_ms=420_000
    )
    outlook = Outlook((forecast,), (score,))
    answers = (price_event(change), *forecast_events(outlook, outlook))
    assert [type(answer.event) for answer in answers] == list(declare().published)
    for place in (2, 4):
        assert answers[place].time == dt.datetime(1970, 1, 1, 0, 22, tzinfo=dt.UTC)  # when its 15 minutes are over
        assert answers[place].event.model_dump()["model"] == MODEL
    assert len({answer.id for answer in answers}) == len(answers)


def test_every_event_of_the_sources_is_heard() -> None:
    """One that says nothing of demand or supply moves event time on all the same, and the inbox proves that it came."""
    assert {event_info(cls).topic for cls in HEARD} == set(SOURCES)
    assert RideCompleted in HEARD


def test_times_survive_the_way_through_milliseconds() -> None:
    at = dt.datetime(2014, 5, 5, 18, 0, 0, 123_000, tzinfo=dt.UTC)
    assert moment_of(milliseconds(at)) == at


def test_settings_are_read_from_the_environment_given() -> None:
    settings = read_settings(Settings, {"SURGE_BOOTSTRAP_SERVERS": "a:1", "SURGE_CLOCK": "event", "OTHER": "x"})
    assert (settings.bootstrap_servers, settings.clock) == ("a:1", "event")
