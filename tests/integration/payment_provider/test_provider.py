"""The provider over HTTP: money moves once per key, refusals say why, faults come to order."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from payment_provider.config import Settings
from payment_provider.main import create_app

from tests.integration.conftest import Process

pytestmark = pytest.mark.timeout(120)
FARE = {"amount_minor": 1_840, "currency": "USD"}
NEW = {"card": "card-of-r1", "amount": FARE, "reference": "ride-1"}


class Client:
    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def raw(self, path: str, body: object, key: str = "") -> httpx.Response:
        headers = {"Idempotency-Key": key} if key else {}
        return await self.http.post(path, json=body, headers=headers)

    async def post(self, path: str, body: object, key: str) -> Any:
        response = await self.raw(path, body, key)
        assert response.status_code == 201, response.text
        return response.json()

    async def refused(self, path: str, body: object, key: str, status: int, code: str) -> str:
        response = await self.raw(path, body, key)
        assert (response.status_code, response.json()["type"]) == (status, f"/problems/{code}"), response.text
        return str(response.json()["detail"])

    async def faults(self, **faults: object) -> Any:
        response = await self.raw("/admin/faults", faults)
        assert response.status_code == 200, response.text
        return response.json()

    async def moved(self, **query: Any) -> list[tuple[str, int, str]]:
        found = (await self.http.get("/transactions", params=query)).json()
        return [(one["kind"], one["amount_minor"], one["idempotency_key"]) for one in found["transactions"]]


Start = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture
def start(database_url: str) -> Start:
    @asynccontextmanager
    async def started(**settings: Any) -> AsyncIterator[Client]:
        app = create_app(Settings(database_url=database_url, **settings))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://provider") as http,
        ):
            yield Client(http)

    return started


async def test_the_life_of_an_authorisation(start: Start) -> None:
    async with start() as provider:
        made = await provider.post("/authorisations", NEW, "k1")
        path = f"/authorisations/{made['authorisation_id']}"
        await provider.post(f"{path}/increments", {"amount": {"amount_minor": 160, "currency": "USD"}}, "k2")
        await provider.post(f"{path}/captures", {"amount": FARE}, "k3")
        await provider.post(f"{path}/releases", {"amount": {"amount_minor": 160, "currency": "USD"}}, "k4")
        refund = {"authorisation_id": made["authorisation_id"], "amount": {"amount_minor": 40, "currency": "USD"}}
        after = await provider.post("/refunds", refund, "k5")
        assert after == {
            "authorisation_id": made["authorisation_id"],
            "reference": "ride-1",
            "currency": "USD",
            "authorised_minor": 2_000,
            "captured_minor": 1_840,
            "released_minor": 160,
            "refunded_minor": 40,
        }
        assert (await provider.http.get(path)).json() == after
        moved = [
            ("authorise", 1_840, "k1"),
            ("authorise", 160, "k2"),
            ("capture", 1_840, "k3"),
            ("release", 160, "k4"),
            ("refund", 40, "k5"),
        ]
        assert await provider.moved() == moved
        assert await provider.moved(after=1, limit=2) == moved[1:3]
        assert await provider.moved(reference="ride-1") == moved
        assert await provider.moved(reference="ride-2") == []


async def test_the_pages_of_transactions_end(start: Start) -> None:
    async with start() as provider:
        for number in range(3):
            await provider.post("/authorisations", NEW, f"k{number}")
        first = (await provider.http.get("/transactions", params={"limit": 2})).json()
        last = (await provider.http.get("/transactions", params={"limit": 2, "after": first["next"]})).json()
        assert (len(first["transactions"]), len(last["transactions"]), last["next"]) == (2, 1, None)


async def test_a_repeated_request_moves_money_once_and_a_changed_one_is_refused(start: Start) -> None:
    async with start() as provider:
        answers = await asyncio.gather(*(provider.post("/authorisations", NEW, "k1") for _ in range(10)))
        assert answers == [answers[0]] * 10
        assert len(await provider.moved()) == 1
        other = {**NEW, "amount": {"amount_minor": 1, "currency": "USD"}}
        await provider.refused("/authorisations", other, "k1", 422, "idempotency-key-reused")
    async with start() as provider:
        assert await provider.post("/authorisations", NEW, "k1") == answers[0]
        assert len(await provider.moved()) == 1


async def test_refusals_move_no_money(start: Start) -> None:
    async with start() as provider:
        made = await provider.post("/authorisations", NEW, "k1")
        path = f"/authorisations/{made['authorisation_id']}"
        more = {"amount": {"amount_minor": 1_841, "currency": "USD"}}
        detail = await provider.refused(f"{path}/captures", more, "k2", 409, "too-much")
        assert "1841 cannot be captured" in detail
        await provider.refused(f"{path}/releases", more, "k3", 409, "too-much")
        euros = {"amount": {"amount_minor": 1, "currency": "EUR"}}
        await provider.refused(f"{path}/captures", euros, "k4", 409, "other-currency")
        await provider.refused("/authorisations/none/captures", {"amount": FARE}, "k5", 404, "not-found")
        nothing = {"amount": {"amount_minor": 0, "currency": "USD"}}
        await provider.refused(f"{path}/captures", nothing, "k6", 422, "invalid")
        assert (await provider.raw("/authorisations", NEW)).status_code == 400
        assert len(await provider.moved()) == 1


async def test_a_decline_is_stored_under_its_key(start: Start) -> None:
    async with start(decline_percent=100) as provider:
        assert await provider.refused("/authorisations", NEW, "k1", 402, "declined") == "insufficient_funds"
        await provider.faults(decline_percent=0)
        assert await provider.refused("/authorisations", NEW, "k1", 402, "declined") == "insufficient_funds"
        await provider.post("/authorisations", NEW, "k2")
        assert await provider.moved() == [("authorise", 1_840, "k2")]
    async with start() as provider:
        expired = {**NEW, "card": "card-of-r1-declined"}
        assert await provider.refused("/authorisations", expired, "k3", 402, "declined") == "card_expired"


@pytest.mark.parametrize(("outage", "effects"), [("refuse", 0), ("hang", 0), ("lose_answers", 1), ("hang_after", 1)])
async def test_an_outage_has_the_effects_that_it_says(start: Start, outage: str, effects: int) -> None:
    async with start() as provider:
        await provider.faults(outage=outage, hang_s=0)
        for _ in range(3):
            await provider.refused("/authorisations", NEW, "k1", 503, "unavailable")
        assert len(await provider.moved()) == effects
        assert await provider.faults(outage="none") == {
            "decline_percent": 0.0,
            "latency_ms": 0,
            "outage": "none",
            "hang_s": 0.0,
            "only": None,
        }
        await provider.post("/authorisations", NEW, "k1")
        assert len(await provider.moved()) == 1


async def test_an_outage_of_captures_leaves_the_rest_alone(start: Start) -> None:
    async with start() as provider:
        await provider.faults(outage="refuse", only="capture")
        made = await provider.post("/authorisations", NEW, "k1")
        path = f"/authorisations/{made['authorisation_id']}"
        await provider.refused(f"{path}/captures", {"amount": FARE}, "k2", 503, "unavailable")
        await provider.post(f"{path}/releases", {"amount": FARE}, "k3")


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"PROVIDER_DECLINE_PERCENT": "101"}, "PROVIDER_DECLINE_PERCENT"),
        ({"PROVIDER_DECLINES": "1"}, "PROVIDER_DECLINES"),
    ],
)
def test_a_wrong_setting_stops_the_start(tmp_path: Path, environment: dict[str, str], sentence: str) -> None:
    provider = Process("payment-provider", tmp_path, environment)
    provider.start()
    assert provider.wait() == 2
    assert sentence in provider.log()


def test_money_that_was_answered_survives_a_kill(tmp_path: Path) -> None:
    environment = {
        "PROVIDER_DATABASE_URL": f"sqlite:///{tmp_path / 'provider.db'}",
        "PROVIDER_LISTEN": "127.0.0.1:0",
    }
    provider = Process("payment-provider", tmp_path, environment)
    provider.start()
    url = "http://" + provider.ready_line().removeprefix("listening=")
    made = httpx.post(f"{url}/authorisations", json=NEW, headers={"Idempotency-Key": "k1"}).json()
    provider.kill()
    provider.start()
    url = "http://" + provider.ready_line().removeprefix("listening=")
    assert httpx.get(f"{url}/readyz").status_code == 200
    again = httpx.post(f"{url}/authorisations", json=NEW, headers={"Idempotency-Key": "k1"})
    assert again.json() == made
    assert len(httpx.get(f"{url}/transactions").json()["transactions"]) == 1
    assert provider.terminate() == 0
