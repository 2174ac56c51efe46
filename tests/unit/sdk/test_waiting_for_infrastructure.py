"""One task probes what is away, the others wait for it, and the partitions that need it are held meanwhile."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hailbus import TopicPartition
from hailbus._consuming.failure import Stage, StageError
from hailbus._consuming.outages import Outages
from hailbus.subscription import SubscriberStats

pytestmark = pytest.mark.usefixtures("virtual_time")

P0, P1 = TopicPartition("rides", 0), TopicPartition("rides", 1)
INBOX, LOT = "the inbox", "the parking lot"


class Steady(random.Random):
    """No jitter: delays are 0.2, 0.4, 0.8, … 10 s."""

    def random(self) -> float:
        return 0.5


class Member:
    """Notes which partitions are held, and counts the calls of a resource that can be away."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, int]] = []
        self.stats = SubscriberStats()
        self.is_away = True
        self.asked: list[float] = []
        self.outages = Outages(
            "till",
            stats=self.stats,
            rng=Steady(),
            hold=lambda partition: self.changes.append(("hold", partition.partition)),
            release=lambda partition: self.changes.append(("release", partition.partition)),
        )

    async def ask(self) -> str:
        self.asked.append(round(now(), 6))
        if self.is_away:
            raise StageError(Stage.CLAIM, ConnectionError(f"refused {len(self.asked)}"))
        return "answer"

    def reach(
        self, *partitions: TopicPartition, resource: str = INBOX, step: Callable[[], Awaitable[Any]] | None = None
    ) -> asyncio.Task[Any]:
        return asyncio.ensure_future(self.outages.reach(resource, partitions or (P0,), step or self.ask))


def now() -> float:
    return asyncio.get_running_loop().time()


async def cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait({task})


async def test_a_resource_is_asked_with_growing_delays_until_it_answers(caplog: pytest.LogCaptureFixture) -> None:
    member = Member()
    with caplog.at_level(logging.INFO, "hailbus.subscriber"):
        await asyncio.sleep(100)
        task = member.reach(P0, P1)
        await asyncio.sleep(30)
        assert [round(at - 100, 6) for at in member.asked] == [0, 0.2, 0.6, 1.4, 3.0, 6.2, 12.6, 22.6]
        assert member.changes == [("hold", 0), ("hold", 1)]
        member.is_away = False
        assert await task == "answer"
    assert sorted(member.changes[2:]) == [("release", 0), ("release", 1)]
    assert member.stats.outages == 1
    away, back = [line.getMessage() for line in caplog.records]
    assert "waits for the inbox, rides-0, rides-1 is paused: " in away
    assert back == "infrastructure_back: group till reaches the inbox after 32.6 s"


async def test_a_resource_that_answers_holds_nothing() -> None:
    member = Member()
    member.is_away = False
    assert await member.reach() == "answer"
    assert (member.changes, member.stats.outages) == ([], 0)


async def test_one_task_asks_and_the_others_wait_for_what_it_finds() -> None:
    member = Member()
    tasks = [member.reach(P0), member.reach(P0), member.reach(P1)]
    await asyncio.sleep(0.1)
    assert len(member.asked) == 3
    assert member.outages.waiting == set(tasks)
    await asyncio.sleep(10)
    assert len(member.asked) == 3 + 5, "one asks again, not three"
    member.is_away = False
    await asyncio.wait(tasks)
    assert member.outages.waiting == set()
    assert member.changes[:2] == [("hold", 0), ("hold", 1)]
    assert sorted(member.changes[2:]) == [("release", 0), ("release", 1)]
    assert member.stats.outages == 1


async def test_when_the_task_that_asks_is_cancelled_another_one_asks() -> None:
    member = Member()
    first, second = member.reach(P0), member.reach(P0)
    await asyncio.sleep(0.1)
    await cancel(first)
    asked_count = len(member.asked)
    await asyncio.sleep(20)
    assert len(member.asked) > asked_count
    assert member.outages.is_held(P0)
    member.is_away = False
    assert await second == "answer"
    assert not member.outages.is_held(P0)


async def test_when_the_task_that_asks_is_cancelled_within_its_step_another_one_asks() -> None:
    member = Member()

    async def hang() -> str:
        if len(member.asked) > 1:
            await asyncio.Event().wait()
        return await member.ask()

    first, second = member.reach(P0, step=hang), member.reach(P0)
    await asyncio.sleep(1)  # the first asks and gets no answer
    await cancel(first)
    member.is_away = False
    async with asyncio.timeout(30):
        assert await second == "answer"


