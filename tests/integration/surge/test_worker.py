"""The surge worker against a broker: what it publishes, and what a kill at any moment leaves of it."""

import asyncio
import datetime as dt
import json
import random
import signal
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from hailbus import ClusterAdmin, Event, event_info
from hailbus.codec import decode, encode, envelope_for
from ride_events import CATALOGUE, LatLng, Money
from ride_events.drivers import DriverBecameBusy, DriverLocationReported
from ride_events.pricing import FORECASTS, SURGE
from ride_events.quotes import QuoteOffered
from ride_events.rides import RIDES, RideRequested
from surge.adapters.streams.records import SOURCE, fact_of, forecast_events, milliseconds, price_event
from surge.adapters.streams.service import SOURCES, declare
from surge.app.city import City
from surge.domain.pricing import PricingRules
from surge.domain.watermark import LATENESS_MS

from .conftest import Broker, Worker

START = dt.datetime(2014, 5, 5, 23, 55, tzinfo=dt.UTC)
"""Five minutes before a snapshot of what the forecasts have learnt."""
Told = tuple[Event, dt.datetime, str]


def city_events(minutes: int, *, seed: int = 7, drivers: int = 60, riders_per_minute: int = 30) -> list[Told]:
    """Drivers who report every four seconds and riders who ask, in order of event time."""
    chance = random.Random(seed)

    def place() -> LatLng:
        return LatLng(lat=40.735 + chance.random() * 0.03, lng=-74.0 + chance.random() * 0.03)

    told: list[Told] = []
    for second in range(minutes * 60):
        at = START + dt.timedelta(seconds=second)
        for driver in range(second % 4, drivers, 4):
            where = place()
            report = DriverLocationReported(
                driver_id=f"driver-{driver}", position=where, cell=where.cell(), free=chance.random() < 0.3
            )
            told.append((report, at, f"location-{driver}-{second}"))
        if second % 20 == 0:
            told.append((DriverBecameBusy(driver_id="driver-1", seq=second, ride_id="x"), at, f"busy-{second}"))
        if chance.random() < riders_per_minute / 60:
            # A rush in one place, so that some prices rise.
            where, to = (LatLng(lat=40.7484, lng=-73.9857) if chance.random() < 0.7 else place()), place()
            common: dict[str, Any] = {
                "rider_id": f"rider-{second % 500}",
                "pickup": where,
                "dropoff": to,
                "pickup_cell": where.cell(),
                "dropoff_cell": to.cell(),
                "fare": Money(amount_minor=1200),
                "multiplier": 1.0,
                "surge_version": None,
                "quote_id": f"quote-{second}",
                "seq": 1,
            }
            offer = QuoteOffered(**common, distance_m=900, duration_s=300, expires_at=at + dt.timedelta(minutes=2))
            told.append((offer, at, f"quote-{second}"))
            if chance.random() < 0.8:
                told.append((RideRequested(**common, ride_id=f"ride-{second}"), at, f"request-{second}"))
    return told


def expected(told: list[Told]) -> dict[str, dict[str, bytes]]:
    """What must be published, by topic and event id: the same city, heard in one piece and in order."""
    city = City(rules=PricingRules())
    wanted: dict[str, dict[str, bytes]] = {SURGE.name: {}, FORECASTS.name: {}}
    watermark_ms = 0
    for event, at, _ in told:
        fact = fact_of(event, milliseconds(at))
        if fact is not None:
            city.apply(fact)
        watermark_ms = max(watermark_ms, milliseconds(at) - LATENESS_MS)
    assert city.late_count == 0
    while (end_ms := city.next_end(watermark_ms)) is not None:
        minute = city.close_minute(end_ms)
        for price in map(price_event, minute.prices):
            wanted[SURGE.name][price.id] = price.event.model_dump_json().encode()
        for forecast in forecast_events(minute.demand, minute.supply):
            wanted[FORECASTS.name][forecast.id] = forecast.event.model_dump_json().encode()
    return wanted


@asynccontextmanager
async def producer(bootstrap: str) -> AsyncIterator[AIOKafkaProducer]:
    client = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, linger_ms=5)
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


