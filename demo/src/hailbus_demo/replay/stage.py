"""A stage in event time: actions happen in order of their times, many at once within a short window.

Event time is not a clock here, it is a number that actions carry. An action may begin when its time is less than
`window_ms` after that of the oldest action that is not done. So whatever the speed, what leaves the stage is out of
order by less than the window, which is shorter than the 30 s that the surge service waits for late events. With a
`speed`, an action also waits for its moment on the machine's clock.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from typing import TypeVar

Action = Callable[[int], Awaitable[None]]
"""Called with the event time in milliseconds at which it happens."""
P = TypeVar("P")

LOOK_AHEAD_MS = 60_000
"""Plans are drawn from their source so long before their time; it must exceed the lead with which plans are made."""


class Stage:
    """Runs actions in event time until there is nothing left to do, or `stop` is called.

    Args:
        window_ms: How far actions may overtake each other.
        limit: Actions under way at a time.
        speed: Event seconds per real second; `None` for as fast as it goes.
    """

    def __init__(self, *, window_ms: int = 20_000, limit: int = 128, speed: float | None = None) -> None:
        self.window_ms = window_ms
        self.limit = limit
        self.speed = speed
        self.now_ms = 0
        """The latest time at which an action began."""
        self._heap: list[tuple[int, int, bool, Action]] = []
        self._numbers = count()
        self._running: dict[int, int] = {}
        self._times: list[tuple[int, int]] = []
        self._idle = 0
        """Background actions that wait; `_acting` counts the others that are under way."""
        self._acting = 0
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._stopping = False
        self._anchor: tuple[float, int] | None = None

    def at(self, at_ms: int, action: Action, *, background: bool = False) -> None:
        """Have an action done at an event time; one that is past becomes the time of the oldest action under way.

        A `background` action (polling, reporting) does not keep the stage alive.
        """
        floor = self._oldest() if self._running else at_ms
        heapq.heappush(self._heap, (max(at_ms, floor), next(self._numbers), background, action))
        if background:
            self._idle += 1
        self._wake.set()

    def stop(self) -> None:
        """Begin nothing more; `run` returns when what has begun is done."""
        self._stopping = True
        self._wake.set()

    @property
    def busy(self) -> int:
        """Actions under way."""
        return len(self._running)

    async def run(self, plans: Iterator[P], begin: Callable[[P], tuple[int, Action]]) -> None:
        """Run plans and whatever they lead to.

        Args:
            plans: In order of time, to within `LOOK_AHEAD_MS`. Drawn only as their time comes.
            begin: Turns a plan into its time and first action.

        Raises:
            BaseException: Whatever an action raised first; the others are cancelled.
        """
        upcoming: tuple[int, Action] | None = None
        more = True
        try:
            while not self._stopping and self._failure is None:
                while more and len(self._heap) < 1_000_000:
                    if upcoming is None:
                        plan = next(plans, None)
                        if plan is None:
                            more = False
                            break
                        upcoming = begin(plan)
                    if self._heap and upcoming[0] > self._heap[0][0] + LOOK_AHEAD_MS:
                        break
                    self.at(*upcoming)
                    upcoming = None
                foreground = len(self._heap) - self._idle + self._acting + (1 if upcoming else 0)
                if foreground == 0 and not more:
                    break
                if not self._heap or not self._may_begin(self._heap[0][0]):
                    self._wake.clear()
                    await self._wake.wait()
                    continue
                wait_s = self._wait_s(self._heap[0][0])
                if wait_s > 0:
                    self._wake.clear()
                    try:
                        async with asyncio.timeout(wait_s):
                            await self._wake.wait()
                    except TimeoutError:
                        pass
                    continue
                at_ms, number, background, action = heapq.heappop(self._heap)
                if background:
                    self._idle -= 1
                else:
                    self._acting += 1
                self.now_ms = max(self.now_ms, at_ms)
                self._running[number] = at_ms
                heapq.heappush(self._times, (at_ms, number))
                task = asyncio.create_task(self._do(number, at_ms, action, background=background))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            while self._running and self._failure is None:
                self._wake.clear()
                await self._wake.wait()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._failure is not None:
            raise self._failure

    async def _do(self, number: int, at_ms: int, action: Action, *, background: bool) -> None:
        try:
            await action(at_ms)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  # kept for run, which raises it
            self._failure = self._failure or error
        finally:
            del self._running[number]
            self._acting -= not background
            self._wake.set()

    def _oldest(self) -> int:
        while self._times and self._times[0][1] not in self._running:
            heapq.heappop(self._times)
        return self._times[0][0] if self._times else self._heap[0][0] if self._heap else self.now_ms

    def _may_begin(self, at_ms: int) -> bool:
        return len(self._running) < self.limit and at_ms < self._oldest() + self.window_ms

    def _wait_s(self, at_ms: int) -> float:
        if self.speed is None:
            return 0.0
        now = time.monotonic()
        if self._anchor is None:
            self._anchor = (now, at_ms)
        return self._anchor[0] + (at_ms - self._anchor[1]) / 1000 / self.speed - now
