"""The service in one process: bus in memory, database in a file, requests through the ASGI application."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hailbus import ConfigurationError, Service
from hailbus.settings import read_settings
from hailbus.testing import MemoryBus
from recommender.config import Settings
from recommender.main import create_app
from ride_events import CATALOGUE, LatLng, Money
from ride_events.bikes import BikeReturned
from ride_events.rides import RideCancelled, RideCompleted, RideMatched, RideRequested

MORNING = datetime(2023, 3, 1, 8, 0, tzinfo=UTC)
HARLEM = LatLng(lat=40.8045, lng=-73.9391)
MIDTOWN = LatLng(lat=40.7580, lng=-73.9855)
BATTERY = LatLng(lat=40.7033, lng=-74.0170)


def completed(number: int, *, start: LatLng = HARLEM, end: LatLng = MIDTOWN, rider: str | None = None) -> RideCompleted:
    return RideCompleted(
        ride_id=f"ride-{number}",
        seq=5,
        rider_id=rider or f"rider-{number}",
        driver_id="driver-1",
        pickup=start,
        dropoff=end,
        pickup_cell=start.cell(),
        dropoff_cell=end.cell(),
        passengers=1,
        requested_at=MORNING,
        started_at=MORNING + timedelta(seconds=number),
        distance_m=6000,
        duration_s=900,
        fare=Money(amount_minor=2000),
        multiplier=1.0,
    )


def requested(ride_id: str, rider: str) -> RideRequested:
    return RideRequested(
        ride_id=ride_id,
        seq=1,
        rider_id=rider,
        quote_id="quote-1",
        pickup=HARLEM,
        dropoff=MIDTOWN,
        pickup_cell=HARLEM.cell(),
        dropoff_cell=MIDTOWN.cell(),
        fare=Money(amount_minor=2000),
        multiplier=1.0,
        surge_version=None,
    )


class Running:
    """The application, a client of it, and a stranger's service that publishes rides."""

    def __init__(self, client: httpx.AsyncClient, bus: MemoryBus, publish: Callable[..., Awaitable[Any]]) -> None:
        self.client = client
        self.bus = bus
        self.publish = publish

    async def model(self) -> dict[str, Any]:
        answer = (await self.client.get("/model")).json()
        assert isinstance(answer, dict)
        return answer

    async def until(self, **expected: object) -> None:
        deadline = monotonic() + 10
        while (found := await self.model()) != {**found, **expected}:
            assert monotonic() < deadline, f"still {found}, wanted {expected}"
            await asyncio.sleep(0.01)

    async def warns(self, said: str) -> None:
        """Wait until the probe says this of parked keys, or nothing."""
        deadline = monotonic() + 10
        while (text := (await self.client.get("/readyz")).text) and (
            said not in text or (not said and "parked" in text)
        ):
            assert monotonic() < deadline, f"still {text}, wanted {said!r}"
            await asyncio.sleep(0.01)

    async def ask(self, **question: Any) -> dict[str, Any]:
        body = {"rider_id": "asker", "origin": HARLEM.model_dump(), "time": MORNING.isoformat(), **question}
        response = await self.client.post("/recommendations", json=body)
        assert response.status_code == 200, response.text
        answer = response.json()
        assert isinstance(answer, dict)
        return answer


@asynccontextmanager
async def running(path: Path, bus: MemoryBus | None = None, sources: str = "ride.completed") -> AsyncIterator[Running]:
    bus = bus or MemoryBus()
    settings = Settings.model_construct(
        **{
            **{name: field.get_default() for name, field in Settings.model_fields.items()},
            "bootstrap_servers": "memory",
            "database_url": type(Settings.model_fields["database_url"].get_default())(f"sqlite:///{path}/r.db"),
            "sources": sources,
        }
    )
    app: FastAPI = create_app(settings, bus=bus)
    booking = Service("booking", bus=bus, catalogue=CATALOGUE)
    publisher = booking.publishes(CATALOGUE)
    async with app.router.lifespan_context(app), booking.running(bus):
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://recommender") as client:
            yield Running(client, bus, publisher.publish)


