"""Two booking processes share a city on one PostgreSQL: each owns its rides, and together they agree on people."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from booking.adapters.storage.claims import url_of_whole_city
from hailbus import ClusterAdmin, KafkaBus, Service
from hailbus_demo.ledger.draw import draw_up
from hailbus_demo.ledger.gather import Gatherer, Sources
from hailbus_demo.services import CONSUMERS
from ride_events import CATALOGUE, TOPICS, Money
from ride_events.payments import PaymentAuthorised, PaymentFailed

from tests.integration.booking.regional_city import MANHATTAN, OUTER, PLACES, City
from tests.integration.conftest import Broker, eventually

pytestmark = [pytest.mark.timeout(240), pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)]


@pytest.fixture
def city(broker: Broker, database_url: str, tmp_path: Path) -> Iterator[City]:
    one = City(broker, database_url, tmp_path)
    yield one
    for process in one.processes.values():
        if process.is_running:
            assert process.terminate() == 0


ELSEWHERE = {"money-rides-payments", "surge-pickups"}
"""Lines that want payment and surge, which do not run here."""


async def check_ledger(city: City, broker: Broker) -> None:
    """Draw up the demo's ledger over all regions, read as one by the views of the shared schema."""
    async with ClusterAdmin(KafkaBus(bootstrap_servers=broker.bootstrap, client_id="check")) as admin:
        await admin.provision(TOPICS)
    url = url_of_whole_city(city.database_url)
    booking = next(replace(one, regions=tuple(PLACES)) for one in CONSUMERS if one.group == "booking")
    gatherer = Gatherer(Sources(bootstrap=broker.bootstrap, databases={"booking": url}, consumers=(booking,)))
    verdicts: dict[str, str] = {}

    async def balanced() -> bool:  # committed offsets follow what was applied
        verdicts.update({line.id: line.verdict for line in draw_up(await gatherer.gather()).lines})
        return {key for key, verdict in verdicts.items() if verdict not in ("agrees", "shown")} <= ELSEWHERE

    try:
        await eventually(balanced, within_s=60)
    finally:
        await gatherer.close()
    wanted = ("outbox-log", "inbox-booking", "groups-log", "rides-booking-log", "drivers-booking-log", "booking-timers")
    assert {verdicts[key] for key in wanted} == {"agrees"}, verdicts


async def test_a_region_that_is_killed_loses_nothing_and_the_other_goes_on(city: City, broker: Broker) -> None:
    await asyncio.gather(*(city.start(name) for name in PLACES))
    for name in PLACES:
        for number in range(5):
            assert (await city.online(name, f"{name}-{number}", f"on-{name}-{number}")).status_code == 200

    async def many(region: str, first: int) -> None:
        for number in range(first, first + 8):
            await city.ride(region, f"{region}-rider-{number}")

    killed = asyncio.gather(*(many(MANHATTAN, 100 * number) for number in range(3)))
    answered = await city.ride(MANHATTAN, "manhattan-first")
    city.processes[MANHATTAN].kill()
    await many(OUTER, 0)  # while the other is away
    assert not killed.done()
    await city.start(MANHATTAN)
    await asyncio.gather(killed, many(OUTER, 100))
    again = (await city.get(MANHATTAN, f"/rides/{answered['ride_id']}")).json()
    assert (again["state"], again["seq"]) == ("completed", answered["seq"])
    await city.check_log()
    await check_ledger(city, broker)
    ended = "SELECT count(*) FROM booking_rides WHERE state = 'completed'"
    assert await city.rows(MANHATTAN, ended) == [(25,)]
    assert await city.rows(OUTER, ended) == [(16,)]
    assert await city.rows(OUTER, "SELECT count(*) FROM booking_regions.claims WHERE kind='rider' AND held != ''") == [
        (0,)
    ]
    await city.close()


async def test_a_request_at_the_wrong_region_is_told_the_owner(city: City) -> None:
    await asyncio.gather(*(city.start(name) for name in PLACES))
    await city.online(MANHATTAN, "d", "on")
    ride = (await city.request(MANHATTAN, "r")).json()
    steps = f"/rides/{ride['ride_id']}"
    quote = {"rider_id": "r", "pickup": PLACES[MANHATTAN], "dropoff": PLACES[OUTER]}
    wrong = [
        await city.get(OUTER, steps),
        await city.get(OUTER, f"/quotes/{ride['quote_id']}"),
        await city.get(OUTER, "/drivers/d"),
        await city.post(OUTER, steps + "/arrived", {"driver_id": "d"}, "a"),
        await city.post(OUTER, "/drivers/d/location", {"position": PLACES[MANHATTAN]}, "b"),
        await city.post(OUTER, "/quotes", quote, "c"),
    ]
    address = f"http://{city.addresses[MANHATTAN]}"
    for response in wrong:
        problem = response.json()
        assert response.status_code == 421, response.text
        assert (problem["type"], problem["owner"], problem["address"]) == ("/problems/misdirected", MANHATTAN, address)
        assert response.headers["content-type"] == "application/problem+json"
    body = {
        "updates": [
            {"kind": "arrived", "driver_id": "d", "ride_id": ride["ride_id"]},
            {"kind": "online", "driver_id": "e", "position": PLACES[OUTER]},
        ]
    }
    results = (await city.post(OUTER, "/driver-updates", body, "many")).json()["results"]
    assert [one["status"] for one in results] == [421, 200]
    assert results[0]["body"]["owner"] == MANHATTAN
    # The same key at the owner is a request that was never made.
    assert (await city.post(MANHATTAN, steps + "/arrived", {"driver_id": "d"}, "a")).status_code == 200
    await city.close()


