"""Deadlines of handler calls: one timer for all calls in progress, so that a call costs two dictionary operations."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from hailbus.errors import HandlerDeadlineError

__all__ = ["Deadlines"]

T = TypeVar("T")


class Deadlines:
    """Cancels handler calls that run past their deadline."""

    def __init__(self) -> None:
        self._until: dict[asyncio.Task[object], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def within(self, handler: str, deadline_s: float, call: Awaitable[T]) -> T:
        """Await a handler's call.

        Raises:
            HandlerDeadlineError: It ran past its deadline and was cancelled.
        """
        task = asyncio.current_task()
        assert task is not None
        until_s = asyncio.get_running_loop().time() + deadline_s
        self._until[task] = until_s
        timer = self._timer
        if timer is None or until_s < timer.when():
            self._set_timer(until_s)
        try:
            return await call
        except asyncio.CancelledError:
            # Taken out of the table: cancelled by the timer, unless somebody else cancels the task as well.
            if task in self._until or task.uncancel() > 0:
                raise
            raise HandlerDeadlineError(handler=handler, deadline_s=deadline_s) from None
        finally:
            self._until.pop(task, None)

    def _set_timer(self, when_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(when_s, self._look)

    def _look(self) -> None:
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        for task, until_s in list(self._until.items()):
            if until_s <= now_s:
                del self._until[task]
                task.cancel()
        if self._until:
            self._set_timer(min(self._until.values()))

    def stop(self) -> None:
        """Forget the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
