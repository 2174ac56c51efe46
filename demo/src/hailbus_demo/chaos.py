"""The proof by force: each process is killed with SIGKILL once, spread over the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from hailbus_demo.supervise.processes import Supervisor

VICTIMS = ("recommender", "surge", "booking", "broker", "lake")
PAUSE_S = 8.0
"""Least time between two kills where the run's length is not known."""


class Chaos:
    """Kills processes.

    Args:
        supervisor: Whose processes.
        victims: Their names, in the order of their deaths.
        share_done: Returns how much of the run is over, 0 to 1, or None where it has no end.
        say: Told of each kill.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        victims: Sequence[str],
        *,
        share_done: Callable[[], float | None],
        say: Callable[[str], None],
    ) -> None:
        self.supervisor = supervisor
        self.victims = tuple(victims)
        self.share_done = share_done
        self.say = say
        self.killed: list[str] = []
        self.hurry = asyncio.Event()
        """Set when the rides are over: what is still to be killed is killed now."""

    async def run(self) -> None:
        """Kill each victim once the others are well again after the last kill; return when all are back."""
        for i, name in enumerate(self.victims):
            await self._until((i + 1) / (len(self.victims) + 1))
            # The lake takes long to come up, and nobody needs it to live through another's death.
            await self.supervisor.wait_ready(*(n for n in self.supervisor.children if n != "lake" or name == "lake"))
            self.say(f"chaos: kill -9 {name} (process {self.supervisor.children[name].pid})")
            await self.supervisor.kill(name)
            self.killed.append(name)
        await self.supervisor.wait_ready(*self.supervisor.children)

    async def _until(self, share: float) -> None:
        waited_s = 0.0
        while not self.hurry.is_set():
            done = self.share_done()
            if (done is not None and done >= share) or (done is None and waited_s >= PAUSE_S):
                return
            try:
                async with asyncio.timeout(0.25):
                    await self.hurry.wait()
            except TimeoutError:
                waited_s += 0.25
