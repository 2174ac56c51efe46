"""The one place of the SDK that reads the wall clock; everything else is given a `Clock`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

__all__ = ["Clock", "utc_now"]

Clock = Callable[[], datetime]
"""Gives the present moment, aware, in UTC."""


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)  # noqa: TID251 this is the edge that reads the clock
