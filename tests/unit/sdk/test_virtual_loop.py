"""Threads beside an event loop with virtual time."""

import asyncio
import threading

from hailbus.testing.virtual import run_virtual


def test_a_loop_that_closes_waits_for_the_threads_of_its_executor() -> None:
    """Since Python 3.12 a runner gives them 300 s and warns after it, which here are not 300 s of virtual time."""
    has_begun, never, is_over = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        has_begun.set()
        assert not never.wait(0.5)  # real time
        is_over.set()

    async def main() -> None:
        future = asyncio.get_running_loop().run_in_executor(None, work)
        assert has_begun.wait(20)
        future.cancel()

    run_virtual(main())
    assert is_over.is_set()
