"""Payment and its provider in this process, on a memory bus, with faults between them."""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import payment.config
import payment.main
import payment_provider.config
import payment_provider.main
import pytest
from hailbus import Publisher, Service
from hailbus.testing import MemoryBus
from ride_events import CATALOGUE, LatLng, Money
from ride_events.rides import (
    RideCancelled,
    RideCompleted,
    RideMatched,
    RideRepriced,
    RideRequested,
    RideUnmatched,
)

from tests.integration.conftest import eventually

NOON = datetime(2014, 5, 1, 12, tzinfo=UTC)
HERE = LatLng(lat=40.75, lng=-73.98)
THERE = LatLng(lat=40.70, lng=-74.00)
GROUPS = ("payment-saga", "payment-steps")
CELL = "882a100d29fffff"
RideFact = RideRequested | RideMatched | RideRepriced | RideCompleted | RideCancelled | RideUnmatched


def dollars(amount_minor: int) -> Money:
    return Money(amount_minor=amount_minor)


def requested(ride_id: str, *, fare_minor: int = 1_840, rider_id: str = "r1") -> RideRequested:
    return RideRequested(
        ride_id=ride_id,
        seq=1,
        rider_id=rider_id,
        quote_id=f"quote-of-{ride_id}",
        pickup=HERE,
        dropoff=THERE,
        pickup_cell=CELL,
        dropoff_cell=CELL,
        fare=dollars(fare_minor),
        multiplier=1.0,
        surge_version=None,
    )


def repriced(ride_id: str, *, fare_minor: int) -> RideRepriced:
    return RideRepriced(
        ride_id=ride_id, seq=2, dropoff=THERE, dropoff_cell=CELL, fare=dollars(fare_minor), reason="took_longer"
    )


def completed(ride_id: str, *, fare_minor: int = 1_840, rider_id: str = "r1") -> RideCompleted:
    return RideCompleted(
        ride_id=ride_id,
        seq=5,
        rider_id=rider_id,
        driver_id="d1",
        pickup=HERE,
        dropoff=THERE,
        pickup_cell=CELL,
        dropoff_cell=CELL,
        passengers=1,
        requested_at=NOON,
        started_at=NOON,
        distance_m=4_000,
        duration_s=600,
        fare=dollars(fare_minor),
        multiplier=1.0,
    )


def cancelled(ride_id: str, *, matched_s: int | None = None, **more: Any) -> RideCancelled:
    said: dict[str, Any] = {"by": "rider", "reason": "changed_plans", "stage": "requested", **more}
    return RideCancelled(
        ride_id=ride_id,
        seq=3,
        rider_id="r1",
        driver_id="d1" if matched_s is not None else None,
        pickup_cell=CELL,
        matched_at=NOON + timedelta(seconds=matched_s) if matched_s is not None else None,
        **said,
    )


def unmatched(ride_id: str) -> RideUnmatched:
    return RideUnmatched(ride_id=ride_id, seq=2, rider_id="r1", pickup_cell=CELL, reason="timeout")


def matched(ride_id: str) -> RideMatched:
    """A step that payment has no use for: only its number counts."""
    return RideMatched(ride_id=ride_id, seq=2, driver_id="d1", driver_position=HERE, pickup_cell=CELL, eta_s=120)


def numbered(*events: RideFact, first: int = 1) -> list[RideFact]:
    """The events of one ride with the numbers that booking would give them."""
    return [event.model_copy(update={"seq": seq}) for seq, event in enumerate(events, first)]


class Wire(httpx.AsyncBaseTransport):
    """The network to the provider. `faults` are used up, one by one, by the requests whose path ends like that."""

    def __init__(self, provider: httpx.AsyncBaseTransport) -> None:
        self._provider = provider
        self.faults: dict[str, list[str]] = {}
        self.requests: list[tuple[str, str]] = []
        self.after_effect: Callable[[], None] | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append((request.url.path, request.headers["Idempotency-Key"]))
        ordered = next((faults for end, faults in self.faults.items() if request.url.path.endswith(end)), [])
        fault = ordered.pop(0) if ordered else ""
        match fault:
            case "refused":
                raise httpx.ConnectError("connection refused", request=request)
            case "timeout":
                raise httpx.ReadTimeout("no answer in time", request=request)
            case "503":
                return httpx.Response(503, request=request)
            case "nonsense":
                return httpx.Response(200, text="<html>", request=request)
        response = await self._provider.handle_async_request(request)
        if self.after_effect is not None:
            self.after_effect()
            self.after_effect = None
        match fault:
            case "answer lost":
                raise httpx.ReadError("connection reset", request=request)
            case "answer late":
                raise httpx.ReadTimeout("no answer in time", request=request)
            case "answer cut":
                return httpx.Response(201, text='{"authorisation', request=request)
        return response


