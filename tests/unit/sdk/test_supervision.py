"""A task that dies is restarted with growing delays; its owner fails when that does not help."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest
from hailbus import UnknownEventError
from hailbus._consuming.failure import StopReading
from hailbus._consuming.supervision import Supervisor

pytestmark = pytest.mark.usefixtures("virtual_time")


class Owner:
    """Runs a task under supervision and writes down when it began and why the owner failed."""

    def __init__(self) -> None:
        self.began: list[float] = []
        self.failures: list[BaseException] = []
        self.supervisor = Supervisor("till", fail=self.failures.append)

    def run(self, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        async def noted() -> None:
            self.began.append(round(asyncio.get_running_loop().time(), 6))
            await work()

        return self.supervisor.run("read", noted)

    @property
    def waited(self) -> list[float]:
        return [round(b - a, 6) for a, b in zip(self.began, self.began[1:], strict=False)]


async def forever() -> None:
    await asyncio.Event().wait()


async def test_a_task_that_dies_at_once_is_restarted_six_times_with_doubled_delays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    owner = Owner()
    error = RuntimeError("it dies")

    async def die() -> None:
        raise error

    await owner.run(die)
    assert owner.waited == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4]
    assert owner.failures == [error]
    assert sum("task_restarted" in line.getMessage() for line in caplog.records) == 6


async def test_restarts_are_counted_anew_after_a_task_has_run_for_a_minute() -> None:
    owner = Owner()
    lives = iter([0.0, 0.0, 59.0, 60.0, 0.0])

    async def work() -> None:
        life_s = next(lives, None)
        if life_s is None:
            return
        await asyncio.sleep(life_s)
        raise RuntimeError("it dies")

    await owner.run(work)
    assert owner.waited == [0.2, 0.4, 59.8, 60.2, 0.4]
    assert owner.failures == []


async def test_a_task_that_dies_now_and_then_is_restarted_for_ever() -> None:
    owner = Owner()

    async def work() -> None:
        await asyncio.sleep(61)
        raise RuntimeError("it dies")

    task = owner.run(work)
    await asyncio.sleep(3600)
    assert not task.done()
    assert owner.failures == []
    await owner.supervisor.stop()


async def test_a_task_that_returns_has_done_its_work() -> None:
    owner = Owner()

    async def work() -> None:
        return

    await owner.run(work)
    await asyncio.sleep(60)
    assert len(owner.began) == 1


async def test_the_order_to_stop_reading_fails_the_owner_with_its_reason() -> None:
    owner = Owner()
    reason = UnknownEventError(type="ride.moved", topic="rides")

    async def work() -> None:
        raise StopReading(reason)

    await owner.run(work)
    assert (owner.failures, len(owner.began)) == ([reason], 1)


async def test_a_cancellation_by_the_work_itself_is_a_death_and_one_from_outside_is_the_end() -> None:
    owner = Owner()

    async def work() -> None:
        if len(owner.began) == 1:
            raise asyncio.CancelledError
        await forever()

    task = owner.run(work)
    await asyncio.sleep(1)
    assert owner.waited == [0.2]
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert owner.failures == []


async def test_an_exception_that_ends_the_process_is_not_judged() -> None:
    owner = Owner()

    async def work() -> None:
        raise GeneratorExit

    task = owner.run(work)
    await asyncio.wait({task})
    assert isinstance(task.exception(), GeneratorExit)
    assert (len(owner.began), owner.failures) == (1, [])


async def test_stopping_cancels_all_tasks_but_those_that_are_named(caplog: pytest.LogCaptureFixture) -> None:
    owner = Owner()
    reading, handling = owner.run(forever), owner.run(forever)
    ended = owner.run(forever)
    await asyncio.sleep(1)
    ended.cancel()
    with caplog.at_level(logging.INFO, "hailbus.subscriber"):
        await owner.supervisor.stop(but=[handling, None])
        assert (reading.cancelled(), handling.done()) == (True, False)
        await owner.supervisor.stop()
    assert handling.cancelled()
    assert caplog.records == []
