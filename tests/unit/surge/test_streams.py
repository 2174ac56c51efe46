"""The pieces between faust and the city."""

import asyncio
import datetime as dt
from typing import Any

import pytest
from hailbus import Event, event_info
from hailbus.settings import read_settings
from mode import Service
from ride_events import LatLng
from ride_events.drivers import DriverBecameBusy, DriverLocationReported, DriverWentOffline, DriverWentOnline
from ride_events.quotes import QuoteExpired
from surge.adapters.streams.declared import create_service
from surge.adapters.streams.records import fact_of, forecast_events, milliseconds, moment_of, price_event
from surge.adapters.streams.worker import EagerConsumer, Intake
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
    headers = dict(first.headers)
    assert headers["ce_type"] == b"surge.updated"
    assert headers["ce_time"] == b"1970-01-01T00:07:00Z"
    assert first.key == CELL.encode()


def test_what_the_worker_publishes_is_declared() -> None:
    change = PriceChange(
        cell=CELL, multiplier=1.2, version=7, window_end_ms=420_000, demand=3.0, supply=1.0, valid_until_ms=720_000
    )
    forecast = CellForecast(cell=CELL, horizon_min=15, mean=1.0, p10=0.0, p50=1.0, p90=2.0, issued_at_ms=420_000)
    score = ForecastScore(
        resolution=8, horizon_min=15, forecasts=3, absolute_error=2.0, naive_absolute_error=4.0, issued_at_ms=420_000
    )
    outlook = Outlook((forecast,), (score,))
    events = (price_event(change), *forecast_events(outlook, outlook))
    headers = [dict(encoded.headers) for encoded in events]
    service = create_service()
    assert [found["ce_type"].decode() for found in headers] == [event_info(cls).type for cls in service.published]
    assert {found["ce_source"].decode() for found in headers} == {service.source}
    for place in (2, 4):
        assert headers[place]["ce_time"] == b"1970-01-01T00:22:00Z"  # when its 15 minutes are over
        assert {events[place].key, headers[place]["ce_subject"]} == {MODEL.encode()}
    assert len({found["ce_id"] for found in headers}) == len(events)


def test_times_survive_the_way_through_milliseconds() -> None:
    at = dt.datetime(2014, 5, 5, 18, 0, 0, 123_000, tzinfo=dt.UTC)
    assert moment_of(milliseconds(at)) == at


async def test_the_intake_gives_what_came_and_holds_back_what_is_too_much() -> None:
    intake = Intake(most=3)
    await intake.put([1, 2, 3, 4])
    waiting = asyncio.create_task(intake.put([5]))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert await intake.take(most=2, wait_s=0) == [1, 2]
    await waiting
    assert await intake.take(most=10, wait_s=0) == [3, 4, 5]
    assert await intake.take(most=10, wait_s=0.01) == []


@pytest.mark.parametrize("waits", [0, 1, 3])
async def test_a_message_that_has_to_wait_is_handed_over_all_the_same(waits: int) -> None:
    done: list[int] = []

    async def callback() -> None:
        for number in range(waits):
            future = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(future.set_result, number)
            done.append(await future)

    consumer: Any = object.__new__(EagerConsumer)
    Service.__init__(consumer)
    result = await consumer.wait_first(callback(), asyncio.Event().wait())
    assert result.stopped is False
    assert done == list(range(waits))


async def test_a_message_that_fails_fails_the_consumer() -> None:
    async def callback() -> None:
        raise LookupError("no")

    consumer: Any = object.__new__(EagerConsumer)
    Service.__init__(consumer)
    with pytest.raises(LookupError):
        await consumer.wait_first(callback(), asyncio.Event().wait())


def test_settings_are_read_from_the_environment_given() -> None:
    settings = read_settings(Settings, {"SURGE_BOOTSTRAP_SERVERS": "a:1", "SURGE_CLOCK": "event", "OTHER": "x"})
    assert (settings.bootstrap_servers, settings.clock) == ("a:1", "event")