async def test_when_nobody_is_left_to_ask_the_partition_is_released() -> None:
    member = Member()
    task = member.reach(P0)
    await asyncio.sleep(1)
    await cancel(task)
    assert member.changes == [("hold", 0), ("release", 0)]
    assert not member.outages.is_held(P0)
    assert member.outages.reasons(after_s=0) == []


async def test_a_cancelled_task_that_only_waited_changes_nothing() -> None:
    member = Member()
    first, second = member.reach(P0), member.reach(P0)
    await asyncio.sleep(0.1)
    await cancel(second)
    assert member.outages.is_held(P0)
    member.is_away = False
    assert await first == "answer"


@pytest.mark.parametrize(
    "error", [StageError(Stage.CLAIM, ValueError("our defect")), KeyError("the handler's"), asyncio.CancelledError()]
)
async def test_another_error_says_that_the_resource_was_reached(error: BaseException) -> None:
    member = Member()
    count = 0

    async def step() -> None:
        nonlocal count
        count += 1
        if count < 3:
            raise StageError(Stage.CLAIM, ConnectionError("refused"))
        raise error

    with pytest.raises(type(error)):
        await member.outages.reach(INBOX, [P0], step)
    assert count == 3
    assert member.changes == [("hold", 0), ("release", 0)]


async def test_a_partition_that_needs_two_resources_is_released_when_both_are_back() -> None:
    member = Member()
    lot = Member()
    inbox_task, lot_task = member.reach(P0, P1), member.reach(P0, resource=LOT, step=lot.ask)
    await asyncio.sleep(1)
    member.is_away = False
    await inbox_task
    assert ("release", 1) in member.changes
    assert ("release", 0) not in member.changes
    assert member.outages.is_held(P0)
    lot.is_away = False
    await lot_task
    assert member.changes.count(("release", 0)) == 1
    assert not member.outages.is_held(P0)
    assert member.stats.outages == 2


async def test_a_step_that_takes_long_is_reported_while_it_runs() -> None:
    member = Member()
    answer = asyncio.Event()

    async def slow() -> None:
        await answer.wait()

    task = asyncio.ensure_future(member.outages.reach(INBOX, [P0], slow, slow_after_s=5))
    await asyncio.sleep(4.9)
    assert member.changes == []
    await asyncio.sleep(0.2)
    assert member.changes == [("hold", 0)]
    assert member.outages.reasons(after_s=0) == [
        "group till waits for the inbox since 0 s, rides-0 paused: no answer for 5 s"
    ]
    answer.set()
    await task
    assert member.changes == [("hold", 0), ("release", 0)]


async def test_a_step_that_ends_in_time_is_not_reported_later() -> None:
    member = Member()
    member.is_away = False
    await member.outages.reach(INBOX, [P0], member.ask, slow_after_s=5)
    await asyncio.sleep(10)
    assert member.changes == []


async def test_an_outage_is_a_reason_once_it_lasts_longer_than_is_allowed() -> None:
    member = Member()
    await asyncio.sleep(100)
    inbox, lot = member.reach(P1, P0), member.reach(P0, resource=LOT)
    await asyncio.sleep(4.9)
    assert member.outages.reasons(after_s=5) == []
    await asyncio.sleep(0.1)
    first, second = member.outages.reasons(after_s=5)
    assert first.startswith("group till waits for the inbox since 5 s, rides-0, rides-1 paused: ")
    assert second.startswith("group till waits for the parking lot since 5 s, rides-0 paused: ")
    assert "refused" in first
    await asyncio.gather(cancel(inbox), cancel(lot))


async def test_partitions_that_have_gone_end_the_outages_that_concern_no_other() -> None:
    member = Member()
    both, one = member.reach(P0, P1), member.reach(P0, resource=LOT)
    await asyncio.sleep(1)
    member.outages.forget([P0])
    (reason,) = member.outages.reasons(after_s=0)
    assert "the inbox" in reason
    assert "rides-1 paused" in reason
    assert not member.outages.is_held(P0)
    assert member.outages.is_held(P1)
    await asyncio.gather(cancel(both), cancel(one))


async def test_those_who_wait_for_a_forgotten_outage_look_for_themselves() -> None:
    member = Member()
    asking, waiting = member.reach(P0), member.reach(P0)
    await asyncio.sleep(0.1)
    member.outages.forget([P0])
    member.is_away = False
    assert await asyncio.wait_for(waiting, 0.01) == "answer"
    await cancel(asking)
