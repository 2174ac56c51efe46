"""Booking is killed at any moment: no event is lost, none is invented, and clients who come again get one answer."""

import asyncio
import os
import random
import signal
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from hailbus import Catalogue, KafkaBus, bus_reader
from hailbus.database import create_engine
from ride_events import drivers, quotes, rides, timers
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.integration.booking.callers import Callers
from tests.integration.conftest import Broker, Process, eventually
from tests.support import free_port

pytestmark = pytest.mark.timeout(240)
OWN = Catalogue.of(quotes, rides, drivers, timers)
PICKUP = {"lat": 40.75, "lng": -73.98}
DROPOFF = {"lat": 40.70, "lng": -74.00}
PENDING = {"booking.timer_elapsed", "booking.ride_overdue"}


class Booking:
    """A booking process that is restarted where it was, and a client that does not give up."""

    def __init__(
        self, broker: Broker, database_url: str, directory: Path, settings: Mapping[str, str] | None = None
    ) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.callers = Callers(directory / "callers")
        self.process = Process(
            "booking",
            directory,
            {
                "BOOKING_BOOTSTRAP_SERVERS": broker.bootstrap,
                "BOOKING_DATABASE_URL": database_url,
                "BOOKING_LISTEN": self.address,
                "BOOKING_AUTH_KEYS": str(self.callers.keys),
                **(settings or {}),
            },
        )
        self.answers: dict[str, list[tuple[int, Any]]] = defaultdict(list)

    async def start(self) -> None:
        self.process.start()
        line = await asyncio.to_thread(self.process.ready_line)
        assert line == f"listening={self.address}"

    async def restart(self) -> None:
        self.process.kill()
        await self.start()

    async def post(self, http: httpx.AsyncClient, path: str, body: object, key: str) -> Any:
        """Send until there is an answer, with the same key; now and then once more after it."""
        async with asyncio.timeout(120):
            while True:
                try:
                    headers = {"Idempotency-Key": key, **self.callers.header(self.callers.of(path, body))}
                    response = await http.post(f"http://{self.address}{path}", json=body, headers=headers, timeout=20)
                except httpx.TransportError:
                    await asyncio.sleep(0.05)
                    continue
                if response.status_code == 503:
                    await asyncio.sleep(0.05)
                    continue
                self.answers[key].append((response.status_code, response.json()))
                self.callers.note(response.json())
                return response.json()


@pytest.fixture
def booking(broker: Broker, database_url: str, tmp_path: Path) -> Iterator[Booking]:
    one = Booking(broker, database_url, tmp_path)
    yield one
    if one.process.is_running:
        assert one.process.terminate() == 0


async def outbox_rows(engine: AsyncEngine) -> list[tuple[str, str, str | None, str | None]]:
    async with engine.connect() as connection:
        result = await connection.execute(
            text("SELECT id, type, published_at, cancelled_at FROM hailbus_outbox ORDER BY position")
        )
        return [tuple(row) for row in result.all()]


async def check_log(broker: Broker, engine: AsyncEngine) -> dict[str, list[str]]:
    """Wait until the outbox is empty; then log and database must tell the same story. Returns types by ride."""

    async def all_published() -> bool:
        return all(
            published is not None or cancelled is not None or kind in PENDING
            for _, kind, published, cancelled in await outbox_rows(engine)
        )

    await eventually(all_published, within_s=60)
    stored = {id_: kind for id_, kind, published, _ in await outbox_rows(engine) if published is not None}
    logged: dict[str, str] = {}
    found: dict[str, dict[int, str]] = defaultdict(dict)
    bus = KafkaBus(bootstrap_servers=broker.bootstrap, client_id="check")
    async for delivery in bus_reader(bus, OWN, start="earliest", until_end=True):
        envelope = delivery.ctx.envelope
        if envelope.type == "driver.location_reported":
            continue
        logged[envelope.id] = envelope.type
        if envelope.type.startswith("ride."):
            found[delivery.event.ride_id][delivery.event.seq] = envelope.type  # type: ignore[attr-defined]  # a RideEvent
    assert logged == stored  # none lost, none invented
    async with engine.connect() as connection:
        rows = (await connection.execute(text("SELECT ride_id, seq, state FROM booking_rides"))).all()
    assert {ride_id: sorted(seqs) for ride_id, seqs in found.items()} == {
        ride_id: list(range(1, seq + 1)) for ride_id, seq, _ in rows
    }
    return {ride_id: [kind for _, kind in sorted(seqs.items())] for ride_id, seqs in found.items()}


