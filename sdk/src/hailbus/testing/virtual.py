"""Virtual time: an event loop whose clock jumps to the next timer when there is nothing else to do."""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

__all__ = ["VirtualClock", "VirtualLoop", "run_virtual"]

T = TypeVar("T")
EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
# How long other threads (aiosqlite) get before an idle loop decides that only a timer can go on.
THREAD_GRACE_S = 0.002


class _Selector(selectors.DefaultSelector):
    """Never sleeps for a timer: moves the loop's clock instead."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        ready = super().select(THREAD_GRACE_S if self.loop.has_threads else 0)
        if not ready:
            self.loop.advance(timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Sleeps, timeouts and retry delays pass at once and in order; an hour of back-off takes no time.

    What happens is the same in every run, as long as no other thread and no socket takes part.
    """

    def __init__(self) -> None:
        selector = _Selector()
        self._virtual_s = 0.0
        self._threads_before = threading.active_count()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._virtual_s

    def advance(self, seconds: float) -> None:
        """Move the clock."""
        self._virtual_s += seconds

    @property
    def has_threads(self) -> bool:
        """Whether other threads may call back."""
        return threading.active_count() > self._threads_before


class VirtualClock:
    """A wall clock that goes with the running loop's time.

    Args:
        start: What it says when the loop's time is 0.
    """

    def __init__(self, start: datetime = EPOCH) -> None:
        self._start = start

    def __call__(self) -> datetime:
        """The moment that it is in virtual time."""
        return self._start + timedelta(seconds=asyncio.get_running_loop().time())


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
