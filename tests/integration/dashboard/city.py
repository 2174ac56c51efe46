"""A small city on a bus in memory, for the tests of the dashboard."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import uvicorn
from dashboard.config import Settings
from dashboard.main import create_app
from hailbus import BrokerUnreachableError, Bus, Publisher, Service, TopicPartition
from hailbus._transport import BrokerDescription, ClusterDescription, TopicDescription
from hailbus.testing import MemoryBus
from hailbus.testing.memory import MemoryAdmin
from ride_events import CATALOGUE, LatLng, Money
from ride_events.drivers import DriverBecameBusy, DriverWentOnline
from ride_events.payments import PaymentAuthorised, PaymentCaptured
from ride_events.pricing import SurgeUpdated
from ride_events.quotes import QuoteAccepted, QuoteOffered
from ride_events.recommendations import RankedOption, RecommendationChosen, RecommendationServed
from ride_events.rides import RideCancelled, RideCompleted, RideDriverArrived, RideMatched, RideRequested, RideStarted

EVENING = datetime(2014, 5, 1, 18, 0, tzinfo=UTC)
TIMES_SQUARE = LatLng(lat=40.7580, lng=-73.9855)
BROOKLYN = LatLng(lat=40.6782, lng=-73.9442)
HOT = TIMES_SQUARE.cell()


def settings(**values: Any) -> Settings:
    defaults = {name: field.get_default() for name, field in Settings.model_fields.items()}
    return Settings.model_construct(**{**defaults, "bootstrap_servers": "memory", **values})


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """Publishes what booking, surge and recommender would."""

    publisher: Publisher[Any]

    async def say(self, event: Any, seconds: float = 0) -> None:
        await self.publisher.publish(event, time=EVENING + timedelta(seconds=seconds))

    async def price(self, multiplier: float = 2.0, version: int = 1) -> None:
        await self.say(
            SurgeUpdated(
                cell=HOT,
                multiplier=multiplier,
                surge_version=version,
                window_end=EVENING,
                demand=12.5,
                supply=3.0,
                valid_until=EVENING + timedelta(days=1),
            )
        )

    async def ride(
        self,
        ride_id: str,
        *,
        until: str = "riding",
        start: LatLng = TIMES_SQUARE,
        end: LatLng = BROOKLYN,
        later_s: float = 0,
    ) -> None:
        """Tell a ride up to a phase: requested, matched, riding, completed or cancelled. It begins `later_s` later."""

        async def say(event: Any, seconds: float = 0) -> None:
            await self.say(event, seconds + later_s)

        fare = Money(amount_minor=2350)
        route: dict[str, Any] = {
            "pickup": start,
            "dropoff": end,
            "pickup_cell": start.cell(),
            "dropoff_cell": end.cell(),
        }
        quote: dict[str, Any] = {"quote_id": f"quote-of-{ride_id}", "rider_id": "rider-7"}
        await say(
            QuoteOffered(
                **quote,
                **route,
                seq=1,
                fare=fare,
                multiplier=2.0,
                surge_version=1,
                distance_m=11_000,
                duration_s=1_800,
                expires_at=EVENING + timedelta(minutes=2),
            )
        )
        await say(QuoteAccepted(**quote, seq=2, ride_id=ride_id, pickup_cell=start.cell()), 5)
        await say(
            RideRequested(ride_id=ride_id, seq=1, **quote, **route, fare=fare, multiplier=2.0, surge_version=1),
            5,
        )
        payment: dict[str, Any] = {
            "ride_id": ride_id,
            "payment_id": f"p-{ride_id}",
            "rider_id": "rider-7",
            "amount": fare,
        }
        await say(PaymentAuthorised(**payment, seq=1), 5)
        if until == "requested":
            return
        if until == "cancelled":
            await say(
                RideCancelled(
                    ride_id=ride_id,
                    seq=2,
                    rider_id="rider-7",
                    driver_id=None,
                    pickup_cell=start.cell(),
                    by="rider",
                    reason="changed plans",
                    stage="requested",
                ),
                9,
            )
            return
        driver: dict[str, Any] = {"ride_id": ride_id, "driver_id": f"driver-of-{ride_id}"}
        place = LatLng(lat=start.lat + 0.01, lng=start.lng)
        await say(RideMatched(**driver, seq=2, driver_position=place, pickup_cell=start.cell(), eta_s=180), 10)
        if until == "matched":
            return
        await say(RideDriverArrived(**driver, seq=3), 150)
        await say(RideStarted(**driver, seq=4, pickup=start, dropoff=end), 200)
        if until == "riding":
            return
        await say(
            RideCompleted(
                **driver,
                **route,
                seq=5,
                rider_id="rider-7",
                passengers=1,
                requested_at=EVENING,
                started_at=EVENING + timedelta(seconds=200),
                distance_m=11_000,
                duration_s=1_700,
                fare=fare,
                multiplier=2.0,
            ),
            1_900,
        )
        await say(PaymentCaptured(**payment, seq=2), 1_900)

    async def drivers(self, count: int, busy: int) -> None:
        for number in range(count):
            who: dict[str, Any] = {"driver_id": f"driver-{number}"}
            await self.say(DriverWentOnline(**who, seq=1, position=BROOKLYN, cell=BROOKLYN.cell()))
            if number < busy:
                await self.say(DriverBecameBusy(**who, seq=2, ride_id="r"))

    async def recommend(self, chosen: bool = True) -> None:
        who: dict[str, Any] = {"recommendation_id": "8d9b7a2e-7d2c-4a57-9f4e-5f2a51a2b0c1", "rider_id": "rider-7"}
        option = RankedOption(
            option_id="destination-1",
            kind="destination",
            rank=1,
            score=0.31,
            reason="usual at this hour from Times Sq/Theatre District: 31% of rides",
            cell=BROOKLYN.cell(9),
        )
        await self.say(RecommendationServed(**who, origin_cell=HOT, model="back-off-3", options=(option,)))
        if chosen:
            await self.say(RecommendationChosen(**who, option_id="destination-1", rank=1))


@asynccontextmanager
async def story(bus: Bus) -> AsyncIterator[Story]:
    """Yield a storyteller on the bus."""
    booking = Service("booking", source="/booking", bus=bus, catalogue=CATALOGUE)
    publisher = booking.publishes(CATALOGUE)
    async with booking.running():
        yield Story(publisher=publisher)


class BusOfThree(MemoryBus):
    """A bus in memory that describes itself as three brokers, of which some may be away.

    Attributes:
        away: Ids of fenced brokers. The others take over what they led.
        behind: Ids of brokers that serve but are not in sync.
        has_silent_leader: Whether a leader does not answer, so that nobody can tell the ends of all logs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.away: frozenset[int] = frozenset()
        self.behind: frozenset[int] = frozenset()
        self.has_silent_leader = False

    def admin(self, *, client_id: str) -> "AdminOfThree":
        return AdminOfThree(self)