@pytest.mark.slow_with("sqlite")
async def test_killed_between_commit_and_publish_nothing_is_lost(
    booking: Booking, broker: Broker, database_url: str
) -> None:
    engine = create_engine(database_url)
    await booking.start()
    async with httpx.AsyncClient() as http:
        await booking.post(http, "/drivers/d1/online", {"position": PICKUP}, "online")
        os.kill(broker.pid, signal.SIGSTOP)  # commits go on, but nothing can be published
        quote = await booking.post(http, "/quotes", {"rider_id": "r", "pickup": PICKUP, "dropoff": DROPOFF}, "quote")
        ride = await booking.post(http, "/rides", {"quote_id": quote["quote_id"]}, "ride")
        booking.process.kill()
        waiting = [
            kind
            for _, kind, published, cancelled in await outbox_rows(engine)
            if not published and not cancelled and kind not in PENDING
        ]
        assert waiting[-5:] == [
            "quote.offered",
            "quote.accepted",
            "ride.requested",
            "ride.matched",
            "driver.became_busy",
        ]
        os.kill(broker.pid, signal.SIGCONT)
        await booking.start()
        again = await booking.post(http, "/rides", {"quote_id": quote["quote_id"]}, "ride")
        assert again == ride
    assert await check_log(broker, engine) == {ride["ride_id"]: ["ride.requested", "ride.matched"]}
    await engine.dispose()


@pytest.mark.slow_with("sqlite")
async def test_killed_again_and_again_under_load_the_books_agree(
    booking: Booking, broker: Broker, database_url: str
) -> None:
    chance = random.Random(7)
    engine = create_engine(database_url)
    await booking.start()
    numbers = iter(range(120))
    finished = 0

    async def rider(index: int, http: httpx.AsyncClient) -> None:
        nonlocal finished
        for number in numbers:
            place = {"lat": 40.70 + (index % 10) / 100, "lng": -74.0 + (number % 10) / 100}
            key = f"{index}-{number}"
            await booking.post(http, f"/drivers/d{index}/online", {"position": place}, f"{key}-on")
            quote = await booking.post(
                http, "/quotes", {"rider_id": f"r{number}", "pickup": place, "dropoff": DROPOFF}, f"{key}-q"
            )
            ride = await booking.post(http, "/rides", {"quote_id": quote["quote_id"]}, f"{key}-r")
            steps, driver_id = f"/rides/{ride['ride_id']}", ride["driver_id"]
            if driver_id is None or number % 5 == 0:
                await booking.post(http, f"{steps}/cancel", {"by": "rider", "reason": "late"}, f"{key}-x")
            else:
                body = {"driver_id": driver_id}
                await booking.post(http, f"{steps}/arrived", body, f"{key}-a")
                await booking.post(http, f"{steps}/start", body, f"{key}-s")
                await booking.post(http, f"{steps}/complete", {**body, "distance_m": 900}, f"{key}-c")
                # Who comes again gets the same answer, whatever happened in between.
                await booking.post(http, f"{steps}/complete", {**body, "distance_m": 900}, f"{key}-c")
            finished += 1

    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=50)) as http:
        riders = [asyncio.create_task(rider(index, http)) for index in range(12)]
        kills = 0
        while not all(task.done() for task in riders):
            answered = sum(map(len, booking.answers.values()))
            target = answered + chance.randrange(20, 160)

            async def reached(target: int = target) -> bool:
                return sum(map(len, booking.answers.values())) >= target or all(task.done() for task in riders)

            await eventually(reached, within_s=120)
            if kills < 4 and not all(task.done() for task in riders):
                await booking.restart()
                kills += 1
        await asyncio.gather(*riders)
    assert kills == 4
    assert finished == 120
    assert {status for answers in booking.answers.values() for status, _ in answers} <= {200, 201, 409}
    for key, answers in booking.answers.items():
        assert all(answer == answers[0] for answer in answers), key
    stories = await check_log(broker, engine)
    assert len(stories) == 120
    async with engine.connect() as connection:
        states: dict[str, int] = dict(
            (await connection.execute(text("SELECT state, count(*) FROM booking_rides GROUP BY state"))).all()
        )
    await engine.dispose()
    ends = [story[-1] for story in stories.values()]
    assert states.get("completed", 0) == ends.count("ride.completed") > 0
    assert states.get("cancelled", 0) == ends.count("ride.cancelled") > 0


