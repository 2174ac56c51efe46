"""Signals that stop a process, on every platform that asyncio runs on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Iterator
from types import FrameType

__all__ = ["on_stop_signal"]

log = logging.getLogger("hailbus.service")
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def on_stop_signal(callback: Callable[[], object]) -> Iterator[None]:
    """Call `callback` in the running event loop at each SIGTERM and SIGINT that arrives inside this context.

    The handlers that were installed before are restored afterwards. Event loops on Windows have no signal handlers, so
    the interpreter's own are used there. Outside the main thread Python delivers no signals: then nothing is installed.
    """
    loop = asyncio.get_running_loop()

    def from_interpreter(_number: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(callback)

    with contextlib.ExitStack() as installed:
        for number in STOP_SIGNALS:
            previous = signal.getsignal(number)
            try:
                loop.add_signal_handler(number, callback)
            except NotImplementedError:
                signal.signal(number, from_interpreter)
                installed.callback(signal.signal, number, previous)
            except (RuntimeError, ValueError):
                log.debug("no_signal_handlers: %s is handled by the main thread only", number.name)
                break
            else:
                installed.callback(signal.signal, number, previous)  # the event loop restores the default, not this
                installed.callback(loop.remove_signal_handler, number)
        yield
