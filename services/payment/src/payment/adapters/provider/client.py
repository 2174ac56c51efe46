"""The payment provider as it is: JSON over HTTP, an idempotency key with each request."""

import asyncio
from typing import Any, Final, assert_never

import httpx

from payment.app.ports import Order, Outcome, ProviderAwayError
from payment.domain.payment import StepKind

DECLINED: Final = 402
IN_FLIGHT: Final = 32
"""Orders that are sent at once. After an outage thousands wait, and the client's pool looks at each of them whenever a
connection changes hands: that held up the event loop until the consumer's session ended."""
TRANSIENT: Final = frozenset({401, 403, 408, 425, 429})
"""Statuses that say nothing about the order: a retry, or a corrected configuration, mends them."""


class HttpProvider:
    """Speaks to the provider.

    Args:
        url: Where it serves.
        timeout_s: How long a request may take. After that its outcome is unknown, and it is repeated.
        transport: In place of the network, for tests.
    """

    def __init__(self, url: str, *, timeout_s: float, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._client = httpx.AsyncClient(base_url=url, timeout=timeout_s, transport=transport)
        self._turns = asyncio.Semaphore(IN_FLIGHT)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def carry_out(self, order: Order) -> Outcome:
        """Send the order.

        Raises:
            ProviderAwayError: No answer, or one that says nothing about the order.
        """
        path, body = _request(order)
        try:
            async with self._turns:
                response = await self._client.post(path, json=body, headers={"Idempotency-Key": order.key})
        except httpx.HTTPError as error:
            message = f"the provider did not answer {order.kind} {order.key}: {error!r}"
            raise ProviderAwayError(message) from error
        status = response.status_code
        if status >= 500 or status in TRANSIENT:
            raise ProviderAwayError(f"the provider answered {order.kind} {order.key} with {status}")
        try:
            said: dict[str, Any] = response.json()  # Any: JSON
            if status >= 400:
                # Any other refusal than a decline says that the books differ: it is published, for a person to see.
                code = str(said["type"]).rpartition("/")[2]
                reason = str(said["detail"]) if status == DECLINED else code
                return Outcome(authorisation_id=order.authorisation_id, declined=reason)
            return Outcome(authorisation_id=str(said["authorisation_id"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ProviderAwayError(
                f"the provider answered {order.kind} {order.key} with no answer of its own"
            ) from error


def _request(order: Order) -> tuple[str, dict[str, object]]:
    amount = {"amount_minor": order.amount_minor, "currency": order.currency}
    of = f"/authorisations/{order.authorisation_id}"
    match order.kind:
        case StepKind.AUTHORISE:
            return "/authorisations", {"card": order.card, "amount": amount, "reference": order.reference}
        case StepKind.REAUTHORISE:
            return f"{of}/increments", {"amount": amount}
        case StepKind.CAPTURE:
            return f"{of}/captures", {"amount": amount}
        case StepKind.RELEASE:
            return f"{of}/releases", {"amount": amount}
        case StepKind.REFUND:
            return "/refunds", {"authorisation_id": order.authorisation_id, "amount": amount}
        case _:
            assert_never(order.kind)
