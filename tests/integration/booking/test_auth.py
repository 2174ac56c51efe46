"""Who may call what over HTTP: tokens, roles, scoped idempotency keys and rate limits."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from booking.adapters.http.guard import CALLERS
from booking.config import Settings
from booking.main import create_app
from fastapi.routing import APIRoute
from hailbus import ConfigurationError
from hailbus.database import create_engine
from hailbus.testing import MemoryBus
from sqlalchemy import text

from tests.integration.booking.callers import By, Callers
from tests.integration.booking.conftest import DROPOFF, PICKUP, Client, StartBooking
from tests.integration.booking.test_mistakes import check_problem

pytestmark = pytest.mark.timeout(240)
ROLES = ("rider", "driver", "fleet", "operator")
QUOTE = {"rider_id": "r1", "pickup": PICKUP, "dropoff": DROPOFF}
R1, R2, D1, D2, OPERATOR = ("rider", "r1"), ("rider", "r2"), ("driver", "d1"), ("driver", "d2"), ("operator", "o")
README = Path(__file__).resolve().parents[3] / "services" / "booking" / "README.md"
NO_TOKEN = {"/livez", "/readyz", "/metrics", "/docs", "/openapi.json", "/problems/{code}"}
NO_TOKEN |= {f"/docs/{name}" for name in ("start.js", "swagger-ui.css", "swagger-ui-bundle.js")}


@pytest.fixture
async def booking(start_booking: StartBooking) -> AsyncIterator[Client]:
    async with start_booking() as one:
        yield one


def table() -> dict[str, set[str]]:
    """The README's table of three columns: each route with its roles."""
    rows = re.findall(r"^\| `((?:GET|POST) [^`]+)` \| ([a-z, ]+) \|.*\|$", README.read_text(), re.MULTILINE)
    return {route: set(roles.split(", ")) for route, roles in rows}


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_every_route_declares_its_callers_as_the_readme_says(booking: Client) -> None:
    app: Any = booking.http._transport.app  # type: ignore[attr-defined]  # the application under test
    declared: dict[str, set[str]] = {}
    included = 0
    for route in app.routes:
        if not hasattr(route, "path"):
            included += 1
            continue
        if route.path in NO_TOKEN:
            continue
        assert isinstance(route, APIRoute), route.path
        declared[f"{' '.join(route.methods or ())} {route.path}"] = set((route.openapi_extra or {})[CALLERS])
    assert declared == table()
    assert included == 1, "besides the SDK's health routes, no router may be included behind the guard's back"


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_every_route_turns_other_roles_away_and_lets_its_own_in(booking: Client) -> None:
    for route, roles in table().items():
        method, path = route.split(" ")
        for role in ROLES:
            response = await booking.http.request(
                method, re.sub(r"{\w+}", "x", path), headers=booking.callers.header((role, "x"))
            )
            if role in roles:
                assert response.status_code not in {401, 403, 429}, (route, role, response.text)
            else:
                problem = check_problem(response, 403, "forbidden")
                assert f"you are {role} 'x'" in problem["detail"]
        response = await booking.http.request(method, re.sub(r"{\w+}", "x", path))
        check_problem(response, 401, "unauthenticated")
        assert response.headers["www-authenticate"] == 'Bearer realm="booking"'


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_a_bad_token_is_told_why_before_the_body_is_read(booking: Client, tmp_path: Path) -> None:
    stranger = Callers(tmp_path / "stranger")
    expired = booking.callers.token("rider", "r1", lasts=timedelta(days=-1))
    for value, reason in (
        (f"Bearer {stranger.token('rider', 'r1')}", "does not know"),
        (f"Bearer {expired}", "has expired"),
        ("Bearer x.y.z", "malformed"),
    ):
        response = await booking.http.post("/quotes", content=b"{", headers=[("Authorization", value), *JSON_KEY])
        assert reason in check_problem(response, 401, "unauthenticated")["detail"]
        challenge = response.headers["www-authenticate"]
        assert challenge.startswith('Bearer realm="booking", error="invalid_token", error_description="')
        assert reason in challenge
    good = booking.callers.token("rider", "r1")
    for headers in (
        [("Authorization", f"Basic {good}")],
        [("Authorization", "Bearer")],
        [("Authorization", good)],
        [("Authorization", f"Bearer {good}"), ("Authorization", f"Bearer {good}")],
    ):
        response = await booking.http.post("/quotes", json=QUOTE, headers=[*headers, ("Idempotency-Key", "k")])
        check_problem(response, 401, "unauthenticated")
    response = await booking.http.post(
        "/quotes", json=QUOTE, headers={"Authorization": f"bearer {good}", "Idempotency-Key": "k"}
    )
    assert response.status_code == 201  # the scheme's case does not matter


JSON_KEY = (("Content-Type", "application/json"), ("Idempotency-Key", "k"))


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_issuer_and_audience_are_those_of_the_settings(start_booking: StartBooking) -> None:
    async with start_booking(auth_issuer="city", auth_audience="booking") as booking:
        good = booking.callers.token("operator", "o", issuer="city", audience="booking")
        other = booking.callers.token("operator", "o", issuer="city", audience="bike")
        answers = [
            (await booking.http.get("/clock", headers={"Authorization": f"Bearer {token}"})).status_code
            for token in (good, other, booking.callers.token("operator", "o"))
        ]
        assert answers == [200, 401, 401]


