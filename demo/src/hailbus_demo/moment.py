"""Waiting for a moment of the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["wait_for_share"]


async def wait_for_share(
    share: float,
    *,
    share_done: Callable[[], float | None],
    hurry: asyncio.Event,
    pause_s: float,
    look_every_s: float,
) -> None:
    """Wait until so much of the run is over, 0 to 1, or until `hurry` is set.

    Args:
        share: How much.
        share_done: Returns how much is over, or None where the run has no end.
        hurry: Set when the rides are over.
        pause_s: How long to wait where the run has no end, in seconds.
        look_every_s: How often to ask, in seconds.
    """
    waited_s = 0.0
    while not hurry.is_set():
        done = share_done()
        if (done is not None and done >= share) or (done is None and waited_s >= pause_s):
            return
        try:
            async with asyncio.timeout(look_every_s):
                await hurry.wait()
        except TimeoutError:
            waited_s += look_every_s
