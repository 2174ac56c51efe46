"""Hires over HTTP, on SQLite and on PostgreSQL."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from bike.config import Settings
from bike.main import create_app
from hailbus import DeliveryError
from hailbus.database import create_engine
from hailbus.testing import MemoryBus
from sqlalchemy import text

from tests.integration.conftest import Broker, Process, eventually

pytestmark = pytest.mark.timeout(120)
HERE = {"lat": 40.75, "lng": -73.98}
THERE = {"lat": 40.70, "lng": -74.00}
AT = "2014-05-01T08:{:02d}:00Z".format


@dataclass
class Client:
    http: httpx.AsyncClient
    bus: MemoryBus
    keys: "itertools.count[int]" = field(default_factory=itertools.count)

    async def raw(
        self, path: str, body: object, *, minute: int | None = None, key: str | None = None
    ) -> httpx.Response:
        headers = {"Idempotency-Key": key or f"{id(self)}-{next(self.keys)}"}
        if minute is not None:
            headers["Event-Time"] = AT(minute)
        return await self.http.post(path, json=body, headers=headers)

    async def post(self, path: str, body: object, *, minute: int | None = None, key: str | None = None) -> Any:
        response = await self.raw(path, body, minute=minute, key=key)
        assert response.status_code in {200, 201}, response.text
        return response.json()

    async def refused(self, path: str, body: object, code: str, *, minute: int | None = None) -> None:
        response = await self.raw(path, body, minute=minute)
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["type"] == f"/problems/{code}"

    def events(self) -> list[tuple[str, str]]:
        found = []
        for record in self.bus.records("bikes.v1"):
            headers = dict(record.headers)
            found.append((headers["ce_type"].decode(), headers["ce_time"].decode()))
        return found


StartBike = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture
def start_bike(database_url: str) -> StartBike:
    bus = MemoryBus()

    @asynccontextmanager
    async def start(**more: Any) -> AsyncIterator[Client]:
        settings = {"bootstrap_servers": "memory:0", "database_url": database_url, "clock": "event", **more}
        app = create_app(Settings(**settings), bus=bus)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://bike") as http,
        ):
            yield Client(http=http, bus=bus)

    return start


async def test_an_expired_key_is_a_new_request(start_bike: StartBike, database_url: str) -> None:
    async with start_bike() as bike:
        await bike.post("/bikes", {"bike_id": "b1", "place": HERE}, minute=0)
        body = {"bike_id": "b1", "rider_id": "r1"}
        first = await bike.post("/hires", body, minute=1, key="k")
        await bike.post(f"/hires/{first['hire_id']}/unlock", {}, minute=2)
        await bike.post(f"/hires/{first['hire_id']}/return", {"place": THERE, "distance_m": 4_000}, minute=9)
        engine = create_engine(database_url)
        async with engine.begin() as connection:
            await connection.execute(text("DELETE FROM hailbus_answers"))  # as pruning does
        await engine.dispose()
        assert (await bike.post("/hires", body, minute=10, key="k"))["hire_id"] != first["hire_id"]


async def test_a_hire_from_reservation_to_fare(start_bike: StartBike) -> None:
    async with start_bike() as bike:
        await bike.post("/bikes", {"bike_id": "b1", "place": HERE}, minute=0)
        hire = await bike.post("/hires", {"bike_id": "b1", "rider_id": "r1"}, minute=1)
        assert (hire["state"], hire["expires_at"]) == ("reserved", AT(11))
        await bike.refused("/hires", {"bike_id": "b1", "rider_id": "r2"}, "bike-taken")
        await bike.refused("/bikes", {"bike_id": "b1", "place": THERE}, "bike-taken")
        assert (await bike.post(f"/hires/{hire['hire_id']}/unlock", {}, minute=3))["state"] == "in_use"
        ended = await bike.post(f"/hires/{hire['hire_id']}/return", {"place": THERE, "distance_m": 4_000}, minute=23)
        assert (ended["state"], ended["duration_s"], ended["fare"]["amount_minor"]) == ("returned", 1_200, 600)
        assert (await bike.http.get(f"/hires/{hire['hire_id']}")).json() == ended
        where = (await bike.http.get("/bikes")).json()["bikes"]
        assert [(one["state"], one["place"]) for one in where] == [("free", THERE)]
        await bike.post("/clock", {}, minute=50)  # the lapse was withdrawn

        async def all_there() -> bool:
            return len(bike.events()) == 3

        await eventually(all_there)
        assert bike.events() == [("bike.reserved", AT(1)), ("bike.unlocked", AT(3)), ("bike.returned", AT(23))]


async def test_a_reservation_lapses_without_a_timer(start_bike: StartBike) -> None:
    async with start_bike() as bike:
        await bike.post("/bikes", {"bike_id": "b1", "place": HERE}, minute=0)
        hire = await bike.post("/hires", {"bike_id": "b1", "rider_id": "r1"}, minute=1)
    async with start_bike() as bike:  # the clock is where it was, and so is the reservation
        assert (await bike.http.get("/clock")).json()["now"] == AT(1)
        await bike.post("/clock", {}, minute=12)

        async def lapsed() -> bool:
            return bike.events() == [("bike.reserved", AT(1)), ("bike.reservation_lapsed", AT(11))]

        await eventually(lapsed)
        await bike.refused(f"/hires/{hire['hire_id']}/unlock", {}, "wrong-state")
        # One who comes late with an early time is late all the same: the news is out.
        await bike.refused(f"/hires/{hire['hire_id']}/unlock", {}, "wrong-state", minute=5)
        again = await bike.post("/hires", {"bike_id": "b1", "rider_id": "r2"})
        assert again["state"] == "reserved"


async def test_the_same_key_gets_the_same_answer(start_bike: StartBike) -> None:
    async with start_bike() as bike:
        body = {"bike_id": "b1", "place": HERE}
        first = await bike.raw("/bikes", body, minute=0, key="k")
        again = await bike.raw("/bikes", body, minute=0, key="k")
        assert (again.content, again.headers["idempotent-replay"]) == (first.content, "true")
        other = await bike.raw("/bikes", {**body, "bike_id": "b2"}, key="k")
        assert other.json()["type"] == "/problems/idempotency-key-reused"
        missing = await bike.raw("/hires", {"bike_id": "none", "rider_id": "r"}, key="m")
        await bike.post("/bikes", {"bike_id": "none", "place": HERE})
        again = await bike.raw("/hires", {"bike_id": "none", "rider_id": "r"}, key="m")
        assert (again.status_code, again.content) == (404, missing.content)


async def test_one_bike_goes_to_one_rider(start_bike: StartBike) -> None:
    async with start_bike() as bike:
        await bike.post("/bikes", {"bike_id": "b1", "place": HERE}, minute=0)
        answers = await asyncio.gather(
            *(bike.raw("/hires", {"bike_id": "b1", "rider_id": f"r{number}"}) for number in range(15))
        )
        assert sorted(answer.status_code for answer in answers) == [201, *[409] * 14]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/bikes", {"bike_id": "b\x00", "place": HERE}, 422),
        ("/bikes", {"bike_id": "\ud800", "place": HERE}, 422),
        ("/bikes", {"bike_id": "b", "place": {"lat": 100, "lng": 0}}, 422),
        ("/bikes", [], 422),
        ("/hires", {"bike_id": "none", "rider_id": "r"}, 404),
        ("/hires/none/unlock", {}, 404),
        ("/hires/none/unlock", {"more": 1}, 422),
        ("/hires/%00/return", {"place": HERE, "distance_m": 1}, 422),
        ("/hires/none/return", {"place": HERE, "distance_m": 10**40}, 422),
        ("/nowhere", {}, 404),
    ],
)
async def test_a_mistake_is_a_problem(start_bike: StartBike, path: str, body: object, status: int) -> None:
    async with start_bike() as bike:
        await bike.post("/clock", {}, minute=0)
        import json

        response = await bike.http.post(
            path,
            content=json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Idempotency-Key": "k"},
        )
        assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")
        assert response.json()["status"] == status


async def test_events_wait_for_the_broker(start_bike: StartBike) -> None:
    async with start_bike() as bike:
        bike.bus.fail_sends(*[DeliveryError("away", topic="bikes.v1", retriable=True)] * 3)
        await bike.post("/bikes", {"bike_id": "b1", "place": HERE}, minute=0)
        await bike.post("/hires", {"bike_id": "b1", "rider_id": "r1"}, minute=1)

        async def published() -> bool:
            return [kind for kind, _ in bike.events()] == ["bike.reserved"]

        await eventually(published)


async def test_killed_after_the_answer_the_event_comes(broker: Broker, database_url: str, tmp_path: Path) -> None:
    import os
    import signal

    from hailbus import Catalogue, KafkaBus, bus_reader
    from hailbus.database import create_engine
    from ride_events import bikes

    one = Process(
        "bike",
        tmp_path,
        {
            "BIKE_BOOTSTRAP_SERVERS": broker.bootstrap,
            "BIKE_DATABASE_URL": database_url,
            "BIKE_LISTEN": "127.0.0.1:0",
        },
    )
    one.start()
    address = (await asyncio.to_thread(one.ready_line)).removeprefix("listening=")
    os.kill(broker.pid, signal.SIGSTOP)
    async with httpx.AsyncClient(base_url=f"http://{address}") as http:
        await http.post("/bikes", json={"bike_id": "b1", "place": HERE}, headers={"Idempotency-Key": "1"})
        hired = await http.post("/hires", json={"bike_id": "b1", "rider_id": "r1"}, headers={"Idempotency-Key": "2"})
        assert hired.status_code == 201
    one.kill()
    os.kill(broker.pid, signal.SIGCONT)
    engine = create_engine(database_url)
    async with engine.connect() as connection:
        rows = (await connection.execute(text("SELECT type FROM hailbus_outbox WHERE published_at IS NULL"))).all()
    await engine.dispose()
    assert sorted(row.type for row in rows) == ["bike.reservation_lapsed", "bike.reserved"]
    one.start()
    await asyncio.to_thread(one.ready_line)

    async def published() -> bool:
        bus = KafkaBus(bootstrap_servers=broker.bootstrap, client_id="check")
        found = bus_reader(bus, Catalogue.of(bikes), start="earliest", until_end=True)
        return {delivery.ctx.envelope.type async for delivery in found} == {"bike.reserved"}

    await eventually(published)
    assert one.terminate() == 0