async def test_a_second_process_on_the_same_database_stops_with_a_sentence(
    booking: Booking, broker: Broker, database_url: str, tmp_path: Path
) -> None:
    await booking.start()
    (tmp_path / "second").mkdir()
    second = Process(
        "booking",
        tmp_path / "second",
        {
            "BOOKING_BOOTSTRAP_SERVERS": broker.bootstrap,
            "BOOKING_DATABASE_URL": database_url,
            "BOOKING_LISTEN": "127.0.0.1:0",
            "BOOKING_AUTH_KEYS": str(booking.callers.keys),
        },
    )
    second.start()
    assert await asyncio.to_thread(second.wait) == 2
    assert "another process writes" in second.log().splitlines()[-1]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"BOOKING_LISTN": "127.0.0.1:1"}, "unknown setting BOOKING_LISTN"),
        ({"BOOKING_CLOCK": "sundial"}, "BOOKING_CLOCK"),
        ({"BOOKING_DATABASE_URL": "mysql://x"}, "not supported"),
        ({"BOOKING_LISTEN": "127.0.0.1:{taken}"}, "set BOOKING_LISTEN to a free address"),
        ({"BOOKING_AUTH": "on"}, "BOOKING_AUTH_KEYS is not set: name a JWKS file"),
        ({"BOOKING_AUTH": "on", "BOOKING_AUTH_KEYS": "/nowhere.json"}, "/nowhere.json cannot be read"),
        ({"BOOKING_LISTEN": "0.0.0.0:1"}, "BOOKING_AUTH=off is for a loopback address"),
    ],
)
def test_what_is_set_wrongly_stops_the_start_with_one_sentence(
    environment: dict[str, str], expected: str, tmp_path: Path
) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        one = Process(
            "booking",
            tmp_path,
            {
                "BOOKING_BOOTSTRAP_SERVERS": "127.0.0.1:1",
                "BOOKING_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path / 'b.db'}",
                "BOOKING_AUTH": "off",
                **{name: value.replace("{taken}", port) for name, value in environment.items()},
            },
        )
        one.start()
        assert one.wait() == 2
    last = one.log().splitlines()[-1]
    assert last.startswith("booking: ")
    assert expected in last
    assert "Traceback" not in one.log()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_a_commit_that_cannot_be_cancelled_ends_the_process(
    broker: Broker, database_url: str, tmp_path: Path
) -> None:
    """The supervisor starts it again, and the request is done by the next process."""
    one = Booking(broker, database_url, tmp_path, {"BOOKING_COMMIT_TIMEOUT_S": "0.5"})
    await one.start()
    quote = {"rider_id": "r", "pickup": PICKUP, "dropoff": DROPOFF}
    async with httpx.AsyncClient() as http:
        holder = sqlite3.connect(tmp_path / "service.db", isolation_level=None)
        holder.execute("BEGIN EXCLUSIVE")  # SQLite's thread now waits for 30 s, as for a disk that does not answer
        headers = {"Idempotency-Key": "quote", **one.callers.header(one.callers.of("/quotes", quote))}
        lost = await http.post(f"http://{one.address}/quotes", json=quote, headers=headers, timeout=60)
        assert lost.status_code == 503
        assert await asyncio.to_thread(one.process.wait) == 1
        assert "booking: stopped, because only a restart helps: the writer has ended: a commit has not returned" in (
            one.process.log()
        )
        holder.close()
        await one.start()
        await one.post(http, "/quotes", quote, "quote")
    assert one.answers["quote"][0][0] == 201
    assert one.process.terminate() == 0
