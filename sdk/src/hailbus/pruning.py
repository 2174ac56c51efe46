"""Pruning: delete what outbox, inbox and the like keep no longer, beside the service."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from hailbus.errors import ClockNotSetError, ConfigurationError

__all__ = ["Prunable", "Pruning"]

log = logging.getLogger("hailbus.pruning")


class Prunable(Protocol):
    """What keeps rows that are of no use after a while: an `Outbox`, an `Inbox`."""

    async def prune(self, keep: timedelta) -> int:
        """Delete what is older than this; how many."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """Prunes one store at intervals.

    Attributes:
        store: What is pruned.
        keep: How long its rows are kept.
        every: Time between two rounds; the first one comes after it.

    Raises:
        ConfigurationError: A duration is not positive.
    """

    store: Prunable
    keep: timedelta
    every: timedelta

    def __post_init__(self) -> None:
        for name, value in (("keep", self.keep), ("every", self.every)):
            if value <= timedelta(0):
                raise ConfigurationError(f"prunes({name}={value!r}): give a duration above zero")

    async def run(self) -> None:
        """Prune until cancelled. A round that fails is logged once until one succeeds; the next one tries again."""
        name = type(self.store).__name__
        is_reported = False
        while True:
            await asyncio.sleep(self.every.total_seconds())
            try:
                count = await self.store.prune(self.keep)
            except ClockNotSetError:  # nothing has happened yet, so nothing is old
                continue
            except Exception as error:  # noqa: BLE001 whatever it is, rows that stay longer harm nobody
                if not is_reported:
                    log.warning("prune_failed: %s, tried again every %s: %r", name, self.every, error)
                is_reported = True
            else:
                is_reported = False
                if count:
                    log.info("pruned: %d rows of %s", count, name)
