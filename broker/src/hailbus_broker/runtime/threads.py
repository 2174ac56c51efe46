"""Work that waits for the disk or takes long, outside of the event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

S = TypeVar("S")
T = TypeVar("T")


class Threads(Protocol):
    """The port to a pool of threads. The simulator has one that runs the work in the loop, later."""

    def submit(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], object]) -> None:
        """Run `work` in a thread, then `done` in the loop, with the result or with what was raised."""
        ...

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread and wait for it.

        A caller that is cancelled waits for the end of the work first: nothing runs in a thread that nobody awaits.
        """
        ...

    def map(self, function: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
        """Call a function for each item, in several threads, and wait for all of them. Blocks the loop."""
        ...

    def close(self) -> None:
        """Wait for what runs and end the threads."""
        ...


class ThreadPool:
    """Threads of this process; see `Threads`.

    Args:
        count: At most so many; each is started when it is needed first.
        name: Prefix of the threads' names.
    """

    def __init__(self, count: int, name: str) -> None:
        self._loop: Final = asyncio.get_running_loop()
        self._pool: Final = ThreadPoolExecutor(count, thread_name_prefix=name)

    def submit(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], object]) -> None:
        """See `Threads`."""
        self._pool.submit(self._run, work, done)

    def _run(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], object]) -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = work()
        except BaseException as raised:  # noqa: BLE001 - it is raised again in the loop
            error = raised
        with suppress(RuntimeError):  # the loop is gone when the process ends
            self._loop.call_soon_threadsafe(done, result, error)

    async def run(self, work: Callable[[], T]) -> T:
        """See `Threads`."""
        return await wait_for_work(self, work)

    def map(self, function: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
        """See `Threads`."""
        return self._pool.map(function, items)

    def close(self) -> None:
        """See `Threads`."""
        self._pool.shutdown(wait=True)


async def wait_for_work(threads: Threads, work: Callable[[], T]) -> T:
    """What `Threads.run` promises, by `submit`."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: T | None, error: BaseException | None) -> None:
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # T may have None among its values

    threads.submit(work, done)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        future.exception()  # nobody else asks for it
        raise
