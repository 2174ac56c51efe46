"""What the city page reads of other services' events."""

from dashboard.domain.city import City
from hailbus import Event
from hailbus.testing.plugin import NeedsRecorder
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
from ride_events.recommendations import RecommendationChosen, RecommendationServed
from ride_events.rides import (
    RideCancelled,
    RideCompleted,
    RideDriverArrived,
    RideMatched,
    RideRedispatched,
    RideRepriced,
    RideRequested,
    RideStarted,
    RideUnmatched,
)

from tests.contract.examples import example

STEPS = (RideRequested, RideMatched, RideRedispatched, RideDriverArrived, RideRepriced, RideStarted)


def test_rides_move_on_and_end(needs: NeedsRecorder) -> None:
    for end in (RideCompleted, RideCancelled, RideUnmatched):
        city = City(tick_s=0.25)
        for seq, kind in enumerate((*STEPS, end), 1):
            event = example(kind).model_copy(update={"seq": seq})
            city.take(needs("dashboard", event), seq * 1000)
        book = city.rides
        assert (book.counts.requested, len(book.open), book.counts.repeated) == (1, 0, 0)
        assert len(book.ended) == 1


def test_prices_forecasts_and_recommendations(needs: NeedsRecorder) -> None:
    city = City(tick_s=0.25)
    city.take(needs("dashboard", example(QuoteOffered)), 1000)
    city.take(needs("dashboard", example(SurgeUpdated)), 2000)
    city.take(needs("dashboard", example(DemandForecastPublished).model_copy(update={"horizon_min": 15})), 3000)
    fifteen = {"horizon_min": 15, "resolution": 8}
    city.take(needs("dashboard", example(DemandForecastScored).model_copy(update=fifteen)), 3500)
    supply = example(SupplyForecastPublished).model_copy(update={"horizon_min": 15})
    city.take(needs("dashboard", supply), 3600)
    city.take(needs("dashboard", example(SupplyForecastScored).model_copy(update=fifteen)), 3700)
    city.take(needs("dashboard", example(RecommendationServed)), 4000)
    city.take(needs("dashboard", example(RecommendationChosen)), 5000)
    assert len(city.cells) == 1
    assert city.demand.shown() is not None
    assert city.demand.scores.mae is not None
    assert city.supply.expected(supply.cell, round(supply.issued_at.timestamp() * 1000)) is not None
    assert city.supply.scores.mae is not None
    assert (city.recommendations.served, city.recommendations.chosen) == (1, 1)


def test_drivers_come_and_go(needs: NeedsRecorder) -> None:
    city = City(tick_s=0.25)
    steps: tuple[type[Event], ...] = (
        DriverWentOnline,
        DriverLocationReported,
        DriverBecameBusy,
        DriverBecameFree,
        DriverWentOffline,
    )
    for seq, kind in enumerate(steps):
        event = example(kind).model_copy(update={"driver_id": "d1"})
        city.take(needs("dashboard", event), seq * 1000)
        assert len(city.cars.places) == (kind not in (DriverBecameBusy, DriverWentOffline))
    assert city.drivers == {}
