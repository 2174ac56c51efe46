"""Ids that follow from others: the same parts give the same id, before and after a crash."""

import uuid
from typing import Final

NAMESPACE: Final = uuid.UUID("2d0a6a3c-6a0f-5a0a-9d53-3f6f9f0d3b11")


def derived_id(*parts: object) -> str:
    """Return the uuid5 of the parts."""
    return str(uuid.uuid5(NAMESPACE, "/".join(str(part) for part in parts)))


def payment_id_of(ride_id: str) -> str:
    """Return the id of a ride's payment: each ride has one."""
    return derived_id("payment", ride_id)


def card_of(rider_id: str) -> str:
    """Return the token of a rider's card. A stand-in: the example has no service that keeps cards."""
    return f"card-of-{rider_id}"


def key_of(payment_id: str, number: int) -> str:
    """Return the idempotency key of a step."""
    return f"{payment_id}:{number}"
