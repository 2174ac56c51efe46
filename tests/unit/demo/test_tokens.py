"""Whom the demo's requests are from."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, cast

import jwt
import pytest
from hailbus_demo.replay.http import Answer, HttpClient
from hailbus_demo.replay.sure import NotAcceptedError, SureClient
from hailbus_demo.replay.tokens import FLEET, OPERATOR, REMEMBERED_MAX, Tokens

KEY = {"kty": "oct", "k": "c2VjcmV0LW9mLXRoZS10ZXN0cy1hbmQtb2Ytbm9ib2R5LWVsc2U", "kid": "k1", "alg": "HS256"}


def claims(token: str) -> dict[str, Any]:
    return jwt.decode(token, jwt.PyJWK(dict(KEY)).key, algorithms=["HS256"])


class Http:
    """Answers with these statuses, then 200; notes who asked."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.seen: list[tuple[str, str | None]] = []

    async def request(
        self, method: str, path: str, *, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        del body
        value = (headers or {}).get("Authorization")
        token = None if value is None else value.removeprefix("Bearer ")
        self.seen.append(
            (f"{method} {path}", None if token is None else f"{claims(token)['role']} {claims(token)['sub']}")
        )
        return Answer(status=self.statuses.pop(0) if self.statuses else 200, body=b"{}")


def client(http: Http, tokens: Tokens | None) -> SureClient:
    return SureClient(cast("HttpClient", http), name="booking", deadline_s=30, tokens=tokens)


def test_a_token_is_signed_once_for_each_caller() -> None:
    tokens = Tokens(KEY)
    first = tokens.of(("rider", "r1"))
    assert (claims(first)["role"], claims(first)["sub"]) == ("rider", "r1")
    assert jwt.get_unverified_header(first)["kid"] == "k1"
    assert tokens.of(("rider", "r1")) is first
    assert tokens.of(("driver", "r1")) != first


def test_few_tokens_are_remembered() -> None:
    tokens = Tokens(KEY)
    first = tokens.of(("rider", "first"))
    for number in range(REMEMBERED_MAX):
        tokens.of(("rider", str(number)))
    assert len(tokens._known) == REMEMBERED_MAX
    assert tokens.of(("rider", "first")) is not first


def test_a_token_is_replaced_before_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = Tokens(KEY)
    monkeypatch.setattr("hailbus_demo.replay.tokens.LASTS", timedelta(minutes=59))
    first = tokens.of(OPERATOR)
    assert tokens.of(OPERATOR) is not first


async def test_each_request_says_whom_it_is_from() -> None:
    http = Http()
    booking = client(http, Tokens(KEY))
    await booking.get("/rides")
    await booking.post("/clock", {}, key="a")
    await booking.post("/quotes", {}, key="b", by=("rider", "r1"))
    await booking.post("/driver-updates", {}, key="c", by=FLEET)
    assert http.seen == [
        ("GET /rides", "operator demo"),
        ("POST /clock", "operator demo"),
        ("POST /quotes", "rider r1"),
        ("POST /driver-updates", "fleet demo"),
    ]
    without = Http()
    await client(without, None).get("/clock")
    assert without.seen == [("GET /clock", None)]


async def test_a_token_that_is_not_accepted_ends_the_run_and_too_many_requests_are_repeated() -> None:
    with pytest.raises(NotAcceptedError, match="booking does not accept our token"):
        await client(Http(401), Tokens(KEY)).post("/quotes", {}, key="a", by=("rider", "r1"))
    http = Http(429, 503)
    assert (await client(http, Tokens(KEY)).post("/quotes", {}, key="a", by=("rider", "r1")))[0] == 200
    assert len(http.seen) == 3
