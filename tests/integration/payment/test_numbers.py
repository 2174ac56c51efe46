"""The saga and the numbers of a ride's events: gaps are parked, shown and released; repetitions change nothing."""

import json
from collections.abc import AsyncIterator

import httpx
import pytest
from hailbus import ParkingLot
from hailbus.database import create_engine
from hailbus.sequence import Sequences
from payment.adapters.streams.service import GROUP

from tests.integration.conftest import eventually
from tests.integration.payment.conftest import (
    City,
    StartCity,
    cancelled,
    completed,
    matched,
    numbered,
    repriced,
    requested,
)

pytestmark = pytest.mark.timeout(120)


class Desk:
    """What `hailbus parked` sees and does."""

    def __init__(self, database_url: str) -> None:
        self.engine = create_engine(database_url)
        self.lot = ParkingLot(self.engine)

    async def waiting(self) -> list[tuple[str, int, str]]:
        return [(key.key.decode(), key.waiting_count, key.reason) for key in await self.lot.keys(GROUP)]

    async def shows(self, *expected: tuple[str, int, str]) -> None:
        async def so() -> bool:
            return await self.waiting() == list(expected)

        await eventually(so)

    async def give_up(self, ride_id: str) -> None:
        """Do what `hailbus parked release --accept-gap` does."""
        await Sequences(self.engine, GROUP).accept_gap("rides.v1", ride_id.encode())
        await self.lot.release(GROUP, "rides.v1", ride_id.encode())


@pytest.fixture
async def desk(database_url: str) -> AsyncIterator[Desk]:
    desk = Desk(database_url)
    yield desk
    await desk.engine.dispose()


async def warns(city: City, *, parked: int) -> None:
    """Wait until the probe counts so many parked keys."""
    said = f"group payment-saga has {parked} parked keys" if parked else ""

    async def so() -> bool:
        answer: httpx.Response = await city.payment.get("/readyz")
        return said in answer.text if said else "parked" not in answer.text

    await eventually(so)


async def test_an_event_that_is_missing_parks_its_ride_alone_until_it_comes(start: StartCity, desk: Desk) -> None:
    async with start() as city:
        begin, step, dearer, end = numbered(
            requested("a"), matched("a"), repriced("a", fare_minor=2_500), completed("a", fare_minor=2_500)
        )
        await city.publish(begin, dearer, end)
        await desk.shows(("a", 2, "seq 3 came where 2 was due"))
        await city.tell(requested("b"), completed("b"))
        await city.reaches("b", "settled")
        assert (await city.state("a"))["state"] in {"authorising", "authorised"}
        await warns(city, parked=1)
    async with start() as city:  # a restart forgets nothing
        await warns(city, parked=1)
        await city.publish(step)
        assert (await city.reaches("a", "settled"))["captured_minor"] == 2_500
        await desk.shows()
        await warns(city, parked=0)
        assert city.letters() == []


async def test_the_end_of_a_ride_that_comes_before_its_request_is_paid(start: StartCity, desk: Desk) -> None:
    async with start() as city:
        begin, end = numbered(requested("a"), completed("a"))
        await city.publish(end)
        await desk.shows(("a", 1, "seq 2 came where 1 was due"))
        await city.publish(begin)
        await city.reaches("a", "settled")
        assert await city.moved("a") == [("authorise", 1_840), ("capture", 1_840)]
        await desk.shows()


async def test_an_older_price_under_an_id_of_its_own_does_not_come_back(start: StartCity, desk: Desk) -> None:
    async with start() as city:
        await city.faults(outage="refuse")
        begin, dearer, cheaper = numbered(
            requested("a"), repriced("a", fare_minor=3_000), repriced("a", fare_minor=2_000)
        )
        await city.publish(begin, dearer, cheaper, dearer)
        await city.reads_all()
        await city.faults(outage="none")
        await city.told("a", 2)
        await city.publish(*numbered(completed("a", fare_minor=2_000), first=4))
        await city.reaches("a", "settled")
        assert await city.moved("a") == [("authorise", 1_840), ("authorise", 160), ("capture", 2_000)]
        assert await desk.waiting() == []


async def test_an_event_that_never_comes_is_given_up_by_hand(start: StartCity, desk: Desk) -> None:
    async with start() as city:
        begin, lost, end = numbered(requested("a"), repriced("a", fare_minor=2_500), completed("a"))
        await city.publish(begin, end)
        await desk.shows(("a", 1, "seq 3 came where 2 was due"))
        await desk.lot.release(GROUP, "rides.v1", b"a")  # without accepting the gap nothing is passed over

        async def is_tried() -> bool:
            return not any(key.is_released for key in await desk.lot.keys(GROUP))

        await eventually(is_tried)
        assert await desk.waiting() == [("a", 1, "seq 3 came where 2 was due")]
        await desk.give_up("a")
        await city.reaches("a", "settled")
        await desk.shows()
        await city.publish(lost, *numbered(cancelled("a"), first=4))
        await city.reads_all()
        amounts = [json.loads(record.value)["amount"]["amount_minor"] for _, record in await city.told("a", 2)]
        assert amounts == [1_840, 1_840]  # the lost price, which comes after all, changes nothing
        assert await city.moved("a") == [("authorise", 1_840), ("capture", 1_840)]
