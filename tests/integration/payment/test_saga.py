"""The saga with a provider that fails at each step: money moves once, every movement is published, no dead letters."""

import json
from typing import Any

import httpx
import pytest
from hailbus import DeliveryError
from hailbus.testing import MemoryBus

from tests.integration.conftest import eventually
from tests.integration.payment.conftest import (
    City,
    StartCity,
    cancelled,
    completed,
    numbered,
    repriced,
    requested,
    unmatched,
)

pytestmark = pytest.mark.timeout(180)


def kinds(told: list[Any]) -> list[str]:
    return [kind for kind, _ in told]


async def amounts(city: City, ride_id: str, count: int) -> list[tuple[str, int]]:
    return [
        (kind, json.loads(record.value)["amount"]["amount_minor"]) for kind, record in await city.told(ride_id, count)
    ]


async def body(city: City, ride_id: str, count: int) -> Any:
    return json.loads((await city.told(ride_id, count))[count - 1][1].value)


async def test_a_ride_is_authorised_reauthorised_captured_and_the_rest_is_released(start: StartCity) -> None:
    async with start() as city:
        await city.tell(requested("a"))
        await city.reaches("a", "authorised")
        await city.tell(repriced("a", fare_minor=3_000), repriced("a", fare_minor=2_500), after_s=60)
        await city.told("a", 2)
        await city.tell(completed("a", fare_minor=2_500), after_s=600)
        assert await amounts(city, "a", 4) == [
            ("authorised", 1_840),
            ("authorised", 1_160),
            ("captured", 2_500),
            ("released", 500),
        ]
        assert await city.moved("a") == [
            ("authorise", 1_840),
            ("authorise", 1_160),
            ("capture", 2_500),
            ("release", 500),
        ]
        last = await city.reaches("a", "settled")
        assert (last["captured_minor"], last["released_minor"], last["owed_minor"]) == (2_500, 500, 0)
        times = [dict(record.headers)["ce_time"].decode() for _, record in await city.told("a", 4)]
        assert times == sorted(times)
        assert times[-1] == "2014-05-01T12:10:00Z"
        assert city.letters() == []


async def test_the_end_of_a_ride_without_a_trip(start: StartCity) -> None:
    async with start() as city:
        for ride_id in ("free", "late", "no-show", "unmatched"):
            await city.tell(requested(ride_id))
        await city.tell(cancelled("free", matched_s=0, stage="matched"), unmatched("unmatched"), after_s=120)
        await city.tell(
            cancelled("late", matched_s=0, stage="matched"),
            cancelled("no-show", matched_s=0, stage="arrived", by="system", reason="no_show"),
            after_s=600,
        )
        all_back = [("authorised", 1_840), ("released", 1_840)]
        with_fee = [("authorised", 1_840), ("captured", 500), ("released", 1_340)]
        assert await amounts(city, "free", 2) == all_back
        assert await amounts(city, "unmatched", 2) == all_back
        assert await amounts(city, "late", 3) == with_fee
        assert await amounts(city, "no-show", 3) == with_fee
        assert (await body(city, "late", 2))["kind"] == "cancellation_fee"
        assert (await body(city, "no-show", 2))["kind"] == "no_show_fee"
        assert (await body(city, "unmatched", 2))["reason"] == "timeout"
        assert (await city.reaches("free", "closed"))["captured_minor"] == 0


BEFORE = ["refused", "timeout", "503", "nonsense"]
AFTER = ["answer lost", "answer late", "answer cut"]
STEPS = ("/authorisations", "/increments", "/captures", "/releases", "/refunds")


@pytest.mark.parametrize("fault", BEFORE + AFTER)
async def test_a_provider_that_fails_at_every_step(start: StartCity, fault: str) -> None:
    """Each step fails twice; the request is repeated with its key, and has one effect."""
    async with start() as city:
        city.wire.faults = {path: [fault, fault] for path in STEPS}
        await city.tell(requested("a"), repriced("a", fare_minor=3_000))
        await city.told("a", 2)
        await city.tell(completed("a", fare_minor=2_500))
        await city.reaches("a", "settled")
        refund = {"amount_minor": 100, "reason": "complaint"}
        asked = await city.payment.post("/payments/a/refunds", json=refund, headers={"Idempotency-Key": "k"})
        assert asked.status_code == 202
        assert await amounts(city, "a", 5) == [
            ("authorised", 1_840),
            ("authorised", 1_160),
            ("captured", 2_500),
            ("released", 500),
            ("refunded", 100),
        ]
        assert await city.moved("a") == [
            ("authorise", 1_840),
            ("authorise", 1_160),
            ("capture", 2_500),
            ("release", 500),
            ("refund", 100),
        ]
        assert [sum(path.endswith(end) for path, _ in city.wire.requests) for end in STEPS] == [3] * 5
        assert len({key for _, key in city.wire.requests}) == 5
        assert city.letters() == []


async def test_an_outcome_that_cannot_be_published_is_asked_for_again(start: StartCity, bus: MemoryBus) -> None:
    """The provider has answered, and payment fails before it has kept the answer."""
    async with start() as city:
        await city.tell(requested("a"))
        await city.reaches("a", "authorised")
        city.wire.after_effect = lambda: bus.fail_sends(
            DeliveryError("not now", topic="payment-steps.v1", retriable=False)
        )
        await city.tell(completed("a"))
        await city.reaches("a", "settled")
        assert await city.moved("a") == [("authorise", 1_840), ("capture", 1_840)]
        assert kinds(await city.told("a", 2)) == ["authorised", "captured"]
        assert [path.endswith("/captures") for path, _ in city.wire.requests].count(True) == 2
        assert city.letters() == []