async def test_nobody_has_two_rides_in_two_regions(city: City) -> None:
    await asyncio.gather(*(city.start(name) for name in PLACES))
    for number in range(10):
        both = await asyncio.gather(*(city.request(name, f"r{number}") for name in PLACES))
        assert sorted(response.status_code for response in both) == [201, 409]
        (won,) = [response.json() for response in both if response.status_code == 201]
        (refused,) = [response.json() for response in both if response.status_code == 409]
        assert refused["type"] == "/problems/ride-open"
        assert won["ride_id"] in refused["detail"]
        winner, loser = (MANHATTAN, OUTER) if won["ride_id"].startswith(MANHATTAN) else (OUTER, MANHATTAN)
        body = {"by": "rider", "reason": "late"}
        assert (await city.post(winner, f"/rides/{won['ride_id']}/cancel", body, f"x{number}")).status_code == 200
        quote = await city.quote(loser, f"r{number}")
        after = await city.post(loser, "/rides", {"quote_id": quote["quote_id"]}, f"again-{number}")
        assert after.status_code == 201, after.text
    await city.check_log()
    await city.close()


async def test_a_driver_goes_from_one_region_to_the_next(city: City) -> None:
    await asyncio.gather(*(city.start(name) for name in PLACES))
    assert (await city.online(MANHATTAN, "d", "1")).json()["seq"] == 1
    refused = await city.online(OUTER, "d", "2")
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/driver-elsewhere")
    off = await city.post(MANHATTAN, "/drivers/d/offline", {}, "3")
    assert off.json()["seq"] == 2
    assert (await city.online(OUTER, "d", "4")).json()["seq"] == 3
    assert (await city.post(MANHATTAN, "/drivers/d/offline", {}, "5")).status_code == 421
    ride = await city.ride(OUTER, "r")
    assert ride["driver_id"] == "d"
    assert (await city.post(OUTER, "/drivers/d/offline", {}, "6")).json()["seq"] == 6
    assert (await city.online(MANHATTAN, "d", "7")).json()["seq"] == 7
    both = await asyncio.gather(*(city.online(name, "twin", f"twin-{name}") for name in PLACES))
    assert sorted(response.status_code for response in both) == [200, 409]
    await city.check_log()
    await city.close()


async def test_a_payment_is_applied_by_the_region_of_its_ride(city: City, broker: Broker) -> None:
    await asyncio.gather(*(city.start(name) for name in PLACES))
    found = {name: (await city.request(name, f"rider-{name}")).json()["ride_id"] for name in PLACES}
    payment = Service(
        "payment", source="/payment", bus=KafkaBus(bootstrap_servers=broker.bootstrap), catalogue=CATALOGUE
    )
    publisher = payment.publishes(PaymentAuthorised | PaymentFailed)
    fare = Money(amount_minor=900)
    async with payment.running():
        for name, ride_id in found.items():
            await publisher.publish(
                PaymentAuthorised(ride_id=ride_id, payment_id="p", rider_id=name, seq=1, amount=fare)
            )

    async def applied() -> bool:
        states = [(await city.get(name, f"/rides/{key}")).json()["payment"] for name, key in found.items()]
        return states == ["authorised", "authorised"]

    await eventually(applied, within_s=60)
    for name in PLACES:
        claimed = await city.rows(name, "SELECT count(*) FROM hailbus_inbox WHERE topic = 'payments.v1'")
        assert claimed == [(1,)]
        city.processes[name].terminate()
        log = (city.file.parent / name / "booking.log").read_text()
        assert '"foreign": 1' in log
        assert "dead" not in log
    await city.close()


async def test_a_second_process_for_a_region_stops_with_a_sentence(city: City, tmp_path: Path) -> None:
    await city.start(MANHATTAN)
    second = city.process(MANHATTAN, tmp_path / "second")
    second.start()
    assert await asyncio.to_thread(second.wait) == 2
    assert "another process serves region manhattan" in second.log().splitlines()[-1]
    await city.start(OUTER)  # another region is welcome
    city.processes[MANHATTAN].kill()
    await city.start(MANHATTAN)  # PostgreSQL gives the lock of a dead process back
    await city.close()
