"""The contracts over HTTP: what is listed, what a proposed change breaks, and what bad questions are answered."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from hailbus.contract import contract_of
from hailbus.testing import MemoryBus
from ride_events import CATALOGUE, TOPICS
from ride_events.rides import RideCompleted

from tests.integration.dashboard.city import page, story
from tests.integration.dashboard.test_api import until

COMPLETED = {"type": "ride.completed", "version": 1}


@asynccontextmanager
async def city() -> AsyncIterator[httpx.AsyncClient]:
    bus = MemoryBus()
    async with story(bus) as tell, page(bus) as url, httpx.AsyncClient(base_url=url, timeout=10) as client:
        await tell.ride("one")
        yield client


async def judged(client: httpx.AsyncClient, **question: Any) -> dict[str, Any]:
    response = await client.post("/api/contracts/check", json=COMPLETED | question)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def test_all_events_are_listed_with_fields_readers_and_publishers() -> None:
    async with city() as client:

        async def listed() -> dict[str, Any]:
            found: dict[str, Any] = (await client.get("/api/contracts")).json()
            return found

        found = await until(listed, lambda one: all(t["publishers"] for t in one["topics"] if t["name"] == "rides.v1"))
        assert [topic["name"] for topic in found["topics"]] == [topic.name for topic in TOPICS]
        assert len(found["events"]) == len(CATALOGUE)
        (event,) = [one for one in found["events"] if one["type"] == "ride.completed"]
        assert (event["topic"], event["key"], event["version"]) == ("rides.v1", "ride_id", 1)
        assert event["publishers"] == ["booking"]
        assert {"dashboard", "payment-saga", "recommender"} <= set(event["consumers"])
        assert [reader["consumer"] for reader in event["whole"]] == ["event-logger", "lake", "dashboard"]
        fields = {field["path"]: field for field in event["fields"]}
        assert fields["fare.amount_minor"]["consumers"]["payment-saga"] == "reads"
        assert (fields["started_at"]["type"], fields["started_at"]["required"]) == ("string (date-time)", True)
        assert fields["pickup.lat"]["consumers"]["recommender"] == "reads"
        assert fields["distance_m"]["consumers"] == {}
        assert fields["reason"]["required"] is False
        schema = (await client.get("/api/contracts/ride.completed/v1")).json()
        assert schema == json.loads(json.dumps(contract_of(RideCompleted).as_json()))


async def test_a_removed_field_is_told_for_each_consumer() -> None:
    async with city() as client:
        found = await judged(client, changes=[{"op": "remove", "field": "started_at"}])
        assert found["breaking"]
        assert found["verdict"].startswith("Breaking: recommender loses fields that it reads; ")
        assert found["effects"][0] == {
            "kind": "consumer",
            "consumer": "recommender",
            "field": "started_at",
            "words": "recommender needs this field: it is not written, and is expected without a default",
        }
        assert "readers" in {effect["kind"] for effect in found["effects"]}


async def test_several_operations_are_made_in_turn() -> None:
    async with city() as client:
        found = await judged(
            client,
            changes=[
                {"op": "add", "field": "tip", "type": "integer", "default": 0},
                {"op": "rename", "field": "tip", "to": "tip_minor"},
                {"op": "retype", "field": "tip_minor", "type": "number", "nullable": True},
                {"op": "optional", "field": "rider_id"},
                {"op": "require", "field": "reason"},
            ],
        )
        assert {effect["field"] for effect in found["effects"]} >= {"rider_id"}
        assert (await judged(client, changes=[{"op": "add", "field": "tip", "type": "integer", "default": 0}]))[
            "breaking"
        ] is False


async def test_an_edited_schema_is_judged() -> None:
    async with city() as client:
        schema = (await client.get("/api/contracts/ride.completed/v1")).json()["schema"]
        assert (await judged(client, schema=schema))["verdict"] == "This changes nothing."
        schema["$defs"]["LatLng"]["properties"]["lat"]["type"] = "string"
        found = await judged(client, schema=schema)
        assert {"pickup.lat", "dropoff.lat"} <= {effect["field"] for effect in found["effects"]}


async def test_nothing_is_changed() -> None:
    async with city() as client:
        before = (await client.get("/api/contracts/ride.completed/v1")).json()
        await judged(client, changes=[{"op": "remove", "field": "pickup.lat"}])
        assert (await client.get("/api/contracts/ride.completed/v1")).json() == before


REMOVE = [{"op": "remove", "field": "fare"}]


@pytest.mark.parametrize(
    ("question", "status", "words"),
    [
        ({"type": "ride.flown", "changes": REMOVE}, 404, "there is no event 'ride.flown' v1; GET /api/contracts lists"),
        ({"version": 7, "changes": REMOVE}, 404, "there is no event 'ride.completed' v7"),
        ({"version": 0, "changes": REMOVE}, 422, "body.version"),
        ({}, 422, "give either changes or schema"),
        ({"changes": REMOVE, "schema": {}}, 422, "give either changes or schema"),
        ({"changes": []}, 422, "body.changes"),
        ({"changes": REMOVE * 21}, 422, "body.changes"),
        ({"changes": [{"op": "explode", "field": "fare"}]}, 422, "'remove', 'rename', 'require', 'optional'"),
        ({"changes": [{"op": "remove"}]}, 422, "field: Field required"),
        ({"changes": [{"op": "remove", "field": "tip"}]}, 422, "there is no field 'tip'; there are ride_id, seq"),
        ({"changes": [{"op": "remove", "field": "a b"}]}, 422, "field: String should match pattern"),
        ({"changes": [{"op": "rename", "field": "fare", "to": "seq"}]}, 422, "there is a field 'seq' already"),
        ({"changes": [{"op": "retype", "field": "fare", "type": "money"}]}, 422, "'string', 'integer', 'number'"),
        ({"changes": [{"op": "add", "field": "tip", "type": "integer", "default": "x"}]}, 422, "give a value of the"),
        ({"schema": {}}, 422, "an event is an object"),
        ({"schema": [1]}, 422, "body.schema"),
        ({"schema": {"type": "object", "properties": {"a": {"type": "strin"}}}}, 422, "this is no JSON Schema"),
        ({"changes": REMOVE, "also": 1}, 422, "body.also"),
    ],
)
async def test_a_bad_question_is_answered_with_what_to_do(question: dict[str, Any], status: int, words: str) -> None:
    async with city() as client:
        answer = await client.post("/api/contracts/check", json=COMPLETED | question)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        assert words in answer.json()["detail"]


@pytest.mark.parametrize(
    ("content", "media_type", "status", "words"),
    [
        (b"{", "application/json", 400, "JSON"),
        (b"[" * 60_000, "application/json", 400, ""),
        (b"", "application/json", 422, "body"),
        (b"{}", "text/plain", 415, "send application/json"),
        (b" " * 70_000, "application/json", 413, "the body is larger than 65536 bytes"),
    ],
)
async def test_a_body_that_cannot_be_read_is_refused(content: bytes, media_type: str, status: int, words: str) -> None:
    async with city() as client:
        answer = await client.post("/api/contracts/check", content=content, headers={"Content-Type": media_type})
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
        assert words in answer.json()["detail"]


async def test_an_unknown_contract_is_a_problem() -> None:
    async with city() as client:
        answer = await client.get("/api/contracts/ride.flown/v1")
        assert (answer.status_code, answer.json()["detail"]) == (
            404,
            "there is no event 'ride.flown' v1; GET /api/contracts lists all events",
        )
        assert (await client.get("/api/contracts/ride.completed/vx")).status_code == 422
        assert (await client.get("/api/contracts/check")).status_code in {404, 405}


async def test_the_page_is_served_with_the_policy() -> None:
    async with city() as client:
        answer = await client.get("/contracts")
        assert answer.status_code == 200
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert 'src="contracts.js"' in answer.text
