"""Work that a simulated process does in a thread: called once, as a whole, outside of its event loop's turn."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.testing.simulation.errors import SimulatedCrashError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hailbus_broker.testing.simulation.loop import SimulatedLoop
    from hailbus_broker.testing.simulation.process import SimulatedProcess

_PAUSED_THREAD_S: Final = 0.001


class ThreadWork:
    """A piece of work of a simulated thread."""

    __slots__ = ("_done", "_duration_s", "_loop", "_process", "_work")

    def __init__(
        self,
        loop: SimulatedLoop,
        process: SimulatedProcess,
        work: Callable[[], Any],
        done: Callable[[Any, BaseException | None], object],
        duration_s: Callable[[], float],
    ) -> None:
        self._loop = loop
        self._process = process
        self._work = work
        self._done = done
        self._duration_s = duration_s

    def run(self) -> None:
        """Do it, unless the process is stopped or dead."""
        loop, process = self._loop, self._process
        if not process.is_alive:
            return
        if process.is_paused:
            loop.after(_PAUSED_THREAD_S, self.run)
            return
        result: Any = None
        error: BaseException | None = None
        asyncio._set_running_loop(None)  # noqa: SLF001 - no loop runs in a thread
        try:
            result = process.call(self._work)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as raised:  # noqa: BLE001 - `done` decides what it means
            error = raised
        finally:
            asyncio._set_running_loop(loop)  # noqa: SLF001 - see above
        if isinstance(error, SimulatedCrashError):
            return
        took_s = self._duration_s()
        loop.record(process.name, "thread done" if error is None else f"thread failed {type(error).__name__}")
        if took_s > 0:
            loop.after(took_s, partial(loop.schedule, process, self._done, result, error))
        else:
            loop.schedule(process, self._done, result, error)
