"""Kafka's UUIDs: random ones, and their text form."""

import random
from base64 import urlsafe_b64decode, urlsafe_b64encode
from uuid import UUID

_DASH = 62
"""The sextet that base64 for URLs writes as a dash."""


def draw_uuid(rng: random.Random) -> UUID:
    """A random UUID (version 4) whose text does not begin with a dash, as command lines take that for an option."""
    while True:
        drawn = UUID(bytes=rng.randbytes(16), version=4)
        if drawn.bytes[0] >> 2 != _DASH:
            return drawn


def encode_uuid(value: UUID) -> str:
    """Kafka's text form of a UUID: 22 characters of URL-safe base64."""
    return urlsafe_b64encode(value.bytes).decode().rstrip("=")


def decode_uuid(text: str) -> UUID:
    """The UUID of Kafka's text form.

    Raises:
        ValueError: It is not one.
    """
    return UUID(bytes=urlsafe_b64decode(text + "=" * (-len(text) % 4)))