async def test_nobody_reads_or_changes_what_is_anothers(booking: Client) -> None:
    await booking.post("/drivers/d1/online", {"position": PICKUP})
    await booking.post("/drivers/d2/online", {"position": DROPOFF})
    quote = await booking.quote(rider_id="r1")
    ride = await booking.ride(rider_id="r1")
    assert ride["driver_id"] == "d1"
    steps, cancel = f"/rides/{ride['ride_id']}", {"by": "rider", "reason": "late"}

    def unknown(words: str) -> str:
        return words.replace(ride["ride_id"], "never").replace(quote["quote_id"], "never")

    async def refused(status: int, path: str, body: object, by: By) -> None:
        code = {403: "forbidden", 404: "not-found"}[status]
        problem = check_problem(await booking.raw(path, body, by=by), status, code)
        if status == 404:
            # In the words for an id that was never given out.
            body_of_none = json.loads(unknown(json.dumps(body)))
            never = await booking.raw(unknown(path), body_of_none, by=by)
            assert json.loads(unknown(json.dumps(problem))) == never.json()

    await refused(404, "/rides", {"quote_id": quote["quote_id"]}, R2)
    await refused(404, f"{steps}/cancel", cancel, R2)
    await refused(404, f"{steps}/destination", {"dropoff": PICKUP}, R2)
    await refused(404, f"{steps}/arrived", {"driver_id": "d2"}, D2)
    await refused(404, f"{steps}/start", {"driver_id": "d2"}, D2)
    await refused(404, f"{steps}/complete", {"driver_id": "d2", "distance_m": 1}, D2)
    await refused(404, f"{steps}/cancel", {"by": "driver", "driver_id": "d2", "reason": "x"}, D2)
    await refused(403, f"{steps}/arrived", {"driver_id": "d1"}, D2)
    await refused(403, f"{steps}/cancel", {"by": "driver", "driver_id": "d1", "reason": "x"}, ("rider", "d1"))
    await refused(404, f"{steps}/cancel", cancel, ("driver", "r1"))
    await refused(403, "/quotes", QUOTE, R2)
    await refused(403, "/drivers/d1/offline", {}, D2)
    await refused(403, "/drivers/d1/location", {"position": DROPOFF}, D2)
    await refused(403, "/drivers/never/online", {"position": DROPOFF}, D2)
    for path in (steps, f"/quotes/{quote['quote_id']}"):
        await booking.get(path, by=R2, expect=404)
        assert (await booking.get(path, by=R1))["rider_id"] == "r1"
        assert (await booking.get(path, by=OPERATOR))["rider_id"] == "r1"
    await booking.get(steps, by=D2, expect=404)
    await booking.get("/drivers/d1", by=D2, expect=403)
    await booking.get("/drivers/never", by=D2, expect=403)
    assert (await booking.get("/drivers/d1", by=D1))["status"] == "busy"
    assert await booking.get(steps, by=D1) == ride, "somebody changed it"


async def test_a_drivers_batch_is_for_that_driver_and_a_fleets_for_all(booking: Client) -> None:
    online = [{"kind": "online", "driver_id": name, "position": PICKUP} for name in ("d1", "d2")]
    own = await booking.post("/driver-updates", {"updates": online}, by=D1)
    assert [result["status"] for result in own["results"]] == [200, 403]
    fleet = await booking.post("/driver-updates", {"updates": online}, by=("fleet", "f"))
    assert [result["status"] for result in fleet["results"]] == [200, 200]


async def test_a_key_belongs_to_its_caller_and_route(booking: Client) -> None:
    first = await booking.raw("/quotes", QUOTE, key="k")
    second = await booking.raw("/quotes", {**QUOTE, "rider_id": "r2"}, key="k")
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json()["quote_id"] != second.json()["quote_id"]
    for one, name in ((first, "r1"), (second, "r2")):
        again = await booking.raw("/quotes", {**QUOTE, "rider_id": name}, key="k")
        assert (again.content, again.headers["idempotent-replay"]) == (one.content, "true")
    ride = await booking.raw("/rides", {"quote_id": first.json()["quote_id"]}, key="k")
    assert ride.status_code == 201  # another route
    steps = f"/rides/{ride.json()['ride_id']}"
    body = {"by": "rider", "reason": "late"}
    assert (await booking.raw(f"{steps}/cancel", body, key="k")).status_code == 200
    # The same route with another id is the same route: a key is not silently taken for two rides.
    check_problem(await booking.raw("/rides/other/cancel", body, key="k", by=R1), 422, "idempotency-key-reused")
    # A subject of two roles is two callers.
    assert (await booking.raw("/drivers/r1/online", {"position": PICKUP}, key="k")).status_code == 200


