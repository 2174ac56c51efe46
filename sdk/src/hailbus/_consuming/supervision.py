"""Tasks that should run for ever: restarted with backoff when they die; their owner fails when that does not help."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from hailbus._consuming.failure import StopReading, is_fatal

__all__ = ["Supervisor"]

log = logging.getLogger("hailbus.subscriber")
RESTART_FIRST_S = 0.2
RESTART_MAX_S = 10.0
MOST_RESTARTS = 6
"""In a row: the count restarts for a task that ran for `STEADY_AFTER_S`."""
STEADY_AFTER_S = 60.0


class Supervisor:
    """Runs tasks that should run for as long as their owner does.

    Args:
        owner: The owner of the tasks, for log lines: a group or a service.
        fail: Called with the reason when a task cannot be kept running.
    """

    def __init__(self, owner: str, *, fail: Callable[[BaseException], None]) -> None:
        self._owner = owner
        self._fail = fail
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self, name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Start a task and keep it running until it returns or is cancelled."""
        task = asyncio.get_running_loop().create_task(self._keep(name, work), name=f"hailbus-{name}-{self._owner}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _keep(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        restarts = 0
        while True:
            began_s = loop.time()
            try:
                await work()
            except StopReading as order:
                self._fail(order.error)
                return
            except BaseException as error:
                if is_fatal(error) or (isinstance(error, asyncio.CancelledError) and task.cancelling()):
                    raise
                if loop.time() - began_s >= STEADY_AFTER_S:
                    restarts = 0
                if restarts >= MOST_RESTARTS:
                    self._fail(error)
                    return
                delay_s = min(RESTART_FIRST_S * 2**restarts, RESTART_MAX_S)
                restarts += 1
                log.error(
                    "task_restarted: %s of %s died, restart %d of %d in %.1f s",
                    name,
                    self._owner,
                    restarts,
                    MOST_RESTARTS,
                    delay_s,
                    exc_info=error,
                )
                await asyncio.sleep(delay_s)
            else:
                return

    async def stop(self, *, but: Collection[asyncio.Task[None] | None] = ()) -> None:
        """Cancel all tasks, or all but some, and wait for them."""
        tasks = tuple(task for task in self._tasks if task not in but)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
