"""Handles, timers, futures and tasks of a simulated loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    import contextvars
    from collections.abc import Callable, Sequence

    from hailbus_broker.testing.simulation.loop import SimulatedLoop
    from hailbus_broker.testing.simulation.process import SimulatedProcess

T = TypeVar("T")


class SimulatedHandle(asyncio.Handle):
    """A callback of one process."""

    __slots__ = ("process",)

    def __init__(
        self,
        process: SimulatedProcess,
        callback: Callable[..., object],
        args: Sequence[Any],
        loop: SimulatedLoop,
        context: contextvars.Context,
    ) -> None:
        # The attributes of `asyncio.Handle` that matter, without the call of its constructor.
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = context
        self._cancelled = False
        self.process = process

    def __repr__(self) -> str:
        return f"<SimulatedHandle of {self.process.name}: {name_of(self)}>"


class SimulatedTimer(asyncio.TimerHandle):
    """A timer of one process."""

    __slots__ = ("number", "process")

    def __init__(
        self,
        process: SimulatedProcess,
        when: float,
        callback: Callable[..., object],
        args: Sequence[Any],
        loop: SimulatedLoop,
        context: contextvars.Context,
        number: int,
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self.process = process
        self.number = number

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class KernelEvent:
    """Something that happens at a time and belongs to no process: a packet arrives, a thread ends."""

    __slots__ = ("_cancelled", "action")

    def __init__(self, action: Callable[[], object]) -> None:
        self.action = action
        self._cancelled = False  # as in `asyncio.Handle`: the loop looks at both in one way

    def cancel(self) -> None:
        """Let it not happen."""
        self._cancelled = True


def _number_of(future: SimulatedFuture[Any] | SimulatedTask[Any]) -> int:
    """Return the number of a future, given when it is asked for first."""
    number = future._number  # noqa: SLF001 - of this module
    if number is None:
        loop = cast("SimulatedLoop", future.get_loop())
        number = future._number = loop.next_number()  # noqa: SLF001 - of this module
    return number


class SimulatedFuture(asyncio.Future[T]):
    """A future whose hash is a number from a sequence, so that sets of futures have one order in every run."""

    _number: int | None = None

    def __hash__(self) -> int:
        return _number_of(self)


class SimulatedTask(asyncio.Task[T]):
    """A task of one process, with a hash like that of `SimulatedFuture`."""

    process: SimulatedProcess
    _number: int | None = None

    def __hash__(self) -> int:
        return _number_of(self)


def name_of(handle: asyncio.Handle) -> str:
    """Return the name of a handle's callback."""
    callback: object = handle._callback  # type: ignore[attr-defined]  # noqa: SLF001 - an attribute of asyncio's
    return str(getattr(callback, "__qualname__", None) or type(callback).__name__)
