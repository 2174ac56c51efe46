"""Virtual time: an event loop whose clock jumps to the next timer when there is nothing else to do."""

from __future__ import annotations

import asyncio
import selectors
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from hailbus.clock import skipping

__all__ = ["VirtualClock", "VirtualLoop", "run_virtual"]

T = TypeVar("T")
EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
DATABASE_GRACE_S = 15.0
"""Real time that a statement in a SQLite thread gets before a timer may overtake it. It may wait for a transaction
that ends by that timer, or for a busy disk."""
WORK_GRACE_S = 0.25
"""Real time that work in an executor's thread gets before a timer may overtake it: it may wait for that timer."""
THREAD_GRACE_S = 0.002
"""Real time that an idle loop gives threads that it knows nothing of."""
SOCKET_GRACE_S = 0.02
"""Real time that an idle loop gives open sockets."""


class _Selector(selectors.DefaultSelector):
    """Never sleeps for a timer: moves the loop's clock instead."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        loop = self.loop
        if timeout is not None and timeout <= 0:
            loop.check_busy()
            return super().select(timeout)
        ready = super().select(loop.grace_s)
        if ready or loop.tell_idle():
            return ready
        if timeout is None:
            return super().select(None)
        loop.advance(timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Sleeps, timeouts and retry delays pass at once and in order; an hour of backoff takes no time.

    What happens is the same in every run, as long as no other thread and no socket takes part. While work is known to
    run in a thread (an executor's, or a SQLite engine's of `hailbus.database`), the clock stands still. Unknown
    threads and open sockets get a few milliseconds of real time before the clock jumps.

    While the loop runs, `hailbus.clock.utc_now`, the default clock of services and buses, is ahead of the wall clock by
    the time that the loop has skipped.
    """

    def __init__(self) -> None:
        selector = _Selector()
        self._virtual_s = 0.0
        self._threads_before = frozenset(threading.enumerate())
        self._statement_count = 0
        self._work_count = 0
        self._idle: list[tuple[asyncio.Future[None], float]] = []
        self._jumped: list[asyncio.Future[None]] = []
        selector.loop = self
        self._map = selector.get_map()
        super().__init__(selector)

    def run_forever(self) -> None:
        """See `asyncio.AbstractEventLoop`."""
        with skipping(self.time):
            super().run_forever()

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._virtual_s

    def advance(self, seconds: float) -> None:
        """Move the clock."""
        self._virtual_s += seconds
        jumped, self._jumped = self._jumped, []
        for future in jumped:
            if not future.done():
                future.set_result(None)

    # -------------------------------------------------------------------------------------------- threads

    @contextmanager
    def working(self) -> Iterator[None]:
        """Say that a statement runs in a database's thread: the clock stands still meanwhile."""
        self._statement_count += 1
        try:
            yield
        finally:
            self._statement_count -= 1

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]  # Any: as typeshed has it
        """See `asyncio.AbstractEventLoop`."""
        future: asyncio.Future[T] = super().run_in_executor(executor, func, *args)
        self._work_count += 1
        future.add_done_callback(self._work_ended)
        return future

    def _work_ended(self, _future: asyncio.Future[Any]) -> None:
        self._work_count -= 1

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ARG002, ASYNC109 - as in asyncio
        """See `asyncio.AbstractEventLoop`.

        Waits until the threads have ended, however long the timeout: it counts virtual seconds, which would all pass
        at once while a thread needs a real moment to end.
        """
        await super().shutdown_default_executor()

    @property
    def grace_s(self) -> float:
        """Real seconds to wait for threads and sockets before the clock jumps."""
        if self._statement_count:
            return DATABASE_GRACE_S
        if self._work_count:
            return WORK_GRACE_S
        if len(self._map) > 1:  # the first is the loop's own, by which threads wake it
            return SOCKET_GRACE_S
        return THREAD_GRACE_S if self._has_unknown_threads else 0

    @property
    def _has_unknown_threads(self) -> bool:
        if threading.active_count() <= len(self._threads_before):
            return False
        sqlite = sys.modules.get("hailbus._sqlite")
        known = set(self._threads_before) | set(sqlite.THREADS if sqlite is not None else ())
        known |= set(getattr(getattr(self, "_default_executor", None), "_threads", ()))
        return any(thread not in known for thread in threading.enumerate())

    # -------------------------------------------------------------------------------------------- for settle()

    async def until_idle(self, *, real_timeout_s: float = 30.0) -> None:
        """Wait until all has happened that can happen without time passing.

        Raises:
            TimeoutError: The loop was busy for this long in real time: something spins.
        """
        future = self.create_future()
        self._idle.append((future, time.monotonic() + real_timeout_s))
        await future

    async def until_jump(self) -> None:
        """Wait until the clock moves to the next timer."""
        future = self.create_future()
        self._jumped.append(future)
        await future

    def tell_idle(self) -> bool:
        """Wake those who wait for an idle loop; whether there were any."""
        waiting, self._idle = self._idle, []
        for future, _ in waiting:
            if not future.done():
                future.set_result(None)
        return bool(waiting)

    def check_busy(self) -> None:
        """Give up on waiting for an idle loop where it has been busy for too long."""
        if not self._idle or time.monotonic() < self._idle[0][1]:
            return
        future, _ = self._idle.pop(0)
        if not future.done():
            future.set_exception(TimeoutError("the event loop never rests"))


class VirtualClock:
    """A wall clock that goes with the running loop's time.

    Args:
        start: The time that it returns when the loop's time is 0.
    """

    def __init__(self, start: datetime = EPOCH) -> None:
        self._start = start

    def __call__(self) -> datetime:
        """Return the present moment in virtual time."""
        return self._start + timedelta(seconds=asyncio.get_running_loop().time())


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as `asyncio.run` does, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
