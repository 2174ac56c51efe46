"""Clients' mistakes: a problem response by RFC 9457, and never a 500."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from booking.config import Settings
from booking.main import create_app
from hailbus.testing import MemoryBus
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.integration.booking.callers import By, Callers
from tests.integration.booking.conftest import DROPOFF, PICKUP, Client, StartBooking

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
async def booking(start_booking: StartBooking) -> AsyncIterator[Client]:
    async with start_booking(clock="event") as one:
        await one.post("/drivers/d1/online", {"position": PICKUP}, at="2014-05-01T08:00:00Z")
        yield one


def check_problem(response: httpx.Response, status: int, code: str) -> Any:
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json"), (
        response.text
    )
    problem = response.json()
    assert (problem["type"], problem["status"]) == (f"/problems/{code}", status)
    assert problem["title"]
    assert problem["detail"]
    return problem


QUOTE = {"rider_id": "r1", "pickup": PICKUP, "dropoff": DROPOFF}


async def test_the_same_key_and_body_get_the_same_answer_another_body_does_not(booking: Client) -> None:
    first = await booking.raw("/quotes", QUOTE, key="k1")
    again = await booking.raw("/quotes", {**QUOTE, "passengers": 1}, key="k1")  # the default, spelt out
    assert (again.status_code, again.content) == (first.status_code, first.content)
    assert "idempotent-replay" not in first.headers
    assert again.headers["idempotent-replay"] == "true"
    check_problem(await booking.raw("/quotes", {**QUOTE, "passengers": 2}, key="k1"), 422, "idempotency-key-reused")


async def test_one_key_at_the_same_time_is_done_once(booking: Client) -> None:
    quote = (await booking.quote())["quote_id"]
    answers = await asyncio.gather(*(booking.raw("/rides", {"quote_id": quote}, key="same") for _ in range(20)))
    assert {answer.content for answer in answers} == {answers[0].content}
    assert sorted(answer.headers.get("idempotent-replay", "first") for answer in answers) == ["first", *["true"] * 19]
    assert len((await booking.get("/rides"))["rides"]) == 1


async def test_a_refusal_is_remembered_and_leaves_nothing_behind(booking: Client) -> None:
    ride = await booking.ride()
    steps = f"/rides/{ride['ride_id']}"
    check_problem(await booking.raw(f"{steps}/start", {"driver_id": "d1"}, key="early"), 409, "wrong-state")
    await booking.post(f"{steps}/arrived", {"driver_id": "d1"})
    check_problem(await booking.raw(f"{steps}/start", {"driver_id": "d1"}, key="early"), 409, "wrong-state")
    assert (await booking.post(f"{steps}/start", {"driver_id": "d1"}, key="in-time"))["seq"] == 4


async def test_every_refusal_has_its_code(booking: Client) -> None:
    quote = await booking.quote()
    ride = await booking.post("/rides", {"quote_id": quote["quote_id"]})
    steps = f"/rides/{ride['ride_id']}"
    check_problem(await booking.raw("/rides", {"quote_id": quote["quote_id"]}), 409, "quote-taken")
    check_problem(await booking.raw("/rides", {"quote_id": "none"}), 404, "not-found")
    check_problem(await booking.raw(f"{steps}/arrived", {"driver_id": "other"}), 404, "not-found")
    check_problem(await booking.raw(f"{steps}/cancel", {"by": "driver", "reason": "x"}), 422, "invalid")
    check_problem(await booking.raw("/drivers/d1/offline", {}), 409, "driver-busy")
    check_problem(await booking.raw("/drivers/none/offline", {}), 404, "not-found")
    await booking.post("/drivers/d2/online", {"position": PICKUP})
    await booking.post("/drivers/d2/offline", {})
    check_problem(await booking.raw("/drivers/d2/location", {"position": PICKUP}), 409, "driver-offline")
    await booking.post(f"{steps}/cancel", {"by": "driver", "driver_id": "d1", "reason": "flat tyre"})
    check_problem(await booking.raw(f"{steps}/arrived", {"driver_id": "d1"}), 409, "not-your-ride")


@pytest.mark.parametrize(
    ("content", "headers", "status", "code"),
    [
        (b"{", {}, 400, "malformed"),
        (b"\xff\xfe", {}, 400, "malformed"),
        (b"[" * 100_000, {}, 400, "malformed"),
        (b"null", {}, 422, "invalid"),
        (b"[]", {}, 422, "invalid"),
        (json.dumps({**QUOTE, "more": 1}).encode(), {}, 422, "invalid"),
        (json.dumps({**QUOTE, "rider_id": "a\x00b"}).encode(), {}, 422, "invalid"),
        (json.dumps({**QUOTE, "rider_id": "\ud800"}).encode(), {}, 422, "invalid"),
        (json.dumps({**QUOTE, "\ud800": 1}).encode(), {}, 422, "invalid"),
        (json.dumps({**QUOTE, "pickup": {"lat": float("nan"), "lng": 0}}).encode(), {}, 422, "invalid"),
        (json.dumps({**QUOTE, "pickup": {"lat": 91, "lng": 0}}).encode(), {}, 422, "invalid"),
        (json.dumps({**QUOTE, "passengers": 10**30}).encode(), {}, 422, "invalid"),
        (json.dumps({**QUOTE, "passengers": True}).encode(), {}, None, None),
        (json.dumps(QUOTE).encode(), {"Idempotency-Key": ""}, 400, "malformed"),
        (json.dumps(QUOTE).encode(), {"Idempotency-Key": "ключ"}, 400, "malformed"),
        (json.dumps(QUOTE).encode(), {"Idempotency-Key": "k" * 129}, 400, "malformed"),
        (json.dumps(QUOTE).encode(), {"Idempotency-Key": None}, 400, "malformed"),
        (json.dumps(QUOTE).encode(), {"Event-Time": "yesterday"}, 400, "malformed"),
        (json.dumps(QUOTE).encode(), {"Event-Time": "1398931200"}, 400, "malformed"),
        (json.dumps(QUOTE).encode(), {"Event-Time": "2014-05-01T08:00:00"}, 400, "malformed"),
        (json.dumps(QUOTE).encode(), {"Event-Time": "9999-12-31T23:59:59-23:59"}, 400, "malformed"),
        (json.dumps(QUOTE).encode(), {"Event-Time": "0001-01-01T00:00:00+23:59"}, 400, "malformed"),
        (json.dumps(QUOTE).encode(), {"Event-Time": "2014-13-01T08:00:00Z"}, 400, "malformed"),
        (json.dumps(QUOTE).encode(), {"Content-Type": "text/plain"}, 415, "unsupported-media-type"),
        (json.dumps(QUOTE).encode(), {"Content-Type": None}, 415, "unsupported-media-type"),
        (b" " * (1024 * 1024 + 1), {}, 413, "too-large"),
        (b"", {}, 422, "invalid"),
    ],
)
async def test_malformed_input_is_a_problem(
    booking: Client, content: bytes, headers: dict[str, str | None], status: int | None, code: str | None
) -> None:
    asked: dict[str, str | None] = {
        "Content-Type": "application/json",
        "Idempotency-Key": "k",
        **booking.callers.header(("rider", "r1")),
        **headers,
    }
    sent = [(name.encode(), value.encode()) for name, value in asked.items() if value is not None]
    response = await booking.http.post("/quotes", content=content, headers=sent)
    if status is None or code is None:
        assert response.status_code < 500
    else:
        check_problem(response, status, code)


async def test_a_chunked_body_is_not_larger_than_the_limit(booking: Client) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * 64 * 1024

    headers = {"Content-Type": "application/json", "Idempotency-Key": "k", **booking.callers.header(("rider", "r1"))}
    check_problem(await booking.http.post("/quotes", content=chunks(), headers=headers), 413, "too-large")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not-found"),
        ("GET", "/quotes/", 404, "not-found"),
        ("DELETE", "/rides", 405, "method-not-allowed"),
        ("PUT", "/rides/x", 405, "method-not-allowed"),
        ("GET", "/rides/none", 404, "not-found"),
        ("GET", "/rides/%00", 422, "invalid"),
        ("GET", "/rides/%ff", 422, "invalid"),
        ("GET", "/rides/" + "a" * 65, 422, "invalid"),
        ("GET", "/rides?limit=0", 422, "invalid"),
        ("GET", "/rides?limit=99999999999999999999", 422, "invalid"),
        ("GET", "/rides?state=lost", 422, "invalid"),
        ("GET", "/rides?after=%00", 422, "invalid"),
        ("GET", "/drivers?status=asleep", 422, "invalid"),
        ("GET", "/problems/none", 404, "not-found"),
    ],
)
async def test_wrong_paths_and_parameters_are_problems(
    booking: Client, method: str, path: str, status: int, code: str
) -> None:
    response = await booking.http.request(method, path, headers=booking.callers.header(("operator", "tests")))
    problem = check_problem(response, status, code)
    if status == 405:
        assert response.headers["allow"]
    assert problem["instance"]


async def test_the_document_describes_every_answer_that_is_given(booking: Client) -> None:
    document = (await booking.http.get("/openapi.json")).json()
    assert document["openapi"].startswith("3.1")
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for status, response in operation["responses"].items():
                if int(status) >= 400:
                    assert list(response["content"]) == ["application/problem+json"], (path, method, status)
            if method == "post":
                assert {"400", "413", "415", "422", "503"} <= set(operation["responses"]), path
                names = {parameter["name"] for parameter in operation["parameters"]}
                assert {"Idempotency-Key", "Event-Time"} <= names
    for code in document["components"]["schemas"]["Problem"]["properties"]:
        assert code in {"type", "title", "status", "detail", "instance", "errors"}


# ------------------------------------------------------------------------------------------ whatever comes

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
IDS = st.sampled_from(["d1", "r1", "none", "", "a b", "x" * 70])
PLACES = st.fixed_dictionaries(
    {"lat": st.floats() | st.integers() | st.sampled_from([90, -90, 40.75]), "lng": st.floats() | st.just(-180)}
)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "rider_id": IDS,
    "driver_id": IDS,
    "ride_id": IDS,
    "quote_id": IDS,
    "pickup": PLACES,
    "dropoff": PLACES,
    "position": PLACES,
    "passengers": st.integers(-1, 9),
    "distance_m": st.integers() | st.floats(),
    "by": st.sampled_from(["rider", "driver", "system"]),
    "reason": st.text(max_size=250),
    "simulated": st.booleans() | st.none(),
    "event_time": st.datetimes().map(str) | st.text(max_size=30),
    "kind": st.sampled_from(["online", "location", "offline", "arrived", "start", "complete", "cancel", "fly"]),
}
OBJECTS = st.fixed_dictionaries({}, optional={name: value | JSON for name, value in FIELDS.items()})
BODIES = (
    OBJECTS
    | JSON
    | st.fixed_dictionaries({"updates": st.lists(OBJECTS, max_size=4) | JSON})
    | st.fixed_dictionaries({"rider_id": IDS, "pickup": PLACES, "dropoff": PLACES}, optional={"passengers": JSON})
)
PATHS = st.sampled_from(
    [
        "/quotes",
        "/rides",
        "/rides/{}/cancel",
        "/rides/{}/destination",
        "/rides/{}/arrived",
        "/rides/{}/start",
        "/rides/{}/complete",
        "/drivers/{}/online",
        "/drivers/{}/location",
        "/drivers/{}/offline",
        "/driver-updates",
        "/clock",
    ]
)
SEGMENTS = st.sampled_from(["d1", "none", "%00", "%E2%82%AC", "a%2Fb", "..", " "]) | st.text(
    st.characters(codec="ascii", min_codepoint=33, exclude_characters="/?#%\x7f"), min_size=1, max_size=10
)


CALLERS = st.sampled_from([("rider", "r1"), ("driver", "d1"), ("fleet", "f"), ("operator", "o")])


async def test_whatever_comes_is_never_a_500(tmp_path: Any, callers: Callers) -> None:
    app = create_app(
        Settings(
            bootstrap_servers="memory:0",
            database_url=f"sqlite:///{tmp_path / 'b.db'}",
            clock="event",
            auth_keys=callers.keys,
            rate_burst=10_000,
        ),
        bus=MemoryBus(),
    )
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    seen: set[int] = set()
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://booking") as http,
    ):
        loop = asyncio.get_running_loop()

        async def send(path: str, body: Any, key: str, event_time: str | None, by: By) -> httpx.Response:
            headers = [(b"Idempotency-Key", key.encode()), (b"Content-Type", b"application/json")]
            headers.append((b"Authorization", f"Bearer {callers.token(*by)}".encode()))
            if event_time is not None:
                headers.append(
                    (b"Event-Time", event_time.encode("utf-8", "replace").replace(b"\n", b"").replace(b"\r", b""))
                )
            return await http.post(path, content=json.dumps(body).encode(), headers=headers)

        @settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
        @given(
            PATHS,
            SEGMENTS,
            BODIES,
            st.text(max_size=10),
            st.none() | st.datetimes().map(lambda t: f"{t.isoformat()}Z"),
            CALLERS,
        )
        def attempt(path: str, segment: str, body: Any, key: str, event_time: str | None, by: By) -> None:
            sent = key.encode("utf-8", "replace").replace(b"\n", b"").replace(b"\r", b"").decode()
            future = asyncio.run_coroutine_threadsafe(send(path.format(segment), body, sent, event_time, by), loop)
            response = future.result(timeout=60)
            seen.add(response.status_code)
            assert response.status_code < 500, response.text
            if response.status_code >= 400:
                assert response.headers["content-type"] == "application/problem+json"
                assert response.json()["status"] == response.status_code

        await asyncio.to_thread(attempt)
        # After all that it still works.
        headers = {
            "Idempotency-Key": "at-last",
            "Event-Time": "2014-05-01T08:00:00Z",
            **callers.header(("rider", "r1")),
        }
        assert (await http.post("/quotes", json=QUOTE, headers=headers)).status_code == 201
    assert {400, 422} <= seen
