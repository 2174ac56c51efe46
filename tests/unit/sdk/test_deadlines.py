"""One timer cancels each handler's call at its own deadline, and only that call."""

from __future__ import annotations

import asyncio

import pytest
from hailbus._consuming.deadlines import Deadlines
from hailbus.errors import HandlerDeadlineError

pytestmark = pytest.mark.usefixtures("virtual_time")


def now() -> float:
    return asyncio.get_running_loop().time()


async def ended_at(deadlines: Deadlines, deadline_s: float, lasts_s: float) -> tuple[float, bool]:
    """Run a call: when it ended, and whether its deadline ended it."""
    try:
        await deadlines.within("take", deadline_s, asyncio.sleep(lasts_s))
    except HandlerDeadlineError:
        return now(), True
    return now(), False


async def test_each_call_ends_at_its_own_deadline_whatever_their_order() -> None:
    deadlines = Deadlines()
    found = await asyncio.gather(
        ended_at(deadlines, 5, 60),
        ended_at(deadlines, 2, 60),
        ended_at(deadlines, 9, 60),
        ended_at(deadlines, 2, 1),
    )
    assert list(found) == [(5, True), (2, True), (9, True), (1, False)]


async def test_the_error_names_the_handler_and_its_deadline() -> None:
    with pytest.raises(HandlerDeadlineError) as found:
        await Deadlines().within("take", 5, asyncio.sleep(60))
    assert (found.value.handler, found.value.deadline_s) == ("take", 5)


async def test_a_deadline_holds_after_the_timer_of_an_earlier_one_has_rung() -> None:
    deadlines = Deadlines()
    assert await ended_at(deadlines, 1, 60) == (1, True)
    assert await ended_at(deadlines, 1, 60) == (2, True)
    assert await ended_at(deadlines, 3, 2) == (4, False)
    assert await ended_at(deadlines, 2, 60) == (6, True)


async def test_a_task_is_not_cancelled_after_its_call_has_ended() -> None:
    deadlines = Deadlines()
    await deadlines.within("take", 1, asyncio.sleep(0))
    await asyncio.sleep(10)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_call_that_is_cancelled_from_outside_did_not_pass_its_deadline() -> None:
    deadlines = Deadlines()
    task = asyncio.ensure_future(deadlines.within("take", 5, asyncio.sleep(60)))
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


async def test_a_call_that_is_cancelled_from_outside_at_its_deadline_stays_cancelled() -> None:
    deadlines = Deadlines()
    task = asyncio.ensure_future(deadlines.within("take", 5, asyncio.sleep(60)))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_at(5, task.cancel)
    await asyncio.wait({task})
    assert task.cancelled()


async def test_after_a_deadline_the_task_can_be_cancelled_as_before() -> None:
    deadlines = Deadlines()

    async def run() -> None:
        with pytest.raises(HandlerDeadlineError):
            await deadlines.within("take", 1, asyncio.sleep(60))
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        async with asyncio.timeout(1):
            await asyncio.sleep(0.5)

    await run()


async def test_a_handler_that_ignores_its_cancellation_has_its_result_taken() -> None:
    deadlines = Deadlines()

    async def stubborn() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "done nevertheless"
        return "late"

    assert await deadlines.within("take", 1, stubborn()) == "done nevertheless"


async def test_stopping_leaves_no_timer_behind() -> None:
    deadlines = Deadlines()
    deadlines.stop()
    call = asyncio.ensure_future(ended_at(deadlines, 1, 5))
    await asyncio.sleep(0.5)
    deadlines.stop()
    assert await call == (5, False)
    assert await ended_at(deadlines, 1, 5) == (6, True)
