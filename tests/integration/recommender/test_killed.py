"""The recommender as a process on the real broker, killed in the middle: each ride is learned once."""

import asyncio
import json
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from urllib.request import urlopen

import pytest
from hailbus import KafkaBus, Service
from ride_events import CATALOGUE, LatLng, Money
from ride_events.rides import RideCompleted

BIN = Path(sys.executable).parent
MORNING = datetime(2023, 3, 1, 8, 0, tzinfo=UTC)
RIDES = 4_000


@asynccontextmanager
async def process(
    *command: str, ready: str, environment: Mapping[str, str]
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    started = await asyncio.create_subprocess_exec(
        str(BIN / command[0]),
        *command[1:],
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, **environment},
    )
    assert started.stdout is not None
    try:
        async with asyncio.timeout(90):
            while not (line := (await started.stdout.readline()).decode()).startswith(ready):
                assert line, f"{command[0]} ended with {await started.wait()}"
        yield started, line.removeprefix(ready).strip()
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()


def ride(number: int) -> RideCompleted:
    start, end = LatLng(lat=40.7 + number % 97 / 1000, lng=-73.98), LatLng(lat=40.75, lng=-73.99 + number % 53 / 1000)
    return RideCompleted(
        ride_id=f"ride-{number}",
        seq=5,
        rider_id=f"rider-{number % 211}",
        driver_id="driver-1",
        pickup=start,
        dropoff=end,
        pickup_cell=start.cell(),
        dropoff_cell=end.cell(),
        passengers=1,
        requested_at=MORNING,
        started_at=MORNING,
        distance_m=6000,
        duration_s=900,
        fare=Money(amount_minor=2000),
        multiplier=1.0,
    )


def stored(database: Path) -> int:
    if not database.exists():
        return 0
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        try:
            return int(connection.execute("SELECT count(*) FROM recommender_journey").fetchone()[0])
        except sqlite3.OperationalError:  # the tables are not there yet
            return 0


async def until(database: Path, count: int) -> None:
    deadline = monotonic() + 90
    while stored(database) < count:
        assert monotonic() < deadline, f"{stored(database)} of {count} journeys stored"
        await asyncio.sleep(0.02)


@pytest.mark.timeout(280)
async def test_killed_at_any_time_each_ride_is_learned_once(tmp_path: Path) -> None:
    database = tmp_path / "recommender.db"
    broker = ("hailbus-broker", "serve", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "broker"))
    async with process(*broker, ready="bootstrap=", environment={}) as (_, bootstrap):
        environment = {
            "RECOMMENDER_BOOTSTRAP_SERVERS": bootstrap,
            "RECOMMENDER_DATABASE_URL": f"sqlite:///{database}",
            "RECOMMENDER_LISTEN": "127.0.0.1:0",
        }
        booking = Service("booking", bus=KafkaBus(bootstrap_servers=bootstrap), catalogue=CATALOGUE)
        publisher = booking.publishes(RideCompleted)
        async with booking.running():
            await publisher.publish_many(ride(number) for number in range(RIDES))
            for share in (0.05, 0.4):
                async with process("recommender", ready="listening=", environment=environment) as (recommender, _):
                    await until(database, int(RIDES * share))
                    recommender.kill()
            async with process("recommender", ready="listening=", environment=environment) as (recommender, address):
                await until(database, RIDES)
                await publisher.publish(ride(RIDES))
                await until(database, RIDES + 1)
                model = json.loads(await asyncio.to_thread(_get, f"http://{address}/model"))
                assert model["journeys"] == RIDES + 1
                recommender.send_signal(signal.SIGTERM)
                assert await asyncio.wait_for(recommender.wait(), 30) == 0
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT count(*) FROM hailbus_inbox WHERE consumer = 'recommender'").fetchone() == (
            RIDES + 1,
        )
        assert connection.execute("SELECT count(*) FROM recommender_journey").fetchone() == (RIDES + 1,)


def _get(url: str) -> bytes:
    with urlopen(url, timeout=10) as response:  # noqa: S310 our own process
        body = response.read()
        assert isinstance(body, bytes)
        return body


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"RECOMMENDER_BOOTSTRAP_SERVER": "x"}, "unknown setting RECOMMENDER_BOOTSTRAP_SERVER"),
        ({}, "RECOMMENDER_BOOTSTRAP_SERVERS: Field required"),
        ({"RECOMMENDER_BOOTSTRAP_SERVERS": "x:1", "RECOMMENDER_SOURCES": "ride.done"}, "no event type 'ride.done'"),
        (
            {"RECOMMENDER_BOOTSTRAP_SERVERS": "x:1", "RECOMMENDER_DATABASE_URL": "mysql://x/y"},
            "use sqlite or postgresql",
        ),
    ],
)
async def test_a_wrong_setting_ends_with_a_sentence_and_code_2(environment: dict[str, str], sentence: str) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RECOMMENDER_")}
    started = await asyncio.create_subprocess_exec(
        str(BIN / "recommender"), env={**clean, **environment}, stderr=asyncio.subprocess.PIPE
    )
    _, stderr = await asyncio.wait_for(started.communicate(), 60)
    assert started.returncode == 2
    assert sentence in stderr.decode()
    assert "Traceback" not in stderr.decode()
