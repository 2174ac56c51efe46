"""One address in front of two regions: riders and drivers know nothing of the border."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.booking.regional_city import MANHATTAN, OUTER, PLACES, City
from tests.integration.conftest import Broker, Process
from tests.support import free_port

pytestmark = [pytest.mark.timeout(240), pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)]
ROUTER = "router"


@pytest.fixture
def city(broker: Broker, database_url: str, tmp_path: Path) -> Iterator[City]:
    """A city whose address `router` is that of a router; `start` starts it, as it starts a region."""
    one = City(broker, database_url, tmp_path)
    folder = tmp_path / ROUTER
    folder.mkdir()
    one.addresses[ROUTER] = f"127.0.0.1:{free_port()}"
    settings = {"ROUTER_REGIONS": str(one.file), "ROUTER_LISTEN": one.addresses[ROUTER]}
    one.processes[ROUTER] = Process("booking-router", folder, settings)
    yield one
    for process in one.processes.values():
        if process.is_running:
            assert process.terminate() == 0


async def start(city: City) -> None:
    await asyncio.gather(*(city.start(name) for name in city.processes))


async def online(city: City, driver: str, region: str, key: str) -> httpx.Response:
    return await city.post(ROUTER, f"/drivers/{driver}/online", {"position": PLACES[region]}, key)


async def ride(city: City, rider: str, region: str) -> Any:
    """Drive a rider from a place of a region to the end, all through the router."""
    pickup = PLACES[region]
    body = {"rider_id": rider, "pickup": pickup, "dropoff": {**pickup, "lat": pickup["lat"] + 0.005}}
    quote = (await city.post(ROUTER, "/quotes", body, f"{rider}-quote")).json()
    answer = await city.post(ROUTER, "/rides", {"quote_id": quote["quote_id"]}, f"{rider}-ride")
    assert answer.status_code == 201, answer.text
    found = answer.json()
    assert found["ride_id"].startswith(f"{region}.")
    driver = {"driver_id": found["driver_id"]}
    for step, more in (("arrived", {}), ("start", {}), ("complete", {"distance_m": 900})):
        answer = await city.post(ROUTER, f"/rides/{found['ride_id']}/{step}", {**driver, **more}, f"{rider}-{step}")
        assert answer.status_code == 200, answer.text
    return answer.json()


async def test_rides_of_both_regions_go_through_one_address_and_lists_show_the_whole_city(city: City) -> None:
    await start(city)
    for region in PLACES:
        for number in range(3):
            assert (await online(city, f"{region}-{number}", region, f"on-{region}-{number}")).status_code == 200
    rides = [await ride(city, f"{region}-rider-{number}", region) for number in range(2) for region in PLACES]
    newest_first = [found["ride_id"] for found in reversed(rides)]
    for name in (ROUTER, *PLACES):
        page = (await city.get(name, "/rides?limit=3")).json()
        assert [found["ride_id"] for found in page["rides"]] == newest_first[:3]
        page = (await city.get(name, f"/rides?limit=3&after={page['next']}")).json()
        assert ([found["ride_id"] for found in page["rides"]], page["next"]) == (newest_first[3:], None)
        assert len((await city.get(name, "/drivers")).json()["drivers"]) == 6
    assert (await city.get(ROUTER, f"/rides/{newest_first[0]}")).json() == rides[-1]
    assert (await city.get(ROUTER, "/drivers/manhattan-0")).json()["driver_id"] == "manhattan-0"
    assert (await city.get(ROUTER, "/rides/outer.nobody")).status_code == 404
    assert (await city.get(ROUTER, "/openapi.json")).json()["info"]["title"] == "booking"
    forwarded = (await city.get(ROUTER, "/metrics")).text
    assert 'booking_router_forwarded_total{outcome="answered",region="manhattan"}' in forwarded
    await city.check_log()
    await city.close()


async def test_a_token_is_booking_s_to_judge(city: City) -> None:
    await start(city)
    async with httpx.AsyncClient(base_url=f"http://{city.addresses[ROUTER]}") as client:
        nobody = await client.post("/quotes", json={}, headers={"Idempotency-Key": "k"})
        assert (nobody.status_code, nobody.headers["www-authenticate"]) == (401, 'Bearer realm="booking"')
        rider = city.callers.header(("rider", "r"))
        assert (await client.get("/rides", headers=rider)).status_code == 403
        body = {"rider_id": "r", "pickup": PLACES[MANHATTAN], "dropoff": PLACES[OUTER]}
        answers = [await client.post("/quotes", json=body, headers={"Idempotency-Key": "k", **rider}) for _ in range(2)]
        assert answers[0].json() == answers[1].json()
        assert answers[1].headers["idempotent-replay"] == "true"
    await city.close()


async def test_a_fleet_s_updates_reach_each_driver_s_region(city: City) -> None:
    await start(city)
    for driver, region in (("m", MANHATTAN), ("o", OUTER)):
        assert (await online(city, driver, region, f"on-{driver}")).status_code == 200
    updates = [
        {"kind": "location", "driver_id": "m", "position": PLACES[OUTER]},  # beyond the border, and still Manhattan's
        {"kind": "offline", "driver_id": "m"},
        {"kind": "online", "driver_id": "m", "position": PLACES[OUTER]},
        {"kind": "offline", "driver_id": "o"},
        {"kind": "online", "driver_id": "n", "position": PLACES[MANHATTAN]},
    ]
    answers = [(await city.post(ROUTER, "/driver-updates", {"updates": updates}, "many")).json() for _ in range(2)]
    assert [result["status"] for result in answers[0]["results"]] == [200] * 5
    assert answers[0] == answers[1]  # the same key: nothing was done twice
    found = {one["driver_id"]: one for one in (await city.get(ROUTER, "/drivers")).json()["drivers"]}
    assert {key: one["status"] for key, one in found.items()} == {"m": "free", "o": "offline", "n": "free"}
    held = "SELECT key, region FROM booking_regions.claims WHERE kind = 'driver' AND held IS NOT NULL ORDER BY key"
    assert await city.rows(OUTER, held) == [("m", OUTER), ("n", MANHATTAN)]
    await city.check_log()
    await city.close()


async def test_while_a_region_is_killed_the_other_s_rides_go_on_and_nothing_is_lost(city: City) -> None:
    await start(city)
    for region in PLACES:
        for number in range(6):  # one for each ride that may be under way
            await online(city, f"{region}-{number}", region, f"on-{region}-{number}")
    waiting = asyncio.gather(*(ride(city, f"{MANHATTAN}-{number}", MANHATTAN) for number in range(4)))
    await ride(city, "first", MANHATTAN)
    city.processes[MANHATTAN].kill()
    for number in range(4):
        await ride(city, f"{OUTER}-{number}", OUTER)
    page = (await city.get(ROUTER, "/rides?limit=500")).json()  # the other region reads Manhattan's rides as well
    assert {found["ride_id"].partition(".")[0] for found in page["rides"]} == set(PLACES)
    await city.start(MANHATTAN)
    await waiting
    city.processes[ROUTER].kill()
    await city.start(ROUTER)  # it has kept nothing
    await ride(city, "last", MANHATTAN)
    await city.check_log()
    ended = "SELECT count(*) FROM booking_rides WHERE state = 'completed'"
    assert (await city.rows(MANHATTAN, ended), await city.rows(OUTER, ended)) == ([(6,)], [(4,)])
    await city.close()


async def test_a_router_without_its_file_stops_with_a_sentence(city: City, tmp_path: Path) -> None:
    process = Process("booking-router", tmp_path, {"ROUTER_REGIONS": str(tmp_path / "none.toml")})
    process.start()
    assert await asyncio.to_thread(process.wait) == 2
    assert "none.toml cannot be read: No such file or directory; name a TOML file of regions" in process.log()
    await city.close()