async def tell(client: AIOKafkaProducer, told: list[Told], *, per_second: float | None = None) -> None:
    """Publish in order; each partition keeps the order of event times."""
    waiting: list[asyncio.Future[Any]] = []
    began = time.monotonic()
    for number, (event, at, event_id) in enumerate(told):
        key, value, headers = encode(event, envelope_for(event, source="/test", id=event_id, time=at))
        topic = event_info(type(event)).topic.name
        waiting.append(await client.send(topic, value, key=key, headers=headers))
        if per_second and number % 50 == 0:
            await asyncio.sleep(max(0.0, began + number / per_second - time.monotonic()))
    await asyncio.gather(*waiting)


async def read_all(bootstrap: str, topic: str) -> list[Any]:
    """Every record of a topic up to its present end."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        partitions = [TopicPartition(topic, number) for number in range(6)]
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        records: list[Any] = []
        while any([await consumer.position(tp) < ends[tp] for tp in partitions]):
            for batch in (await consumer.getmany(timeout_ms=500)).values():
                records.extend(batch)
        return records
    finally:
        await consumer.stop()


async def until(look: Callable[[], Any], *, timeout_s: float, what: str) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (seen := look()):
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        await asyncio.sleep(0.1)
    return seen


async def until_published(
    bootstrap: str, wanted: dict[str, dict[str, bytes]], worker: Worker, *, timeout_s: float
) -> None:
    """Wait for the whole of what is wanted, then compare; an id that comes twice must say the same twice."""
    deadline = time.monotonic() + timeout_s
    for topic, events in wanted.items():
        seen: dict[str, bytes] = {}
        while events.keys() - seen.keys():
            assert time.monotonic() < deadline, (
                f"{len(events.keys() - seen.keys())} of {len(events)} events of {topic} are missing: "
                + worker.log.read_text(errors="replace")[-1500:]
            )
            if not worker.is_running:  # as a supervisor would
                worker.start()
            for record in await read_all(bootstrap, topic):
                event_id = dict(record.headers)["ce_id"].decode()
                assert seen.setdefault(event_id, record.value) == record.value
            await asyncio.sleep(0.5)
        assert seen == events


async def provision(bootstrap: str) -> None:
    async with ClusterAdmin(bootstrap) as admin:
        await admin.provision([*SOURCES, *declare().topics])


async def committed(bootstrap: str) -> dict[TopicPartition, int]:
    async with ClusterAdmin(bootstrap) as admin:
        return dict(await admin.committed("surge"))


async def lag(bootstrap: str) -> int:
    async with ClusterAdmin(bootstrap) as admin:
        return sum(one.lag for one in await admin.lag("surge", SOURCES))


async def test_it_publishes_the_prices_and_forecasts_of_what_it_hears(broker: Broker, worker: Worker) -> None:
    told = city_events(22)
    wanted = expected(told)
    assert len(wanted[SURGE.name]) > 20
    assert wanted[FORECASTS.name]
    await provision(broker.bootstrap)
    worker.start()
    async with producer(broker.bootstrap) as client:
        await tell(client, told)
    await until_published(broker.bootstrap, wanted, worker, timeout_s=90)
    assert worker.inbox() == {event_id: 1 for _, _, event_id in told}
    for record in await read_all(broker.bootstrap, SURGE.name):
        event, envelope = decode(record, CATALOGUE)
        assert envelope.source == SOURCE
        assert envelope.subject == record.key.decode()
        assert envelope.time == event.model_dump()["window_end"]
    assert worker.signal(signal.SIGTERM, timeout_s=5) == 0  # at once, not after some time limit
    assert not worker.said("Traceback")
    assert await lag(broker.bootstrap) == 0


async def test_killed_at_any_moment_it_counts_each_event_once(broker: Broker, worker: Worker) -> None:
    told = city_events(15)
    wanted = expected(told)
    ids = {event_id for _, _, event_id in told}
    halts: list[tuple[dict[TopicPartition, int], dict[str, int]]] = []
    """What was committed at each kill, and how often each event had been seen by then."""
    await provision(broker.bootstrap)
    worker.start()

    async def kill_the_worker() -> None:
        worker.kill()
        halts.append((await committed(broker.bootstrap), worker.inbox()))
        worker.start()

    async with producer(broker.bootstrap) as client:
        telling = asyncio.create_task(tell(client, told, per_second=len(told) / 20))
        for share in (0.1, 0.3, 0.5):
            await until(lambda share=share: len(worker.inbox()) > share * len(ids), timeout_s=60, what="the inbox")  # type: ignore[misc]  # mypy infers no lambda with defaults
            await kill_the_worker()
        await until(lambda: len(worker.inbox()) > 0.6 * len(ids), timeout_s=60, what="the inbox")
        broker.kill()
        broker.start()

        def went_on() -> bool:
            if not worker.is_running:
                assert worker.exit_code == 1
                worker.start()
            return len(worker.inbox()) > 0.8 * len(ids)

        await until(went_on, timeout_s=90, what="the inbox after the broker's kill")
        await kill_the_worker()
        await telling
    await until_published(broker.bootstrap, wanted, worker, timeout_s=120)
    inbox = worker.inbox()
    assert inbox.keys() == ids
    # What was committed at a kill is not read again.
    places = {
        dict(record.headers)["ce_id"].decode(): (TopicPartition(topic.name, record.partition), record.offset)
        for topic in SOURCES
        for record in await read_all(broker.bootstrap, topic.name)
    }
    for offsets, seen in halts:
        passed = {event_id for event_id, (where, offset) in places.items() if offset < offsets.get(where, 0)}
        assert {event_id: inbox[event_id] for event_id in passed} == {event_id: seen[event_id] for event_id in passed}
    assert any(sum(offsets.values()) > 0 for offsets, _ in halts)


async def test_killed_after_a_snapshot_it_goes_on_from_there(broker: Broker, worker: Worker) -> None:
    told = city_events(22)
    first = [item for item in told if item[1] < START + dt.timedelta(minutes=11)]
    await provision(broker.bootstrap)
    worker.start()
    async with producer(broker.bootstrap) as client:
        await tell(client, first)
        await until_published(broker.bootstrap, expected(first), worker, timeout_s=120)
        await until(lambda: worker.said("snapshot_written"), timeout_s=30, what="the snapshot")
        worker.kill()
        worker.start()
        await until(lambda: worker.said('"city_loaded"') == 2, timeout_s=60, what="the second start")
        await tell(client, told[len(first) :])
        await until_published(broker.bootstrap, expected(told), worker, timeout_s=120)
    *_, loaded = (json.loads(line) for line in worker.log.read_text().splitlines() if '"city_loaded"' in line)
    assert loaded["snapshot"] >= dt.datetime(2014, 5, 6, tzinfo=dt.UTC).timestamp() // 300


async def test_what_cannot_be_read_is_put_aside_and_passed(broker: Broker, worker: Worker) -> None:
    told = city_events(2)
    await provision(broker.bootstrap)
    async with producer(broker.bootstrap) as client:
        await client.send_and_wait(RIDES.name, b"{", key=b"k", headers=[("ce_id", b"1")], partition=3)
        deleted = [("ce_id", b"2"), ("ce_source", b"/test"), ("ce_type", b"ride.requested")]
        await client.send_and_wait(RIDES.name, None, key=b"gone", headers=deleted, partition=3)
        await tell(client, told)
    worker.start()
    await until(lambda: len(worker.inbox()) == len(told), timeout_s=60, what="the inbox")
    (dead,) = await read_all(broker.bootstrap, "rides.v1.surge-dlt")
    headers = dict(dead.headers)
    assert (dead.key, dead.value) == (b"k", b"{")
    assert headers["kafka_dlt-original-topic"] == b"rides.v1"
    assert headers["kafka_dlt-original-partition"] == b"3"
    assert headers["kafka_dlt-original-offset"] == b"0"
    deadline = time.monotonic() + 20
    while await lag(broker.bootstrap):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.2)


async def test_a_second_worker_of_the_group_refuses(broker: Broker, worker: Worker, tmp_path: Path) -> None:
    await provision(broker.bootstrap)
    worker.start()
    await until(lambda: worker.said("city_loaded"), timeout_s=60, what="the first worker")
    other = Worker(tmp_path, broker.bootstrap, name="other", SURGE_INSTANCE="other")
    other.start()
    try:
        await until(lambda: other.exit_code is not None, timeout_s=60, what="the second worker's end")
        assert other.exit_code == 1
        assert other.said("surge: stopped, because only a restart helps: only ")
        assert other.said("stop the other one")
    finally:
        other.kill()


async def test_a_worker_that_slept_while_another_took_its_place_ends(
    broker: Broker, worker: Worker, tmp_path: Path
) -> None:
    told = city_events(12)
    wanted, half = expected(told), len(told) // 2
    await provision(broker.bootstrap)
    worker.start()
    other = Worker(tmp_path, broker.bootstrap, name="other", SURGE_STATE_DIR=str(tmp_path / "surge"))
    try:
        async with producer(broker.bootstrap) as client:
            await tell(client, told[:half])
            # Idle, as SQLite waits for a transaction in which a process sleeps.
            await until_published(broker.bootstrap, expected(told[:half]), worker, timeout_s=60)
            await until(lambda: len(worker.inbox()) == half, timeout_s=60, what="the inbox")
            assert worker.process is not None
            worker.process.send_signal(signal.SIGSTOP)
            other.start()
            await until(lambda: other.said("city_loaded"), timeout_s=60, what="the other worker")
            worker.process.send_signal(signal.SIGCONT)
            await until(lambda: worker.exit_code is not None, timeout_s=60, what="the end of the first one")
            assert worker.exit_code == 1
            await tell(client, told[half:])
        await until_published(broker.bootstrap, wanted, other, timeout_s=120)
        assert worker.inbox().keys() == {event_id for _, _, event_id in told}
    finally:
        other.kill()


async def test_it_waits_for_its_database_and_sets_nothing_aside(broker: Broker, worker: Worker) -> None:
    told = city_events(12)
    wanted, half = expected(told), len(told) // 2
    await provision(broker.bootstrap)
    worker.start()
    async with producer(broker.bootstrap) as client:
        await tell(client, told[:half])
        await until(lambda: len(worker.inbox()) > half // 2, timeout_s=60, what="the inbox")
        with closing(sqlite3.connect(worker.database, isolation_level=None, timeout=30)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            await tell(client, told[half:])
            await until(lambda: worker.said("infrastructure_away"), timeout_s=60, what="the log")
            holder.execute("ROLLBACK")
    await until_published(broker.bootstrap, wanted, worker, timeout_s=120)
    assert worker.inbox() == {event_id: 1 for _, _, event_id in told}
    assert worker.is_running
    for topic in SOURCES:
        assert await read_all(broker.bootstrap, f"{topic.name}.surge-dlt") == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"SURGE_BOOTSTRAP_SERVER": "x:1"}, "unknown setting SURGE_BOOTSTRAP_SERVER"),
        ({"SURGE_CLOCK": "sun"}, "SURGE_CLOCK: "),
        ({"SURGE_TIME_ZONE": "New York"}, "SURGE_TIME_ZONE: Value error, 'New York' is no time zone"),
        ({"SURGE_HOLIDAYS": "US-XX"}, "SURGE_HOLIDAYS: Value error, no holidays are known of 'US-XX'"),
        ({"SURGE_DATABASE_URL": "mysql://x/y"}, "database 'mysql' is not supported"),
        ({"SURGE_CONNECT_TIMEOUT_S": "1"}, "no Kafka broker answers at"),
    ],
)
async def test_a_wrong_setting_is_one_sentence_and_exit_code_2(
    tmp_path: Path, changes: dict[str, str], said: str
) -> None:
    worker = Worker(tmp_path, "127.0.0.1:9", **changes)
    worker.start()
    await until(lambda: worker.exit_code is not None, timeout_s=60, what="its end")
    assert worker.exit_code == 2
    assert worker.said(f"surge: {said}") == 1, worker.log.read_text()