async def test_completed_rides_become_recommendations_with_reasons(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        for number in range(60):
            await service.publish(completed(number))
        await service.until(journeys=60)
        answer = await service.ask()
        best = answer["destinations"][0]
        assert (best["name"], best["zone_id"]) == ("Times Sq/Theatre District", 230)
        assert best["code"] == "usual_at_this_hour"
        assert best["reason"].startswith("usual at this hour from East Harlem North: ")
        assert best["cell"] == MIDTOWN.cell(9)
        assert [option["rank"] for option in answer["destinations"]] == [1, 2, 3, 4, 5]
        assert answer["pickup_spots"][0]["cell"] == HARLEM.cell(11)
        assert answer["pickup_spots"][0]["code"] == "already_here"
        assert answer["origin"] == {"cell": HARLEM.cell(8), "name": "East Harlem North", "zone_id": 74}


async def test_a_riders_habit_is_recommended_to_that_rider(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        for number in range(20):
            await service.publish(completed(number))
        for number in range(20, 26):
            await service.publish(completed(number, end=BATTERY, rider="asker"))
        await service.until(journeys=26)
        mine, others = await service.ask(), await service.ask(rider_id="somebody")
        assert mine["destinations"][0]["reason"] == "you usually go here at this hour"
        assert mine["destinations"][0]["name"] == "Battery Park"
        assert others["destinations"][0]["name"] == "Times Sq/Theatre District"


async def test_open_rides_are_offered_until_they_end(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.publish(requested("ride-a", "somebody"), time=MORNING - timedelta(minutes=2))
        await service.publish(requested("ride-b", "asker"), time=MORNING)
        await service.until(open_rides=2)
        (offer,) = (await service.ask(destination=MIDTOWN.model_dump()))["pooled_rides"]
        assert (offer["ride_id"], offer["code"]) == ("ride-a", "same_route")
        assert offer["reason"] == "another rider goes the same way, 2 min apart"
        await service.publish(
            RideCancelled(
                ride_id="ride-a",
                seq=2,
                rider_id="somebody",
                driver_id=None,
                pickup_cell=HARLEM.cell(),
                by="rider",
                reason="changed plans",
                stage="requested",
            )
        )
        await service.until(open_rides=1)
        assert (await service.ask(destination=MIDTOWN.model_dump()))["pooled_rides"] == []


def matched(ride_id: str, *, seq: int) -> RideMatched:
    return RideMatched(
        ride_id=ride_id, seq=seq, driver_id="d", driver_position=HARLEM, pickup_cell=HARLEM.cell(), eta_s=60
    )


async def test_a_request_that_comes_after_the_end_of_its_ride_is_not_offered(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.publish(completed(1))
        await service.until(journeys=1)
        await service.publish(requested("ride-1", "rider-1"), time=MORNING)
        await service.publish(requested("ride-2", "rider-2"), time=MORNING)
        await service.until(journeys=1, open_rides=1)
        (offer,) = (await service.ask(destination=MIDTOWN.model_dump()))["pooled_rides"]
        assert offer["ride_id"] == "ride-2"


async def test_an_event_behind_a_gap_waits_for_the_missing_one_and_for_no_other_ride(tmp_path: Path) -> None:
    bus = MemoryBus()
    async with running(tmp_path, bus) as service:
        await service.publish(requested("ride-1", "rider-1"), time=MORNING)
        await service.publish(completed(1).model_copy(update={"seq": 3}))
        await service.publish(completed(2))
        await service.until(journeys=1, open_rides=1)
        await service.warns("group recommender has 1 parked keys")
    async with running(tmp_path, bus) as service:
        await service.publish(matched("ride-1", seq=2))
        await service.publish(completed(1).model_copy(update={"seq": 3}))  # again, under an id of its own
        await service.until(journeys=2, open_rides=0)
        await service.warns("")


async def test_what_is_served_and_chosen_is_published_once_under_stable_ids(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        answer = await service.ask(destination=MIDTOWN.model_dump())
        path = f"/recommendations/{answer['recommendation_id']}/chosen"
        for _ in range(2):
            response = await service.client.post(path, json={"option_id": "destination-2", "ride_id": "ride-9"})
            assert response.json() == {"recommendation_id": answer["recommendation_id"], "option_id": "destination-2"}
        records = service.bus.records("recommendations.v1")
        types = [dict(record.headers)["ce_type"] for record in records]
        assert types == [b"recommendation.served", b"recommendation.chosen", b"recommendation.chosen"]
        assert dict(records[1].headers)["ce_id"] == dict(records[2].headers)["ce_id"]
        served, chosen = (json.loads(record.value or b"") for record in records[:2])
        assert served["recommendation_id"] == chosen["recommendation_id"] == answer["recommendation_id"]
        assert [option["option_id"] for option in served["options"]] == [
            option["option_id"] for option in answer["destinations"]
        ]
        assert (served["origin_cell"], served["destination_cell"]) == (HARLEM.cell(), MIDTOWN.cell())
        assert (chosen["option_id"], chosen["rank"], chosen["ride_id"]) == ("destination-2", 2, "ride-9")
        assert dict(records[0].headers)["ce_time"] == b"2023-03-01T08:00:00Z"


async def test_the_same_key_gives_the_same_answer(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        body = {"rider_id": "asker", "origin": HARLEM.model_dump(), "time": MORNING.isoformat()}
        first = await service.client.post("/recommendations", json=body, headers={"Idempotency-Key": "one"})
        await service.publish(completed(1))
        await service.until(journeys=1)
        again = await service.client.post("/recommendations", json=body, headers={"Idempotency-Key": "one"})
        other = await service.client.post("/recommendations", json=body, headers={"Idempotency-Key": "two"})
        assert again.json() == first.json()
        assert other.json()["recommendation_id"] != first.json()["recommendation_id"]


async def test_requests_with_one_key_that_come_at_once_get_one_answer_and_publish_one(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        body = {"rider_id": "asker", "origin": HARLEM.model_dump(), "time": MORNING.isoformat()}
        headers = {"Idempotency-Key": "one"}
        asked = [service.client.post("/recommendations", json=body, headers=headers) for _ in range(8)]
        body = {**body, "origin": BATTERY.model_dump()}
        asked += [service.client.post("/recommendations", json=body, headers=headers) for _ in range(8)]
        answers = [response.json() for response in await asyncio.gather(*asked)]
        assert all(answer == answers[0] for answer in answers)
        published = {record.value for record in service.bus.records("recommendations.v1")}
        assert len(published) == 1


async def test_an_event_that_comes_twice_is_learned_once_and_a_restart_knows_it(tmp_path: Path) -> None:
    bus = MemoryBus()
    async with running(tmp_path, bus) as service:
        for _ in range(2):
            await service.publish(completed(1), id="event-1")
        await service.publish(requested("ride-a", "somebody"), time=MORNING)
        await service.until(journeys=1, open_rides=1)
        before = await service.ask()
    async with running(tmp_path, bus) as service:
        await service.publish(completed(1), id="event-1")
        await service.publish(completed(2), id="event-2")
        await service.until(journeys=2, open_rides=1)
    async with running(tmp_path, bus) as service:
        assert (await service.model())["journeys"] == 2
        path = f"/recommendations/{before['recommendation_id']}/chosen"
        assert (await service.client.post(path, json={"option_id": "destination-1"})).status_code == 200


@pytest.mark.parametrize(("sources", "journeys"), [("ride.completed", 0), ("ride.completed,bike.returned", 1)])
async def test_one_line_of_configuration_brings_bikes_in(tmp_path: Path, sources: str, journeys: int) -> None:
    returned = BikeReturned(
        hire_id="hire-1",
        bike_id="bike-1",
        rider_id="asker",
        seq=3,
        pickup=HARLEM,
        dropoff=BATTERY,
        pickup_cell=HARLEM.cell(),
        dropoff_cell=BATTERY.cell(),
        started_at=MORNING,
        distance_m=900,
        duration_s=600,
        fare=Money(amount_minor=400),
    )
    async with running(tmp_path, sources=sources) as service:
        await service.publish(returned)
        await service.publish(requested("ride-a", "somebody"), time=MORNING)
        await service.until(open_rides=1, journeys=journeys)


@pytest.mark.parametrize(
    ("sources", "sentence"),
    [
        ("ride.complete", "there is no event type 'ride.complete'"),
        ("driver.went_online", "nothing can be learned from 'driver.went_online', as it has no rider_id, pickup"),
        (" , ", "RECOMMENDER_SOURCES is empty"),
    ],
)
async def test_sources_that_cannot_work_stop_the_start(tmp_path: Path, sources: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        async with running(tmp_path, sources=sources):
            pass


QUESTION = {"rider_id": "r", "origin": {"lat": 40.7, "lng": -74.0}}
UNKNOWN = "/recommendations/7f1f28cb-6f14-4a3c-a0ab-3a3a63f34d3e/chosen"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/recommendations", b"{", 400, "malformed"),
        ("POST", "/recommendations", b"\xff\xfe", 400, "malformed"),
        ("POST", "/recommendations", b"", 400, "malformed"),
        ("POST", "/recommendations", b" " * 70_000, 413, "too-large"),
        ("POST", "/recommendations", {**QUESTION, "rider_id": ""}, 422, "invalid"),
        ("POST", "/recommendations", {**QUESTION, "origin": {"lat": 91, "lng": 0}}, 422, "invalid"),
        ("POST", "/recommendations", {**QUESTION, "time": "9999-12-31T23:59:59-14:00"}, 422, "invalid"),
        ("POST", "/recommendations", {**QUESTION, "time": 1e30}, 422, "invalid"),
        ("POST", "/recommendations", {**QUESTION, "destinaton": {"lat": 1, "lng": 1}}, 422, "invalid"),
        ("POST", "/recommendations", rb'{"rider_id":"\ud800","origin":{"lat":1,"lng":1}}', 400, "malformed"),
        ("POST", UNKNOWN, {"option_id": "destination-1"}, 404, "not-found"),
        ("POST", "/recommendations/none/chosen", {"option_id": "destination-1"}, 404, "not-found"),
        ("GET", "/recommendations", None, 405, "method-not-allowed"),
        ("GET", "/nothing", None, 404, "not-found"),
    ],
)
async def test_a_clients_mistake_is_a_problem(
    tmp_path: Path, method: str, path: str, body: object, status: int, code: str
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else None
    async with running(tmp_path) as service:
        headers = {"content-type": "application/json"}
        response = await service.client.request(method, path, content=content, headers=headers)
        assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")
        assert response.json()["type"] == f"/problems/{code}"


async def test_another_or_an_unknown_option_cannot_be_chosen(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        path = f"/recommendations/{(await service.ask())['recommendation_id']}/chosen"
        unknown = await service.client.post(path, json={"option_id": "destination-9"})
        assert (unknown.status_code, unknown.json()["type"]) == (422, "/problems/unknown-option")
        assert (await service.client.post(path, json={"option_id": "destination-1"})).status_code == 200
        other = await service.client.post(path, json={"option_id": "destination-2"})
        assert (other.status_code, other.json()["type"]) == (409, "/problems/other-option-chosen")


async def test_a_place_outside_the_city_still_gets_an_answer(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        answer = await service.ask(origin={"lat": 48.8584, "lng": 2.2945})
        assert answer["origin"]["name"] is None
        assert len(answer["destinations"]) == 5


def test_a_misspelt_setting_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="unknown setting RECOMMENDER_SOURCE;"):
        read_settings(Settings, {"RECOMMENDER_SOURCE": "ride.completed"})


async def test_the_openapi_document_tells_the_question(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        operation = (await service.client.get("/openapi.json")).json()["paths"]["/recommendations"]["post"]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        assert schema["properties"]["origin"]["properties"]["lat"]["maximum"] == 90
        assert schema["required"] == ["rider_id", "origin"]
        assert operation["parameters"][0]["name"] == "Idempotency-Key"
        assert set(operation["responses"]) == {"200", "400", "413", "422", "503"}
