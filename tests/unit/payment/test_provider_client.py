"""How orders are sent to the payment provider."""

import asyncio

import httpx
from payment.adapters.provider.client import IN_FLIGHT, HttpProvider
from payment.app.ports import Order, Outcome
from payment.domain.payment import StepKind


def order(number: int) -> Order:
    return Order(
        key=f"key-{number}",
        kind=StepKind.AUTHORISE,
        amount_minor=1_000,
        currency="USD",
        card="card",
        reference=f"ride-{number}",
        authorisation_id=None,
    )


async def test_a_backlog_is_sent_a_few_orders_at_a_time() -> None:
    at_once = most = 0

    async def answer(request: httpx.Request) -> httpx.Response:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        return httpx.Response(201, json={"authorisation_id": request.headers["Idempotency-Key"]})

    provider = HttpProvider("http://provider", timeout_s=5, transport=httpx.MockTransport(answer))
    found = await asyncio.gather(*(provider.carry_out(order(number)) for number in range(500)))
    await provider.close()
    assert most == IN_FLIGHT
    assert found == [Outcome(authorisation_id=f"key-{number}") for number in range(500)]