@dataclass
class City:
    """The service under test, and those around it."""

    bus: MemoryBus
    wire: Wire
    payment: httpx.AsyncClient
    provider: httpx.AsyncClient
    rides: Publisher[RideFact]
    seqs: Counter[str] = field(default_factory=Counter)

    async def tell(self, *events: RideFact, after_s: int = 0) -> None:
        """Publish events of rides, each numbered behind those of its ride that were told before."""
        for event in events:
            self.seqs[event.ride_id] += 1
            await self.publish(*numbered(event, first=self.seqs[event.ride_id]), after_s=after_s)

    async def publish(self, *events: RideFact, after_s: int = 0) -> None:
        """Publish events of rides as they are, each with an id of its own."""
        for event in events:
            await self.rides.publish(event, time=NOON + timedelta(seconds=after_s))

    async def faults(self, **faults: object) -> None:
        response = await self.provider.post("/admin/faults", json=faults)
        assert response.status_code == 200, response.text

    async def state(self, ride_id: str) -> Any:
        response = await self.payment.get(f"/payments/{ride_id}")
        return response.json() if response.status_code == 200 else {"state": "none"}

    async def reaches(self, ride_id: str, *states: str) -> Any:
        async def there() -> bool:
            return (await self.state(ride_id))["state"] in states

        await eventually(there, within_s=60)
        return await self.state(ride_id)

    async def reads_all(self) -> None:
        """Wait until the saga has settled every record that was published."""

        async def so() -> bool:
            return self.bus.lag("payment-saga") == 0

        await eventually(so)

    async def moved(self, ride_id: str) -> list[tuple[str, int]]:
        found = (await self.provider.get("/transactions", params={"reference": ride_id})).json()
        return [(one["kind"], one["amount_minor"]) for one in found["transactions"]]

    async def told(self, ride_id: str, count: int) -> list[Any]:
        """The events of a payment, once there are so many."""

        async def there() -> bool:
            return len(self._told(ride_id)) >= count

        await eventually(there)
        return self._told(ride_id)

    def _told(self, ride_id: str) -> list[Any]:
        return [
            (dict(record.headers)["ce_type"].decode().removeprefix("payment."), record)
            for record in self.bus.records("payments.v1")
            if record.key == ride_id.encode()
        ]

    def letters(self) -> list[str]:
        """The topics of dead letters that hold one."""
        topics = [f"{topic}.{group}-dlt" for topic in ("rides.v1", "payment-steps.v1") for group in GROUPS]
        return [topic for topic in topics if self.bus.records(topic)]


StartCity = Callable[..., AbstractAsyncContextManager[City]]


@pytest.fixture
def bus() -> MemoryBus:
    return MemoryBus()


@pytest.fixture
def start(database_url: str, tmp_path: Path, bus: MemoryBus) -> StartCity:
    """Start payment and the provider, as often as a test likes, on the same databases and bus."""

    @asynccontextmanager
    async def started(**settings: Any) -> AsyncIterator[City]:
        provider = payment_provider.main.create_app(
            payment_provider.config.Settings(database_url=f"sqlite:///{tmp_path / 'provider.db'}")
        )
        network = httpx.ASGITransport(provider, raise_app_exceptions=False)
        wire = Wire(network)
        app = payment.main.create_app(
            payment.config.Settings(bootstrap_servers="memory:0", database_url=database_url, **settings),
            bus=bus,
            transport=wire,
        )
        booking = Service("booking", bus=bus, catalogue=CATALOGUE)
        rides: Publisher[RideFact] = booking.publishes(RideFact)
        async with AsyncExitStack() as stack:
            for one in (provider, app):
                await stack.enter_async_context(one.router.lifespan_context(one))
            await stack.enter_async_context(booking.running())
            payments = await stack.enter_async_context(
                httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://payment")
            )
            company = await stack.enter_async_context(httpx.AsyncClient(transport=network, base_url="http://provider"))
            yield City(bus=bus, wire=wire, payment=payments, provider=company, rides=rides)

    return started
