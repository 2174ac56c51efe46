"""Threads that are none: their work is done in the loop, soon."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

from hailbus_broker.runtime.threads import wait_for_work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

S = TypeVar("S")
T = TypeVar("T")


class SimulatedThreads:
    """Runs each piece of work in a turn of the loop of its own; see `runtime.threads.Threads`."""

    def __init__(self, count: int, name: str) -> None:
        self._loop: Final = asyncio.get_running_loop()
        self.count: Final = count
        self.name: Final = name

    def submit(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], object]) -> None:
        """See `Threads`."""
        self._loop.call_soon(self._run, work, done)

    def _run(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], object]) -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - `done` decides what it means; a simulated crash is no Exception
            done(None, error)
        else:
            done(result, None)

    async def run(self, work: Callable[[], T]) -> T:
        """See `Threads`."""
        return await wait_for_work(self, work)

    def map(self, function: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
        """See `Threads`."""
        return map(function, items)

    def close(self) -> None:
        """There is nothing to end."""
