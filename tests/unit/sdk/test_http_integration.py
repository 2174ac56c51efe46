"""`hailbus.fastapi`: problem responses, body checks, headers, stored answers."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Annotated, Any

import httpx
import pytest
from fastapi import FastAPI, Path, Request
from fastapi.responses import Response
from hailbus import ClockNotSetError, ConfigurationError, KeyReusedError
from hailbus.clock import ServiceClock, micros
from hailbus.fastapi import (
    COMMON_PROBLEMS,
    EventTime,
    IdempotencyKey,
    ProblemError,
    ProblemKind,
    Problems,
    moment_of,
    reply_to,
    serve,
)
from hailbus.idempotency import StoredAnswer, fingerprint
from pydantic import BaseModel


class Refusal(Exception):  # noqa: N818 as services name them
    pass


class Taken(Refusal):
    pass


class Order(BaseModel):
    amount: int


PROBLEMS = Problems(
    {"taken": ProblemKind(status=409, title="Taken", advice="Choose another.")}, errors={Refusal: "taken"}
)
CLOCK = ServiceClock("event")


def application() -> FastAPI:
    app = FastAPI(title="till", version="1", redirect_slashes=False)

    @app.post("/orders/{order_id}", responses=PROBLEMS.documented("taken", "invalid", "not-found"))
    async def place(
        request: Request,
        order_id: Annotated[str, Path(pattern="^[a-z]+$")],
        body: Order,
        key: IdempotencyKey,
        event_time: EventTime = None,
    ) -> Response:
        match order_id:
            case "taken":
                raise Taken("there is one already")
            case "broken":
                raise ZeroDivisionError
            case "reused":
                raise KeyReusedError(key=key)
            case "timeless":
                raise ClockNotSetError
            case "gone":
                raise ProblemError("unavailable", "come back")
        at = moment_of(event_time, CLOCK)
        stored = StoredAnswer(
            key=key,
            fingerprint=fingerprint(request.url.path, body.model_dump_json().encode()),
            status=201,
            body=f'{{"at":"{at}"}}'.encode(),
        )
        return reply_to(stored.answer(replayed=key == "again"))

    PROBLEMS.install(app, body_limit_bytes=1_000)
    return app


@pytest.fixture
async def till() -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(application(), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://till") as client:
        yield client


GOOD = {"Idempotency-Key": "k", "Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("path", "content", "headers", "status", "code", "detail"),
    [
        ("/orders/taken", b'{"amount":1}', {}, 409, "taken", "there is one already"),
        ("/orders/reused", b'{"amount":1}', {}, 422, "idempotency-key-reused", "another path or body"),
        ("/orders/timeless", b'{"amount":1}', {}, 400, "event-time-required", "send the header Event-Time"),
        ("/orders/gone", b'{"amount":1}', {}, 503, "unavailable", "come back"),
        ("/orders/broken", b'{"amount":1}', {}, 500, "internal", "has been logged"),
        ("/orders/a", b'{"amount":"x"}', {}, 422, "invalid", "body.amount"),
        ("/orders/UP", b'{"amount":1}', {}, 422, "invalid", "path.order_id"),
        ("/orders/a", b"{", {}, 400, "malformed", "body"),
        ("/orders/a", b'{"amount":1}', {"Idempotency-Key": "no spaces"}, 400, "malformed", "header.Idempotency-Key"),
        ("/orders/a", b'{"amount":1}', {"Event-Time": "noon"}, 400, "malformed", "no ISO 8601 time"),
        ("/orders/a", b'{"amount":1}', {"Event-Time": "2101-01-01T00:00:00Z"}, 400, "malformed", "1970 and 2100"),
        ("/orders/a", b'{"amount":1}', {"Content-Type": "text/plain"}, 415, "unsupported-media-type", "text/plain"),
        ("/orders/a", b" " * 1_001, {}, 413, "too-large", "larger than 1000 bytes"),
        ("/nowhere", b"{}", {}, 404, "not-found", "nothing at this path"),
    ],
)
async def test_whatever_goes_wrong_is_a_problem_with_a_code(
    till: httpx.AsyncClient,
    path: str,
    content: bytes,
    headers: dict[str, str],
    status: int,
    code: str,
    detail: str,
) -> None:
    response = await till.post(path, content=content, headers={**GOOD, **headers})
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")
    problem = response.json()
    assert (problem["type"], problem["status"], problem["instance"]) == (f"/problems/{code}", status, path)
    assert problem["title"] == PROBLEMS.kinds[code].title
    assert detail in problem["detail"]
    assert response.headers.get("retry-after") == ("1" if code == "unavailable" else None)
    explained = (await till.get(problem["type"])).json()
    assert explained == {"status": status, "title": problem["title"], "advice": PROBLEMS.kinds[code].advice}


async def test_a_chunked_body_is_counted_while_it_comes(till: httpx.AsyncClient) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * 100

    response = await till.post("/orders/a", content=chunks(), headers=GOOD)
    assert (response.status_code, response.json()["type"]) == (413, "/problems/too-large")


async def test_an_answer_that_was_given_before_says_so(till: httpx.AsyncClient) -> None:
    body = b'{"amount":1}'
    headers = {**GOOD, "Event-Time": "2014-05-01T10:00:00+02:00"}
    first = await till.post("/orders/a", content=body, headers=headers)
    assert (first.status_code, first.json()) == (201, {"at": "2014-05-01 08:00:00+00:00"})
    assert "idempotent-replay" not in first.headers
    again = await till.post("/orders/a", content=body, headers={**headers, "Idempotency-Key": "again"})
    assert again.headers["idempotent-replay"] == "true"


async def test_problems_are_in_the_openapi_document(till: httpx.AsyncClient) -> None:
    document: dict[str, Any] = (await till.get("/openapi.json")).json()
    responses = document["paths"]["/orders/{order_id}"]["post"]["responses"]
    shown = responses["409"]["content"]["application/problem+json"]
    assert shown["schema"] == {"$ref": "#/components/schemas/Problem"}
    assert shown["examples"]["taken"]["value"]["detail"] == "Choose another."
    assert {"Problem", "FieldProblem"} <= set(document["components"]["schemas"])
    assert "HTTPValidationError" not in document["components"]["schemas"]


def test_an_error_with_a_code_that_no_kind_has_is_found_at_once() -> None:
    with pytest.raises(AssertionError, match="no kind: missing"):
        Problems(errors={Refusal: "missing"})
    assert PROBLEMS.code_of(Taken()) == "taken"
    assert set(COMMON_PROBLEMS) < set(PROBLEMS.kinds)


def test_a_wall_clock_refuses_event_times_and_an_event_clock_moves_forward_only() -> None:
    wall, event = ServiceClock("wall"), ServiceClock("event")
    with pytest.raises(ProblemError, match="wall clock") as refused:
        moment_of("2014-05-01T08:00:00Z", wall)
    assert refused.value.code == "event-time-refused"
    assert moment_of(None, wall) is None
    assert wall.is_set
    assert not event.is_set
    noon, morning = datetime(2014, 5, 1, 12, tzinfo=UTC), datetime(2014, 5, 1, 8, tzinfo=UTC)
    assert [event.observe(morning), event.observe(noon), event.observe(morning)] == [True, True, False]
    assert (event.now(), event.is_set, wall.observe(noon)) == (noon, True, False)
    assert micros(morning) == 1_398_931_200_000_000


def test_a_stored_answer_is_for_its_own_request() -> None:
    stored = StoredAnswer(key="k", fingerprint=fingerprint("/orders", b"{}"), status=200, body=b"{}")
    again = stored.replay(fingerprint("/orders", b"{}"))
    assert (again.status, again.body, again.replayed) == (200, b"{}", True)
    with pytest.raises(KeyReusedError) as reused:
        stored.replay(fingerprint("/orders", b'{"a":1}'))
    assert reused.value.key == "k"


@pytest.mark.parametrize("listen", ["", "8000", "localhost", "127.0.0.1:99999", "[::1:80", ":80", "a:b"])
async def test_an_address_that_is_none_is_said_at_once(listen: str) -> None:
    with pytest.raises(ConfigurationError, match="give HOST:PORT"):
        await serve(FastAPI(), listen)
