"""The router sends each request unchanged to the region that owns it, and has no state."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from booking.adapters.http.problems import PROBLEMS
from booking.router.batch import Batch, key_of_round
from booking.router.config import Settings
from booking.router.forward import Forwarder
from booking.router.main import create_app
from booking.router.region_client import Headers, Reply, UnreachableError
from booking.router.routes import Route, ToAll, ToAny, ToOne, ToOwners, route
from fastapi import FastAPI
from hailbus import ConfigurationError
from prometheus_client import CollectorRegistry

from tests.unit.booking.test_regions import BROOKLYN, MANHATTAN, MIDTOWN, OUTER, REGIONS

HERE = {"lat": MIDTOWN.lat, "lng": MIDTOWN.lng}
THERE = {"lat": BROOKLYN.lat, "lng": BROOKLYN.lng}
JSON = (b"content-type", b"application/json")


def routed(method: str, path: str, body: object = None) -> Route:
    return route(method, path, b"" if body is None else json.dumps(body).encode(), REGIONS)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/quotes", {"rider_id": "r", "pickup": HERE, "dropoff": THERE}),
        ("GET", "/quotes/manhattan.1", None),
        ("POST", "/rides", {"quote_id": "manhattan.1"}),
        ("GET", "/rides/manhattan.1", None),
        ("POST", "/rides/manhattan.1/cancel", {"by": "rider", "reason": "late"}),
        ("POST", "/drivers/d/online", {"position": HERE}),
        ("POST", "/drivers/d/location", {"position": HERE}),
    ],
)
def test_a_request_goes_to_the_region_of_its_place_or_id(method: str, path: str, body: object) -> None:
    assert routed(method, path, body) == ToOne(MANHATTAN)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/quotes", {"rider_id": "r", "pickup": THERE, "dropoff": HERE}),
        ("GET", "/rides/5f0c9f8e-1d2b-4c3d-8e9f-000000000000", None),
        ("GET", "/drivers/d", None),  # a 421 names the owner
        ("POST", "/drivers/d/offline", {}),
        # Nonsense is for booking to refuse.
        ("POST", "/quotes", {"pickup": {"lat": 91, "lng": 0}}),
        ("POST", "/quotes", {"pickup": {"lat": "40.75", "lng": -73.98}}),
        ("POST", "/quotes", {"pickup": {"lat": float("nan"), "lng": float("inf")}}),
        ("POST", "/quotes", [1]),
        ("POST", "/rides", {"quote_id": 7}),
        ("POST", "/driver-updates", {"updates": []}),
        ("POST", "/driver-updates", {"updates": [{"kind": "offline"}]}),
        ("POST", "/driver-updates", {"updates": "all"}),
    ],
)
def test_what_says_no_region_goes_to_the_region_of_the_rest(method: str, path: str, body: object) -> None:
    assert routed(method, path, body) == ToOne(OUTER)


def test_a_body_that_is_no_json_goes_to_the_region_of_the_rest() -> None:
    for body in (b"", b"{", b"\xff", b"[" * 100_000):
        assert route("POST", "/quotes", body, REGIONS) == ToOne(OUTER)
        assert route("POST", "/driver-updates", body, REGIONS) == ToOne(OUTER)


def test_lists_are_anybodys_and_the_clock_is_everybodys() -> None:
    for path in ("/rides", "/drivers", "/clock", "/docs", "/openapi.json", "/problems/misdirected", "/nowhere"):
        assert routed("GET", path) == ToAny()
    assert routed("POST", "/clock") == ToAll()
    updates = [{"kind": "offline", "driver_id": "d"}]
    assert routed("POST", "/driver-updates", {"updates": updates}) == ToOwners(updates)


class Booking:
    """A region as the router sees it: answers by `do`, keeps answers under their keys, and may be away."""

    def __init__(self, do: Callable[[str, str, Any], tuple[int, Any]]) -> None:
        self.do = do
        self.is_away = False
        self.seen: list[tuple[str, str, Mapping[str, str], bytes]] = []
        self._answers: dict[str, tuple[bytes, Reply]] = {}

    async def send(self, method: str, target: str, headers: Headers, body: bytes) -> Reply:
        if self.is_away:
            raise UnreachableError("manhattan", "it is away")
        self.seen.append((method, target, dict(headers), body))
        key = dict(headers).get("idempotency-key")
        if key in self._answers:
            first, reply = self._answers[key]
            assert first == body, "the key was used for another request"
            return reply
        status, content = self.do(method, target, json.loads(body) if body else None)
        reply = Reply(status=status, headers=[JSON, (b"X-Kept", b"yes")], body=json.dumps(content).encode())
        if key is not None:
            self._answers[key] = body, reply
        return reply


def elsewhere(owner: str) -> tuple[int, Any]:
    return 421, {"type": "/problems/misdirected", "owner": owner, "address": "http://evil.example"}


def refused(status: int) -> Callable[[str, str, Any], tuple[int, Any]]:
    return lambda _method, _target, _body: (status, {"status": status})


class Drivers:
    """Regions that know where drivers are online."""

    def __init__(self, online: dict[str, str]) -> None:
        self.online = online
        self.done: list[tuple[str, Any]] = []

    def of(self, region: str) -> Callable[[str, str, Any], tuple[int, Any]]:
        def do(_method: str, _target: str, body: Any) -> tuple[int, Any]:
            return 200, {"results": [self._one(region, update) for update in body["updates"]]}

        return do

    def _one(self, region: str, update: Any) -> Any:
        owner = self.online.get(update["driver_id"], region)
        if update["kind"] == "online" and owner != region:
            return {"status": 409, "body": {"type": "/problems/driver-elsewhere"}}
        if owner != region:
            status, body = elsewhere(owner)
            return {"status": status, "body": body}
        if update["kind"] == "online":
            self.online[update["driver_id"]] = region
        elif update["kind"] == "offline":
            self.online.pop(update["driver_id"], None)
        self.done.append((region, update))
        return {"status": 200, "body": {"driver_id": update["driver_id"], "kind": update["kind"]}}


def front(**regions: Booking) -> httpx.AsyncClient:
    registry = CollectorRegistry()
    app = FastAPI(openapi_url=None)
    PROBLEMS.install(app)
    app.mount("", Forwarder(REGIONS, regions, registry))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://router")


def pair(
    manhattan: Callable[[str, str, Any], tuple[int, Any]], outer: Callable[[str, str, Any], tuple[int, Any]]
) -> tuple[Booking, Booking]:
    return Booking(manhattan), Booking(outer)


async def test_a_request_is_passed_on_as_it_came() -> None:
    here, there = pair(refused(201), refused(201))
    headers = {
        "Authorization": "Bearer t",
        "Idempotency-Key": "k",
        "Event-Time": "2014-05-02T17:00:00Z",
        "traceparent": "00-1-2-01",
        "Connection": "keep-alive, x",
        "Transfer-Encoding": "identity",
    }
    content = b'{ "pickup": {"lat": 40.750, "lng": -73.98},  "rider_id": "r" }'
    async with front(manhattan=here, outer=there) as client:
        answer = await client.post(
            "/quotes?a=%2F&b=1", content=content, headers={**headers, "Content-Type": "application/json"}
        )
    assert (answer.status_code, answer.json(), answer.headers["x-kept"]) == (201, {"status": 201}, "yes")
    ((method, target, passed, body),) = here.seen
    assert (method, target, body) == ("POST", "/quotes?a=%2F&b=1", content)
    assert {name: passed[name] for name in ("authorization", "idempotency-key", "event-time", "traceparent")} == {
        "authorization": "Bearer t",
        "idempotency-key": "k",
        "event-time": "2014-05-02T17:00:00Z",
        "traceparent": "00-1-2-01",
    }
    assert passed["via"] == "1.1 booking-router"
    assert not {"connection", "transfer-encoding", "host", "content-length"} & passed.keys()
    assert there.seen == []


async def test_an_owner_that_a_region_names_gets_the_same_request_once() -> None:
    here, there = pair(refused(200), lambda *_: elsewhere("manhattan"))
    async with front(manhattan=here, outer=there) as client:
        answer = await client.post("/drivers/d/offline", json={}, headers={"Idempotency-Key": "k"})
    assert answer.status_code == 200
    assert here.seen == there.seen


@pytest.mark.parametrize("named", ["outer", "queens"])
async def test_a_region_that_names_itself_or_nobody_is_not_asked_again(named: str) -> None:
    here, there = pair(refused(200), lambda *_: elsewhere(named))
    async with front(manhattan=here, outer=there) as client:
        assert (await client.post("/drivers/d/offline", json={})).status_code == 421
    assert (len(here.seen), len(there.seen)) == (0, 1)


async def test_two_regions_that_name_each_other_are_asked_once_each() -> None:
    here, there = pair(lambda *_: elsewhere("outer"), lambda *_: elsewhere("manhattan"))
    async with front(manhattan=here, outer=there) as client:
        assert (await client.get("/drivers/d")).status_code == 421
    assert (len(here.seen), len(there.seen)) == (1, 1)


async def test_a_region_that_is_away_is_a_503_for_its_own_requests_only() -> None:
    here, there = pair(refused(200), refused(200))
    here.is_away = True
    async with front(manhattan=here, outer=there) as client:
        away = await client.get("/rides/manhattan.1")
        assert (away.status_code, away.json()["type"], away.headers["retry-after"]) == (
            503,
            "/problems/unavailable",
            "1",
        )
        assert (await client.get("/rides/outer.1")).status_code == 200
        assert (await client.get("/rides")).status_code == 200
        assert (await client.post("/clock", headers={"Idempotency-Key": "k"})).status_code == 503


@pytest.mark.parametrize("trouble", ["away", "unavailable"])
async def test_lists_are_read_at_another_region_when_one_cannot_answer(trouble: str) -> None:
    here, there = pair(refused(200), refused(503))
    there.is_away = trouble == "away"
    async with front(manhattan=here, outer=there) as client:
        assert (await client.get("/rides?limit=5")).status_code == 200
        here.is_away = True
        assert (await client.get("/rides?limit=5")).status_code == 503


async def test_the_clock_is_moved_everywhere_and_one_refusal_is_the_answer() -> None:
    here, there = pair(refused(200), refused(422))
    async with front(manhattan=here, outer=there) as client:
        assert (await client.post("/clock", headers={"Idempotency-Key": "k"})).status_code == 422
    assert len(here.seen) == len(there.seen) == 1


def online(driver: str, place: Mapping[str, float]) -> dict[str, Any]:
    return {"kind": "online", "driver_id": driver, "position": dict(place)}


def of_driver(driver: str, kind: str = "offline") -> dict[str, Any]:
    return {"kind": kind, "driver_id": driver}


async def send(client: httpx.AsyncClient, updates: Sequence[Any], key: str = "k") -> list[tuple[int, Any]]:
    answer = await client.post("/driver-updates", json={"updates": updates}, headers={"Idempotency-Key": key})
    assert answer.status_code == 200, answer.text
    return [(result["status"], result["body"].get("kind")) for result in answer.json()["results"]]


async def test_each_update_is_done_by_its_owner_and_results_keep_their_places() -> None:
    drivers = Drivers({"m": "manhattan", "o": "outer"})
    here, there = pair(drivers.of("manhattan"), drivers.of("outer"))
    updates = [
        of_driver("m", "arrived") | {"ride_id": "manhattan.1"},
        of_driver("o"),
        online("n", HERE),
        of_driver("m"),
    ]
    async with front(manhattan=here, outer=there) as client:
        assert await send(client, updates) == [(200, "arrived"), (200, "offline"), (200, "online"), (200, "offline")]
        assert drivers.online == {"n": "manhattan"}
        before = list(drivers.done)
        assert await send(client, updates) == [(200, "arrived"), (200, "offline"), (200, "online"), (200, "offline")]
    assert drivers.done == before  # every part was sent with a key that its region had seen
    assert [update for _, update in before if update["driver_id"] == "m"] == [updates[0], updates[3]]


async def test_a_driver_leaves_one_region_and_begins_in_the_next_within_one_request() -> None:
    drivers = Drivers({"d": "manhattan"})
    here, there = pair(drivers.of("manhattan"), drivers.of("outer"))
    async with front(manhattan=here, outer=there) as client:
        updates = [of_driver("d"), online("d", THERE), of_driver("d"), online("d", HERE)]
        assert [status for status, _ in await send(client, updates)] == [200] * 4
    assert drivers.online == {"d": "manhattan"}


async def test_updates_of_a_region_that_is_away_are_repeated_and_the_others_are_not_done_twice() -> None:
    drivers = Drivers({"m": "manhattan"})
    here, there = pair(drivers.of("manhattan"), drivers.of("outer"))
    updates = [online("a", HERE), online("b", THERE)]
    async with front(manhattan=here, outer=there) as client:
        here.is_away = True
        answer = await client.post("/driver-updates", json={"updates": updates}, headers={"Idempotency-Key": "k"})
        assert answer.status_code == 503
        here.is_away = False
        assert [status for status, _ in await send(client, updates)] == [200, 200]
    assert sorted(region for region, _ in drivers.done) == ["manhattan", "outer"]


async def test_a_part_that_is_refused_as_a_whole_is_the_answer() -> None:
    here, there = pair(refused(403), refused(403))
    async with front(manhattan=here, outer=there) as client:
        answer = await client.post("/driver-updates", json={"updates": [online("a", HERE), online("b", THERE)]})
    assert (answer.status_code, answer.json()) == (403, {"status": 403})


async def test_updates_of_one_region_are_passed_on_as_they_came() -> None:
    drivers = Drivers({})
    here, there = pair(drivers.of("manhattan"), drivers.of("outer"))
    content = json.dumps({"updates": [online("a", HERE)]}, indent=3).encode()
    async with front(manhattan=here, outer=there) as client:
        headers = {"Idempotency-Key": "k", "Content-Type": "application/json"}
        assert (await client.post("/driver-updates", content=content, headers=headers)).status_code == 200
    assert [body for _, _, _, body in here.seen] == [content]


def test_keys_of_later_rounds_are_keys_and_differ() -> None:
    keys = {key_of_round(key, number) for key in ("k", "K" * 128) for number in range(4)}
    assert len(keys) == 8
    assert all(len(key) <= 128 for key in keys)
    assert key_of_round("k", 0) == "k"


def test_an_update_is_followed_to_another_owner_once() -> None:
    batch = Batch([of_driver("d")], REGIONS)
    for owner in ("manhattan", "outer"):
        (part,) = batch.parts()
        status, body = elsewhere(owner)
        batch.take([(part, [{"status": status, "body": body}])])
    assert batch.is_done
    assert [result["status"] for result in batch.results if result is not None] == [421]


async def test_the_body_is_bounded_before_it_is_read() -> None:
    here, there = pair(refused(200), refused(200))
    async with front(manhattan=here, outer=there) as client:
        answer = await client.post("/quotes", content=b" " * 1_100_000, headers={"Content-Type": "application/json"})
        assert (answer.status_code, here.seen, there.seen) == (413, [], [])
        await client.request("DELETE", "/quotes/manhattan.1", content=b" " * 1_100_000)
    assert [body for _, _, _, body in here.seen] == [b""]


async def test_a_request_without_a_path_reaches_no_other_server() -> None:
    here, there = pair(refused(200), refused(200))
    app = FastAPI(openapi_url=None)
    PROBLEMS.install(app)
    app.mount("", Forwarder(REGIONS, {"manhattan": here, "outer": there}, CollectorRegistry()))
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "raw_path": b"@evil.example/", "query_string": b""}
    await app({**scope, "headers": [], "root_path": "", "scheme": "http"}, receive, send)
    assert sent[0]["status"] == 400
    assert here.seen == there.seen == []


def test_a_wrong_file_of_regions_stops_the_start(tmp_path: Path) -> None:
    file = tmp_path / "regions.toml"
    file.write_text('[south]\naddress = "http://127.0.0.1:1"\n')
    with pytest.raises(ConfigurationError, match=r"ROUTER_REGIONS .*regions\.toml: one region must take the rest"):
        create_app(Settings(regions=file))
