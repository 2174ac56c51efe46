"""What the members of groups have in common that run as processes of their own."""

import os
import time
from collections.abc import Iterable
from typing import Any, Final

TIMES: Final[dict[str, Any]] = {
    "reconnect_backoff_ms": 20,
    "reconnect_backoff_max_ms": 200,
    "bootstrap_timeout_ms": 300_000,  # longer than any outage
}

POLL_MS: Final = 10_000
"""Long: kafka-python 3.0 never applies an assignment that comes after the poll which joined has timed out."""

_PARENT: Final = os.getppid()


def parent_lives() -> bool:
    """Whether the process that started this one lives."""
    return os.getppid() == _PARENT


def flat(polled: dict[Any, list[Any]]) -> list[Any]:
    """Return the records of one poll in the order in which they were handed over."""
    return [record for records in polled.values() for record in records]


def words(records: Iterable[Any]) -> str:
    """Return `partition:offset:value` of each record."""
    return " ".join(f"{record.partition}:{record.offset}:{int(record.value)}" for record in records)


def tell(what: str) -> None:
    """Write a line for the test, after the time.

    CLOCK_MONOTONIC is the same for all processes: a partition's next owner is handed its records later.
    """
    line = f"{time.monotonic_ns()} {what}".rstrip()
    os.write(1, f"{line}\n".encode())
