"""How a dead process is released: its coroutines are closed where nothing can notice."""

from __future__ import annotations

import asyncio
import gc
import sys
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Collection

    from hailbus_broker.testing.simulation.process import SimulatedProcess

_TRIES: Final = 10
"""A coroutine that awaits in its `finally` is closed so often; each try takes it one `await` further."""


def bury(processes: Collection[SimulatedProcess]) -> None:
    """Close the coroutines of dead processes and collect what they leave.

    Closing runs their `finally` blocks. All that these can reach is dead: the loop drops what they schedule, transports
    what they write, the disk fails. What they raise is dropped, too.
    """
    hook = sys.unraisablehook
    sys.unraisablehook = lambda _error: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(_TRIES):
                for process in processes:
                    while process.grave:
                        _release(process)
                if not gc.collect():  # finalizers make tasks, and keep what refers to them for another collection
                    break
    finally:
        sys.unraisablehook = hook


def _release(process: SimulatedProcess) -> None:
    buried, process.grave[:] = list(process.grave), []
    for item in buried:
        if isinstance(item, asyncio.Task):
            # No warning that it was pending.
            item._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - asyncio has no other way
            process.call(_close, item.get_coro())


def _close(coroutine: Any) -> None:
    for _ in range(_TRIES):
        try:
            coroutine.close()
        except RuntimeError:  # it awaits while it is being closed
            continue
        except BaseException:  # noqa: BLE001 - nothing that a dead process raises matters
            with suppress(BaseException):
                coroutine.close()
        return
