"""A damaged copy of a request for a ride: of which it is made, and what of it is remembered."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from hailbus import Publisher, Service
from hailbus.clock import utc_now
from hailbus.testing import MemoryBus
from hailbus_demo.errors import RunFailedError, UsageError
from hailbus_demo.tray.poison import PoisonBook, damaged, poison
from hailbus_demo.tray.repeat import repeat_records
from ride_events import LatLng, Money
from ride_events.rides import RIDES, RideRequested, RideUnmatched

START, END = LatLng(lat=40.758, lng=-73.9855), LatLng(lat=40.6782, lng=-73.9442)


def requested(ride_id: str) -> RideRequested:
    return RideRequested(
        ride_id=ride_id,
        seq=1,
        rider_id="rider",
        quote_id="quote",
        pickup=START,
        dropoff=END,
        pickup_cell=START.cell(),
        dropoff_cell=END.cell(),
        fare=Money(amount_minor=1905),
        multiplier=1.0,
        surge_version=None,
    )


async def city() -> MemoryBus:
    """Return a bus with two requests and what came of the first."""
    bus = MemoryBus()
    svc = Service("booking")
    pub: Publisher[RideRequested | RideUnmatched] = svc.publishes(RideRequested | RideUnmatched)
    async with bus.run(svc):
        await pub.publish(requested("r1"))
        await pub.publish(requested("r2"))
        await pub.publish(
            RideUnmatched(ride_id="r2", seq=2, rider_id="rider", pickup_cell=START.cell(), reason="timeout")
        )
    return bus


def test_the_fare_is_in_words_and_nothing_else_is_changed() -> None:
    value = requested("r1").model_dump_json().encode()
    event = json.loads(damaged(value))
    assert event["fare"] == {"amount_minor": "19.05 USD", "currency": "USD"}
    with pytest.raises(ValueError, match="amount_minor"):
        RideRequested.model_validate(event)
    event["fare"]["amount_minor"] = 1905
    assert event == json.loads(value)


async def test_it_copies_a_request_with_its_key_and_headers() -> None:
    bus = await city()
    before = bus.records(RIDES)
    copy = await poison(bus, since=utc_now() - timedelta(minutes=1))
    (written,) = [record for record in bus.records(RIDES) if record not in before]
    assert copy.place == (written.topic, written.partition, written.offset)
    (event,) = [record for record in before if dict(record.headers)["ce_id"].decode() == copy.id]
    assert (written.key, written.headers) == (event.key, event.headers)
    assert event.value is not None
    assert written.value == damaged(event.value)
    assert (copy.type, copy.value) == ("ride.requested", event.value.decode())


async def test_a_damaged_copy_is_not_copied() -> None:
    bus = await city()
    since = utc_now() - timedelta(minutes=1)
    ids = {(await poison(bus, since=since)).value for _ in range(3)}
    for value in ids:
        RideRequested.model_validate_json(value)


async def test_without_a_request_it_says_what_to_do() -> None:
    with pytest.raises(RunFailedError, match="nobody has requested a ride for a while: wait for the next one"):
        await poison(await city(), since=utc_now() + timedelta(minutes=1))


async def test_a_storm_does_not_repeat_it() -> None:
    bus = await city()
    since = utc_now() - timedelta(minutes=1)
    copy = await poison(bus, since=since)
    assert await repeat_records(bus, RIDES.name, since=since, without={copy.place}) == 3
    assert len(bus.records(RIDES)) == 7


async def test_the_next_run_knows_it(tmp_path: Path) -> None:
    bus = await city()
    path = tmp_path / "poison.jsonl"
    book = PoisonBook(path)
    assert book.copies == []
    for _ in range(2):
        book.note(await poison(bus, since=utc_now() - timedelta(minutes=1)))
    assert PoisonBook(path).copies == book.copies
    path.write_text("{}\n")
    with pytest.raises(UsageError, match="start anew with --fresh"):
        PoisonBook(path)
