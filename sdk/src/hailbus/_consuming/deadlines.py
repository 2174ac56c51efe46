"""Deadlines of handler calls: one timer for all calls in progress, so that a call costs two dictionary operations."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from math import inf
from typing import Any, TypeVar

from hailbus.errors import HandlerDeadlineError

__all__ = ["Deadlines"]

T = TypeVar("T")


class Deadlines:
    """Cancels handler calls that run past their deadline."""

    def __init__(self) -> None:
        self.until: dict[asyncio.Task[Any], float] = {}
        """The calls in progress. A task that has gone from here has been cancelled at its deadline."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = inf

    def begin(self, task: asyncio.Task[Any], until_s: float) -> None:
        """Cancel the task when it has not called `end` by then."""
        self.until[task] = until_s
        if until_s < self._timer_s:
            self._set_timer(until_s)

    def end(self, task: asyncio.Task[Any]) -> None:
        """The call has returned in time, or swallowed its cancellation."""
        if self.until.pop(task, None) is None:
            task.uncancel()

    def failure(
        self, task: asyncio.Task[Any], error: BaseException, *, handler: str, deadline_s: float
    ) -> BaseException:
        """What a call failed with: `HandlerDeadlineError` when it was cancelled at its deadline, else its own error."""
        is_late = self.until.pop(task, None) is None
        # Somebody else may have cancelled the task as well.
        if is_late and task.uncancel() == 0 and isinstance(error, asyncio.CancelledError):
            return HandlerDeadlineError(handler=handler, deadline_s=deadline_s)
        return error

    async def within(self, handler: str, deadline_s: float, call: Awaitable[T]) -> T:
        """Await a handler's call.

        Raises:
            HandlerDeadlineError: It ran past its deadline and was cancelled.
        """
        task = asyncio.current_task()
        assert task is not None
        self.begin(task, asyncio.get_running_loop().time() + deadline_s)
        try:
            found = await call
        except BaseException as error:
            failure = self.failure(task, error, handler=handler, deadline_s=deadline_s)
            if failure is error:
                raise
            raise failure from None
        self.end(task)
        return found

    def _set_timer(self, when_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(when_s, self._look)
        self._timer_s = when_s

    def _look(self) -> None:
        self._timer, self._timer_s = None, inf
        now_s = asyncio.get_running_loop().time()
        for task, until_s in list(self.until.items()):
            if until_s <= now_s:
                del self.until[task]
                task.cancel()
        if self.until:
            self._set_timer(min(self.until.values()))

    def stop(self) -> None:
        """Forget the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_s = None, inf
