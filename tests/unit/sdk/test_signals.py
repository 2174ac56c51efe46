"""Stopping by a signal on event loops with and without signal handlers, and outside the main thread."""

import asyncio
import os
import signal
import threading
from functools import partial
from typing import Any

import pytest
from hailbus._signals import on_stop_signal


class _Windows(asyncio.SelectorEventLoop):
    def add_signal_handler(self, sig: int, callback: object, *args: object) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN], ids=["default", "ignored"])
@pytest.mark.parametrize("factory", [asyncio.SelectorEventLoop, _Windows])
def test_a_signal_calls_back_and_handlers_are_restored(
    factory: type[asyncio.SelectorEventLoop],
    handler: Any,  # Any: what `signal.signal` takes
    request: pytest.FixtureRequest,
) -> None:
    request.addfinalizer(partial(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, handler)))
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

    async def main() -> None:
        stop = asyncio.Event()
        with on_stop_signal(stop.set):
            os.kill(os.getpid(), signal.SIGTERM)
            async with asyncio.timeout(10):
                await stop.wait()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_outside_the_main_thread_nothing_is_installed_and_nothing_fails() -> None:
    done: list[str] = []

    async def main() -> None:
        with on_stop_signal(lambda: None):
            done.append("ran")

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    thread.join(10)
    assert done == ["ran"]