class AdminOfThree(MemoryAdmin):
    """See `BusOfThree`."""

    def __init__(self, bus: BusOfThree) -> None:
        super().__init__(bus)
        self._three = bus

    async def cluster(self) -> ClusterDescription:
        away = self._three.away
        brokers = [
            BrokerDescription(node_id=node, host=f"broker-{node}", port=9092, rack=None, is_fenced=node in away)
            for node in (1, 2, 3)
        ]
        controller = min({1, 2, 3} - away, default=None)
        return ClusterDescription(cluster_id="c", controller_id=controller, voter_ids=(1, 2, 3), brokers=tuple(brokers))

    async def end_offsets(self, topics: Sequence[str]) -> Mapping[TopicPartition, int]:
        if self._three.has_silent_leader:
            raise BrokerUnreachableError(bootstrap="broker-1:9092", waited_s=4)
        return await super().end_offsets(topics)

    async def describe(self, topics: Sequence[str] | None = None) -> Mapping[str, TopicDescription]:
        away, behind = self._three.away, self._three.behind
        isr = tuple(node for node in (1, 2, 3) if node not in away | behind)
        return {
            name: replace(
                found,
                replication_factor=3,
                leaders={number: isr[number % len(isr)] if isr else -1 for number in found.leaders},
                replicas=dict.fromkeys(found.leaders, (1, 2, 3)),
                isr=dict.fromkeys(found.leaders, isr),
            )
            for name, found in (await super().describe(topics)).items()
        }


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def page(bus: Bus, *, port: int = 0, **values: Any) -> AsyncIterator[str]:
    """Serve the dashboard on loopback and yield its URL."""
    app, hub = create_app(settings(**values), bus=bus)
    listener = socket.create_server(("127.0.0.1", port))
    server = _Server(uvicorn.Config(app, lifespan="off", log_config=None, ws="none", timeout_graceful_shutdown=5))
    async with app.router.lifespan_context(app):
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            hub.close()
            server.should_exit = True
            await serving
            listener.close()
