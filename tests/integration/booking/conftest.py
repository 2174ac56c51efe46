"""Booking in this process, on a memory bus and either database."""

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from booking.config import Settings
from booking.main import create_app
from hailbus.testing import MemoryBus

from tests.integration.booking.callers import By, Callers

PICKUP = {"lat": 40.75, "lng": -73.98}
DROPOFF = {"lat": 40.70, "lng": -74.00}
FAR_AWAY = {"lat": 41.5, "lng": -74.9}


@dataclass
class Client:
    """Sends requests to booking as whom they name, unless `by` is given; generates missing keys."""

    http: httpx.AsyncClient
    bus: MemoryBus
    callers: Callers
    keys: "itertools.count[int]" = field(default_factory=itertools.count)

    async def post(
        self,
        path: str,
        body: object,
        *,
        key: str | None = None,
        at: str | None = None,
        expect: int | None = None,
        by: By | None = None,
    ) -> Any:
        response = await self.raw(path, body, key=key, at=at, by=by)
        if expect is not None:
            assert response.status_code == expect, response.text
        else:
            assert response.status_code in {200, 201}, response.text
        return response.json()

    async def raw(
        self, path: str, body: object, *, key: str | None = None, at: str | None = None, by: By | None = None
    ) -> httpx.Response:
        headers = {
            "Idempotency-Key": key or f"made-up-{id(self)}-{next(self.keys)}",
            **self.callers.header(by or self.callers.of(path, body)),
        }
        if at is not None:
            headers["Event-Time"] = at
        response = await self.http.post(path, json=body, headers=headers)
        self.callers.note(response.json())
        return response

    async def get(self, path: str, *, expect: int = 200, by: By = ("operator", "tests")) -> Any:
        response = await self.http.get(path, headers=self.callers.header(by))
        assert response.status_code == expect, response.text
        return response.json()

    async def quote(self, **more: object) -> Any:
        at = more.pop("at", None)
        body = {"rider_id": "r1", "pickup": PICKUP, "dropoff": DROPOFF, **more}
        return await self.post("/quotes", body, at=at)  # type: ignore[arg-type]  # a dict of JSON

    async def ride(self, *, at: str | None = None, **more: object) -> Any:
        """Book a ride for a rider of its own, unless `rider_id` names one: nobody has two at once."""
        quote = await self.quote(at=at, **{"rider_id": f"made-up-{next(self.keys)}", **more})
        return await self.post("/rides", {"quote_id": quote["quote_id"]}, at=at)

    def types(self, topic: str) -> list[str]:
        return [_header(record, "ce_type") for record in self.bus.records(topic)]

    def events(self, topic: str, subject: str) -> list[tuple[str, str]]:
        """Type and time of a subject's events, in the order of the log."""
        return [
            (_header(record, "ce_type"), _header(record, "ce_time"))
            for record in self.bus.records(topic)
            if record.key == subject.encode()
        ]


def _header(record: Any, name: str) -> str:
    return next(str(value, "utf-8") for header, value in record.headers if header == name)


StartBooking = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture
def bus() -> MemoryBus:
    return MemoryBus()


@pytest.fixture
def callers(tmp_path: Path) -> Callers:
    return Callers(tmp_path / "callers")


@pytest.fixture
def start_booking(database_url: str, bus: MemoryBus, callers: Callers) -> StartBooking:
    """Start booking, as often as a test likes, on the same database and bus."""

    @asynccontextmanager
    async def start(**settings: Any) -> AsyncIterator[Client]:
        given = {"bootstrap_servers": "memory:0", "database_url": database_url, "auth_keys": callers.keys, **settings}
        app = create_app(Settings(**given), bus=bus)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(
                transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://booking"
            ) as http,
        ):
            yield Client(http=http, bus=bus, callers=callers)

    return start
