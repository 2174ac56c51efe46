"""A direct route answers every request as FastAPI's own route does, and valid ones without FastAPI's help."""

import asyncio
import json
from collections.abc import Callable
from typing import Annotated, Any

import fastapi.routing
import pytest
from booking.adapters.http import schemas
from booking.adapters.http.direct import DirectRoute
from booking.adapters.http.problems import PROBLEMS
from booking.adapters.http.routes import IdPath
from fastapi import FastAPI, Header, Request
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from hailbus.fastapi import EventTime, IdempotencyKey
from hypothesis import event, given, note
from hypothesis import strategies as st
from starlette.types import Message, Scope

Pair = tuple[bytes, bytes]
PATHS = (
    "/quotes",
    "/rides/{ride_id}/complete",
    "/drivers/{driver_id}/online",
    "/driver-updates",
    "/limit",
    "/plain/{ride_id}",
)


def app_of(route: type[APIRoute], *, gated: bool = True) -> FastAPI:
    app = FastAPI(redirect_slashes=False)

    def shown(request: Request, **arguments: object) -> Response:
        body = arguments.pop("body")
        return JSONResponse({"path": request.scope["path"], "body": repr(body), **arguments})

    async def quote(
        request: Request, body: schemas.NewQuote, key: IdempotencyKey, event_time: EventTime = None
    ) -> Response:
        return shown(request, body=body, key=key, event_time=event_time)

    async def complete(
        request: Request, ride_id: IdPath, body: schemas.Completion, key: IdempotencyKey, event_time: EventTime = None
    ) -> Response:
        return shown(request, ride_id=ride_id, body=body, key=key, event_time=event_time)

    async def online(
        request: Request, driver_id: IdPath, body: schemas.Online, key: IdempotencyKey, event_time: EventTime = None
    ) -> Response:
        return shown(request, driver_id=driver_id, body=body, key=key, event_time=event_time)

    async def updates(request: Request, body: schemas.DriverUpdates, key: IdempotencyKey) -> Response:
        return shown(request, body=body, key=key)

    def plain(request: Request, body: schemas.Nothing) -> Response:
        return shown(request, body=body)

    async def limit(request: Request, body: schemas.Nothing, limit: Annotated[int, Header(ge=1)] = 5) -> Response:
        return shown(request, body=body, limit=limit)

    endpoints: tuple[Callable[..., Any], ...] = (
        quote,
        complete,
        online,
        updates,
        limit,
        plain,
    )  # Any: as FastAPI's own
    for path, endpoint in zip(PATHS, endpoints, strict=True):
        app.router.add_api_route(path, endpoint, methods=["POST"], route_class_override=route)
    if gated:
        PROBLEMS.install(app)
    return app


APPS = (app_of(DirectRoute), app_of(APIRoute))


def post(app: FastAPI, path: str, headers: list[Pair], body: bytes) -> tuple[int, Any]:  # Any: JSON
    """Send a request as a server would, which neither adds nor orders anything."""
    sent: list[Message] = []
    scope: Scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [*headers, (b"content-length", str(len(body)).encode())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    start, *rest = sent
    content = b"".join(message.get("body", b"") for message in rest)
    return start["status"], json.loads(content)


PLACES = st.fixed_dictionaries({"lat": st.floats(-90, 90), "lng": st.floats(-180, 180)})
ODD: st.SearchStrategy[object] = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just([]) | st.just({})
)
IDS = st.from_regex(r"[A-Za-z0-9._:-]{1,8}", fullmatch=True)
FIELDS: dict[str, st.SearchStrategy[object]] = {
    "rider_id": IDS,
    "driver_id": IDS,
    "ride_id": IDS,
    "pickup": PLACES,
    "dropoff": PLACES,
    "position": PLACES,
    "passengers": st.integers(1, 8),
    "simulated": st.booleans() | st.none(),
    "distance_m": st.integers(0, 1_000_000) | st.sampled_from(["12", 12.0]),
    "event_time": st.datetimes().map(lambda moment: moment.isoformat() + "Z") | st.integers(0, 2**31),
    "kind": st.sampled_from(["online", "location", "offline", "arrived", "start", "complete", "cancel"]),
    "reason": st.text(min_size=1, max_size=5),
}
WANTED = {
    "/quotes": ("rider_id", "pickup", "dropoff"),
    "/rides/{ride_id}/complete": ("driver_id", "distance_m"),
    "/drivers/{driver_id}/online": ("position",),
    "/limit": (),
    "/plain/{ride_id}": (),
}