async def test_what_one_caller_was_answered_is_replayed_to_no_other(booking: Client) -> None:
    ride = await booking.ride(rider_id="r1")
    cancel = f"/rides/{ride['ride_id']}/cancel"
    answered = await booking.raw(cancel, {"by": "rider", "reason": "late"}, key="k")
    assert answered.status_code == 200
    stranger = await booking.raw(cancel, {"by": "rider", "reason": "late"}, key="k", by=R2)
    check_problem(stranger, 404, "not-found")


async def test_an_expired_key_is_safe_and_harms_no_neighbour(start_booking: StartBooking, database_url: str) -> None:
    async with start_booking() as booking:
        first = await booking.post("/quotes", QUOTE, key="k")
        ride = await booking.post("/rides", {"quote_id": first["quote_id"]}, key="k")
    engine = create_engine(database_url)
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE hailbus_answers SET recorded_at = 0"))  # long ago
    await engine.dispose()
    async with start_booking() as booking:
        await booking.post("/quotes", QUOTE, key="the first answer stored prunes the old ones".replace(" ", "-"))
        answers = await asyncio.gather(
            booking.raw("/quotes", {**QUOTE, "rider_id": "r2"}, key="before"),
            booking.raw("/quotes", QUOTE, key="k"),
            *(booking.raw("/quotes", {**QUOTE, "rider_id": f"after-{n}"}, key="k") for n in range(4)),
        )
        assert [answer.status_code for answer in answers] == [201] * 6
        assert answers[1].json()["quote_id"] != first["quote_id"]
        assert len({answer.json()["quote_id"] for answer in answers}) == 6
        # The old ride is open still, so the key's new request is refused like any other.
        check_problem(
            await booking.raw("/rides", {"quote_id": answers[1].json()["quote_id"]}, key="k"), 409, "ride-open"
        )
        assert (await booking.get(f"/rides/{ride['ride_id']}"))["state"] == "requested"


async def test_who_comes_too_often_is_told_to_wait(start_booking: StartBooking) -> None:
    async with start_booking(rate_per_s=0.01, rate_burst=3) as booking:
        answers = [await booking.raw("/quotes", QUOTE) for _ in range(5)]
        assert [answer.status_code for answer in answers] == [201, 201, 201, 429, 429]
        problem = check_problem(answers[-1], 429, "rate-limited")
        assert "rider 'r1' sent too many requests" in problem["detail"]
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 100
        assert (await booking.raw("/quotes", {**QUOTE, "rider_id": "r2"})).status_code == 201
        for _ in range(10):
            await booking.get("/rides")  # operators are not limited


async def test_with_the_event_clock_the_rate_counts_event_time(start_booking: StartBooking) -> None:
    async with start_booking(clock="event", rate_per_s=1, rate_burst=2) as booking:
        statuses = [
            (await booking.raw("/quotes", QUOTE, at=f"2014-05-01T08:00:{second:02}Z")).status_code
            for second in (0, 0, 0, 1, 1, 5, 5, 5)
        ]
        assert statuses == [201, 201, 429, 201, 429, 201, 201, 429]
        # Others move the clock, too.
        await booking.post("/clock", {}, at="2014-05-01T08:01:00Z")
        assert (await booking.raw("/quotes", QUOTE)).status_code == 201


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_the_document_says_how_to_authenticate(booking: Client) -> None:
    document = (await booking.http.get("/openapi.json")).json()
    assert document["components"]["securitySchemes"] == {
        "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}
    }
    for path, methods in document["paths"].items():
        if path in NO_TOKEN:
            continue
        for operation in methods.values():
            assert operation["security"] == [{"bearer": []}]
            assert {"401", "403", "429"} <= set(operation["responses"])
            assert operation["x-callers"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_without_authentication_everybody_is_one_caller(
    start_booking: StartBooking, capsys: pytest.CaptureFixture[str]
) -> None:
    async with start_booking(auth="off", auth_keys=None, rate_burst=1) as booking:
        assert "authentication_is_off" in capsys.readouterr().out
        ride = await booking.ride()
        cancel = {"json": {"by": "rider", "reason": "late"}, "headers": {"Idempotency-Key": "k"}}
        assert (await booking.http.post(f"/rides/{ride['ride_id']}/cancel", **cancel)).status_code == 200  # type: ignore[arg-type]  # a dict of JSON
        document = (await booking.http.get("/openapi.json")).json()
        assert "securitySchemes" not in document["components"]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "BOOKING_AUTH_KEYS is not set: name a JWKS file"),
        ({"auth": "off", "listen": "0.0.0.0:8001"}, "BOOKING_AUTH=off is for a loopback address"),
        ({"auth": "off", "listen": "[::]:8001"}, "BOOKING_AUTH=off is for a loopback address"),
        ({"auth": "off", "listen": "example.org:8001"}, "BOOKING_AUTH=off is for a loopback address"),
    ],
)
def test_booking_does_not_start_without_keys(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        create_app(Settings(bootstrap_servers="memory:0", **settings), bus=MemoryBus())


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:0", "localhost:0"])
def test_without_authentication_booking_listens_at_loopback_addresses(listen: str) -> None:
    create_app(Settings(bootstrap_servers="memory:0", auth="off", listen=listen), bus=MemoryBus())