@pytest.mark.parametrize("outage", ["refuse", "lose_answers"])
async def test_an_outage_delays_payments_and_loses_none(start: StartCity, outage: str) -> None:
    """The provider is away for many attempts, also across a restart; then everything that waited is done once."""
    rides = [f"ride-{number}" for number in range(20)]
    async with start() as city:
        await city.faults(outage=outage)
        for ride_id in rides:
            await city.tell(requested(ride_id), completed(ride_id))

        async def tried_often() -> bool:
            return len(city.wire.requests) >= 60

        await eventually(tried_often, within_s=60)
        assert {(await city.state(ride_id))["state"] for ride_id in rides} == {"authorising"}
    async with start() as city:
        for ride_id in rides:
            await city.reaches(ride_id, "settled")
            assert await city.moved(ride_id) == [("authorise", 1_840), ("capture", 1_840)]
            assert kinds(await city.told(ride_id, 2)) == ["authorised", "captured"]
        assert city.letters() == []


async def test_a_declined_authorisation_is_told_and_nothing_is_owed(start: StartCity) -> None:
    async with start() as city:
        await city.tell(requested("a", rider_id="r1-declined"))
        await city.reaches("a", "refused")
        failed = await body(city, "a", 1)
        assert (failed["stage"], failed["reason"], failed["owed"]) == ("authorise", "card_expired", None)
        assert failed["amount"] == {"amount_minor": 1_840, "currency": "USD"}
        await city.tell(cancelled("a", by="system", reason="payment_failed"))
        await city.reaches("a", "closed")
        assert await city.moved("a") == []


async def test_a_declined_capture_is_a_debt_that_a_retry_collects(start: StartCity) -> None:
    async with start(retry_first_s=0.2) as city:
        await city.tell(requested("a"))
        await city.reaches("a", "authorised")
        await city.faults(decline_percent=100)
        await city.tell(completed("a"))
        await city.reaches("a", "due")
        failed = await body(city, "a", 2)
        assert (failed["stage"], failed["reason"], failed["owed"]["amount_minor"]) == (
            "capture",
            "insufficient_funds",
            1_840,
        )
        await city.told("a", 3)  # it is tried again by itself, with a key of its own, and declined again
        await city.faults(decline_percent=0)
        await city.reaches("a", "settled")
        assert kinds(await city.told("a", 4))[-1] == "captured"
        assert await city.moved("a") == [("authorise", 1_840), ("capture", 1_840)]


async def test_somebody_asks_for_a_retry(start: StartCity) -> None:
    async with start(retry_limit=0) as city:
        await city.tell(requested("a"))
        await city.reaches("a", "authorised")
        refused = await city.payment.post("/payments/a/retry", headers={"Idempotency-Key": "k0"})
        assert refused.json()["type"] == "/problems/nothing-declined"
        await city.faults(decline_percent=100)
        await city.tell(completed("a"))
        await city.reaches("a", "due")
        await city.faults(decline_percent=0)
        assert (await city.payment.post("/payments/a/retry", headers={"Idempotency-Key": "k1"})).status_code == 202
        await city.reaches("a", "settled")


async def test_refunds(start: StartCity) -> None:
    async with start() as city:
        await city.tell(requested("a"), completed("a"))
        await city.reaches("a", "settled")

        async def ask(amount_minor: int, key: str) -> httpx.Response:
            return await city.payment.post(
                "/payments/a/refunds",
                json={"amount_minor": amount_minor, "reason": "complaint"},
                headers={"Idempotency-Key": key},
            )

        for _ in range(3):  # a repeated request is one refund
            assert (await ask(1_000, "k1")).status_code == 202
        assert (await amounts(city, "a", 3))[2] == ("refunded", 1_000)
        assert (await city.reaches("a", "settled"))["refunded_minor"] == 1_000
        assert (await ask(1_000, "k1")).status_code == 202  # also when less than that is left
        assert (await ask(1, "k1")).json()["type"] == "/problems/idempotency-key-reused"
        assert (await ask(841, "k2")).json()["type"] == "/problems/too-much"
        assert (await ask(840, "k3")).status_code == 202
        await city.told("a", 4)
        assert await city.moved("a") == [
            ("authorise", 1_840),
            ("capture", 1_840),
            ("refund", 1_000),
            ("refund", 840),
        ]
        assert (await city.payment.get("/payments/b")).status_code == 404


async def test_books_that_differ_are_told_and_not_dead_lettered(start: StartCity) -> None:
    """The provider refuses what it never declines by itself: somebody freed the money behind payment's back."""
    async with start() as city:
        await city.tell(requested("a"))
        await city.reaches("a", "authorised")
        (one,) = (await city.provider.get("/transactions")).json()["transactions"]
        path = f"/authorisations/{one['authorisation_id']}/releases"
        amount = {"amount_minor": 1_840, "currency": "USD"}
        freed = await city.provider.post(path, json={"amount": amount}, headers={"Idempotency-Key": "by-hand"})
        assert freed.status_code == 201
        await city.tell(completed("a"))
        await city.reaches("a", "due")
        failed = await body(city, "a", 2)
        assert (failed["stage"], failed["reason"]) == ("capture", "too-much")
        assert city.letters() == []


async def test_an_event_that_comes_twice_moves_no_money_twice(start: StartCity) -> None:
    async with start() as city:
        first, last = numbered(requested("a"), completed("a"))
        await city.publish(first, first, last, last)
        await city.reaches("a", "settled")
        await city.publish(first, last)
        await city.publish(*numbered(requested("a"), completed("a"), cancelled("a"), first=3))
        await city.reads_all()
        assert await city.moved("a") == [("authorise", 1_840), ("capture", 1_840)]