@st.composite
def documents(draw: st.DrawFn, path: str) -> Any:  # Any: JSON
    if path == "/driver-updates":
        update = st.fixed_dictionaries({}, optional=FIELDS)
        return {"updates": draw(st.lists(update, max_size=3))}
    document = {name: draw(FIELDS[name]) for name in WANTED[path]}
    if draw(st.integers(0, 3)) == 0:  # something is odd
        name = draw(st.sampled_from([*FIELDS, "unknown"]))
        document[name] = draw(ODD)
    if draw(st.integers(0, 7)) == 0 and document:
        del document[draw(st.sampled_from(sorted(document)))]
    return document


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, list[Pair], bytes]:
    template = draw(st.sampled_from(PATHS))
    document = draw(documents(template))
    text = json.dumps(document, ensure_ascii=draw(st.booleans()))
    body = text.encode("utf-8", "surrogatepass")
    match draw(st.integers(0, 11)):
        case 0:
            body = draw(st.binary(max_size=8))
        case 1:
            body = text.encode("utf-16", "surrogatepass")
        case 2:
            body = body[:-1] + b',"driver_id":"d","driver_id":"twice"}'
        case 3:
            body = b"\xef\xbb\xbf" + body
        case _:
            pass
    id_ = draw(IDS | st.sampled_from(["a b", "", "é", "x" * 65, "?"]))
    path = template.replace("{ride_id}", id_).replace("{driver_id}", id_)
    keys = draw(st.lists(st.sampled_from([b"k-1", b"k/2", b"", b"\xff", b"k" * 129]), max_size=2) | st.just([b"k-1"]))
    types = st.sampled_from([b"application/json; charset=utf-8", b"Application/JSON", b"text/plain"])
    headers = [(b"idempotency-key", key) for key in keys]
    headers += [(b"event-time", one) for one in draw(st.lists(st.sampled_from([b"2014-05-01T08:00:00Z", b""])))]
    headers += [(b"limit", one) for one in draw(st.lists(st.sampled_from([b"7", b"0", b"x"]), max_size=2))]
    headers += [(b"content-type", draw(types) if draw(st.integers(0, 5)) == 0 else b"application/json")]
    headers += [(b"content-type", one) for one in draw(st.just([]) | st.lists(types | st.just(b""), max_size=1))]
    return path, draw(st.permutations(headers)), body


@given(requests())
def test_both_routes_answer_alike(request: tuple[str, list[Pair], bytes]) -> None:
    note(repr(request))
    direct, by_fastapi = (post(app, *request) for app in APPS)
    assert direct == by_fastapi
    event(f"status {direct[0]}")


VALID: tuple[tuple[str, object], ...] = (
    ("/quotes", {"rider_id": "r", "pickup": {"lat": 1, "lng": 2}, "dropoff": {"lat": 1, "lng": 2}}),
    ("/rides/r/complete", {"driver_id": "d", "distance_m": 4_000}),
    ("/drivers/d/online", {"position": {"lat": 1, "lng": 2}}),
    ("/driver-updates", {"updates": [{"kind": "offline", "driver_id": "d"}]}),
    ("/limit", {}),
)


@pytest.mark.parametrize(("path", "document"), VALID, ids=[path for path, _ in VALID])
def test_a_valid_request_goes_to_its_endpoint_directly(
    path: str, document: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(**_: object) -> object:
        pytest.fail("FastAPI was asked")

    headers = [(b"idempotency-key", b"k"), (b"content-type", b"application/json")]
    expected = post(APPS[1], path, headers, json.dumps(document).encode())
    monkeypatch.setattr(fastapi.routing, "solve_dependencies", refuse)
    assert post(APPS[0], path, headers, json.dumps(document).encode()) == expected
    assert expected[0] == 200


@pytest.mark.parametrize("media_type", [b"application/json", b"application/ld+json", b"text/plain", b"", None])
def test_a_body_is_json_when_its_media_type_says_so(media_type: bytes | None) -> None:
    headers = [(b"idempotency-key", b"k")] + ([] if media_type is None else [(b"content-type", media_type)])
    path, document = VALID[1]
    direct, by_fastapi = (
        post(app_of(route, gated=False), path, headers, json.dumps(document).encode())
        for route in (DirectRoute, APIRoute)
    )
    assert direct == by_fastapi
    assert direct[0] == (200 if media_type in {b"application/json", b"application/ld+json"} else 422)


def test_a_plain_function_is_called_by_fastapi() -> None:
    headers = [(b"content-type", b"application/json")]
    direct, by_fastapi = (post(app, "/plain/r", headers, b"{}") for app in APPS)
    assert direct == by_fastapi
    assert direct[0] == 200
