"""A city of two regions for tests: two booking processes on one PostgreSQL, and a client that does not give up."""

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Any

import httpx
from booking.adapters.storage.claims import url_of
from booking.domain.region import Region, Regions
from hailbus import Catalogue, KafkaBus, bus_reader
from hailbus.database import create_engine
from ride_events import cell, drivers, quotes, rides, timers
from sqlalchemy import text

from tests.integration.booking.callers import Callers
from tests.integration.conftest import Broker, Process, eventually
from tests.support import free_port

OWN = Catalogue.of(quotes, rides, drivers, timers)
MANHATTAN, OUTER = "manhattan", "outer"
PLACES = {MANHATTAN: {"lat": 40.75, "lng": -73.98}, OUTER: {"lat": 40.65, "lng": -73.95}}
PENDING = {"booking.timer_elapsed", "booking.ride_overdue"}


class City:
    """Two processes, one for each region, and a client that follows a 421 and repeats requests."""

    def __init__(self, broker: Broker, database_url: str, folder: Path) -> None:
        self.callers = Callers(folder / "callers")
        self.database_url = database_url
        self.addresses = {name: f"127.0.0.1:{free_port()}" for name in PLACES}
        self.file = folder / "regions.toml"
        manhattan = cell(40.75, -73.98, 6)
        self.file.write_text(
            f'[manhattan]\naddress = "http://{self.addresses[MANHATTAN]}"\ncells = ["{manhattan}"]\n'
            f'[outer]\naddress = "http://{self.addresses[OUTER]}"\nrest = true\n'
        )
        self.regions = Regions(
            [
                Region(name=MANHATTAN, address="", cells=frozenset({manhattan})),
                Region(name=OUTER, address="", takes_rest=True),
            ]
        )
        self._broker = broker
        self.processes = {name: self.process(name, folder / name, self.addresses[name]) for name in PLACES}
        self._http = httpx.AsyncClient()

    def process(self, region: str, folder: Path, listen: str = "127.0.0.1:0") -> Process:
        folder.mkdir()
        return Process(
            "booking",
            folder,
            {
                "BOOKING_BOOTSTRAP_SERVERS": self._broker.bootstrap,
                "BOOKING_DATABASE_URL": self.database_url,
                "BOOKING_LISTEN": listen,
                "BOOKING_AUTH_KEYS": str(self.callers.keys),
                "BOOKING_REGION": region,
                "BOOKING_REGIONS": str(self.file),
                "BOOKING_SILENT_AFTER_S": "3600",
            },
        )

    async def start(self, region: str) -> None:
        self.processes[region].start()
        line = await asyncio.to_thread(self.processes[region].ready_line)
        assert line == f"listening={self.addresses[region]}"

    async def close(self) -> None:
        await self._http.aclose()

    async def post(self, region: str, path: str, body: object, key: str) -> httpx.Response:
        async with asyncio.timeout(60):
            while True:
                headers = {"Idempotency-Key": key, **self.callers.header(self.callers.of(path, body))}
                url = f"http://{self.addresses[region]}{path}"
                try:
                    response = await self._http.post(url, json=body, headers=headers, timeout=20)
                except httpx.TransportError:
                    await asyncio.sleep(0.05)
                    continue
                if response.status_code != 503:
                    self.callers.note(response.json())
                    return response
                await asyncio.sleep(0.05)

    async def get(self, region: str, path: str) -> httpx.Response:
        header = self.callers.header(("operator", "tests"))
        return await self._http.get(f"http://{self.addresses[region]}{path}", headers=header)

    async def online(self, region: str, driver: str, key: str) -> httpx.Response:
        return await self.post(region, f"/drivers/{driver}/online", {"position": PLACES[region]}, key)

    async def quote(self, region: str, rider: str) -> Any:
        pickup = PLACES[region]
        body = {"rider_id": rider, "pickup": pickup, "dropoff": {**pickup, "lat": pickup["lat"] + 0.005}}
        response = await self.post(region, "/quotes", body, f"{region}-{rider}-quote")
        assert response.status_code == 201, response.text
        return response.json()

    async def request(self, region: str, rider: str) -> httpx.Response:
        quote = await self.quote(region, rider)
        return await self.post(region, "/rides", {"quote_id": quote["quote_id"]}, f"{region}-{rider}-ride")

    async def ride(self, region: str, rider: str) -> Any:
        """Play a ride from the request to its end."""
        response = await self.request(region, rider)
        assert response.status_code == 201, response.text
        ride = response.json()
        assert ride["driver_id"] is not None
        body = {"driver_id": ride["driver_id"]}
        for step, more in (("arrived", {}), ("start", {}), ("complete", {"distance_m": 900})):
            response = await self.post(
                region, f"/rides/{ride['ride_id']}/{step}", {**body, **more}, f"{ride['ride_id']}-{step}"
            )
            assert response.status_code == 200, response.text
        return response.json()

    async def rows(self, region: str, statement: str) -> list[tuple[Any, ...]]:
        engine = create_engine(url_of(self.database_url, region))
        try:
            async with engine.connect() as connection:
                return [tuple(row) for row in (await connection.execute(text(statement))).all()]
        finally:
            await engine.dispose()

    async def check_log(self) -> None:
        """Wait until both outboxes are empty; log and databases must then tell the same story, each ride once."""
        outbox = "SELECT id, type, published_at, cancelled_at FROM hailbus_outbox"

        async def all_published() -> bool:
            rows = [row for region in PLACES for row in await self.rows(region, outbox)]
            return all(done or cancelled or kind in PENDING for _, kind, done, cancelled in rows)

        await eventually(all_published, within_s=60)
        said = [row for region in PLACES for row in await self.rows(region, outbox)]
        stored = [id_ for id_, _, published, _ in said if published is not None]
        assert len(set(stored)) == len(stored)  # no id is given by two regions
        logged: set[str] = set()
        steps: dict[str, set[int]] = defaultdict(set)
        of_driver: dict[str, set[int]] = defaultdict(set)
        bus = KafkaBus(bootstrap_servers=self._broker.bootstrap, client_id="check")
        async for delivery in bus_reader(bus, OWN, start="earliest", until_end=True):
            envelope, event = delivery.ctx.envelope, delivery.event
            if envelope.type == "driver.location_reported":
                continue
            logged.add(envelope.id)
            if envelope.type.startswith("ride."):
                steps[event.ride_id].add(event.seq)  # type: ignore[attr-defined]  # a RideEvent
            elif envelope.type.startswith("driver."):
                of_driver[event.driver_id].add(event.seq)  # type: ignore[attr-defined]  # a DriverEvent
        assert logged == set(stored)  # none lost, none invented
        rides_of = {
            region: dict(await self.rows(region, "SELECT ride_id, seq FROM booking_rides")) for region in PLACES
        }
        for region, found in rides_of.items():
            assert all(key.startswith(f"{region}.") for key in found)
        whole = {key: seq for found in rides_of.values() for key, seq in found.items()}
        assert {key: sorted(seqs) for key, seqs in steps.items()} == {
            key: list(range(1, seq + 1)) for key, seq in whole.items()
        }
        assert all(sorted(seqs) == list(range(1, len(seqs) + 1)) for seqs in of_driver.values())
