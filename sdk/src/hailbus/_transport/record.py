"""A record as both client libraries hand it over: a named tuple, which costs a fifth of a dataclass to make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Record", "new_record"]


class Record(NamedTuple):
    """See `Received`."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


new_record = tuple.__new__
"""Makes a `Record` of its class and a tuple of its fields, twice as fast as calling the class."""
