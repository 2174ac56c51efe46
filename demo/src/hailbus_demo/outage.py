"""The payment provider is away for a part of the run: rides continue, payments come late, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Final

from hailbus_demo.errors import RunFailedError
from hailbus_demo.moment import wait_for_share
from hailbus_demo.options import Outage
from hailbus_demo.replay.http import HttpClient, UnreachableError

BEGINS: Final = 0.25
ENDS: Final = 0.6
"""Shares of the run at which the outage begins and ends."""
PAUSE_S: Final = 20.0
"""How long each part takes where the run's length is not known."""
LOOK_EVERY_S: Final = 0.25
SET_WITHIN_S: Final = 60.0
"""How long the provider may take to answer, as it may have been killed."""
HANG_S: Final = 8.0
"""Longer than payment waits for an answer."""


class ProviderAwayError(RunFailedError):
    """The provider does not answer; it may be starting again."""


class OutageOfProvider:
    """Switches the outage on and off by the provider's own API.

    Args:
        outage: How the provider is away.
        url: The provider's.
        share_done: Returns how much of the run is over, 0 to 1, or None where it has no end.
        say: Told of both moments.
        begins: When it is switched on, as a share of the run.
        ends: When it is switched off.
    """

    def __init__(
        self,
        outage: Outage,
        url: str,
        *,
        share_done: Callable[[], float | None],
        say: Callable[[str], None],
        begins: float = BEGINS,
        ends: float = ENDS,
    ) -> None:
        self.begins = begins
        self.ends = ends
        self.outage = outage
        self.url = url
        self.share_done = share_done
        self.say = say
        self.hurry = asyncio.Event()
        """Set when the rides are over: the provider must be back."""

    async def run(self) -> None:
        """Wait, switch the outage on, wait, and switch it off."""
        await self._until(self.begins)
        await self._set(self.outage.value)
        self.say(f"outage: the payment provider is away ({self.outage.value})")
        await self._until(self.ends)
        await self._set("none")
        self.say("outage: the payment provider is back")

    async def _until(self, share: float) -> None:
        await wait_for_share(
            share, share_done=self.share_done, hurry=self.hurry, pause_s=PAUSE_S, look_every_s=LOOK_EVERY_S
        )

    async def _set(self, outage: str) -> None:
        deadline = time.monotonic() + SET_WITHIN_S
        while True:
            try:
                return await set_outage(self.url, outage)
            except ProviderAwayError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(LOOK_EVERY_S)


async def set_outage(url: str, outage: str) -> None:
    """Tell the provider how to be away, or with "none" to be back.

    Raises:
        ProviderAwayError: It does not answer.
        RunFailedError: It refuses.
    """
    client = HttpClient(url, connections=1)
    body = json.dumps({"outage": outage, "hang_s": HANG_S}).encode()
    try:
        answer = await client.request("POST", "/admin/faults", body=body, within_s=30.0)
    except UnreachableError as error:
        raise ProviderAwayError(f"the payment provider at {url} does not answer: {error}") from error
    finally:
        await client.close()
    if answer.status != 200:
        raise RunFailedError(f"the payment provider refused the outage with {answer.status}: {answer.body!r}")


__all__ = ["OutageOfProvider", "set_outage"]
