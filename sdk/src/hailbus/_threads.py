"""The pool of threads in which handlers run that are plain functions."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

__all__ = ["HandlerThreads"]

log = logging.getLogger("hailbus.service")


class HandlerThreads:
    """Runs blocking functions beside the event loop, at most `size` of them at once; the others wait for a thread.

    The threads are started when the first function arrives, and live until `stop`.

    Args:
        size: Threads at most.
        name: The service, for the names of the threads.
    """

    def __init__(self, size: int, name: str) -> None:
        self.size = size
        self._name = name
        self._pool: ThreadPoolExecutor | None = None
        self._abandoned: set[asyncio.Task[Any]] = set()

    async def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the function in a thread, with the caller's context variables; await the result if it is awaitable.

        When the caller is cancelled, a function that waits for a thread is not called. One that runs cannot be
        interrupted: it runs to its end and its result is dropped.
        """
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.size, thread_name_prefix=f"hailbus-{self._name}")
        context = contextvars.copy_context()
        call = partial(context.run, _call, function, args, kwargs)
        result = await asyncio.get_running_loop().run_in_executor(self._pool, call)
        return await result if inspect.isawaitable(result) else result

    async def outlive(self, work: Callable[[Callable[[], bool]], Coroutine[Any, Any, Any]]) -> Any:
        """Await work that continues when the caller is cancelled, because a thread is in the middle of it.

        Args:
            work: Is given a function that says whether the caller has been cancelled meanwhile.
        """
        was_cancelled = False
        task = asyncio.get_running_loop().create_task(work(lambda: was_cancelled))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                was_cancelled = True
                self._abandoned.add(task)
                task.add_done_callback(self._forget)
            raise

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._abandoned.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("cancelled_handler_failed: its result would have been dropped anyway", exc_info=error)

    def stop(self) -> None:
        """Let the threads end once their functions return; does not wait for them."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return function(*args, **kwargs)
    except StopIteration as error:
        # A future refuses this exception, and its awaiter would wait for ever. Coroutines convert it in the same way.
        raise RuntimeError("the function raised StopIteration") from error
