"""When `--chaos` kills what, with processes that are none."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hailbus_demo.chaos import Chaos, Plan


class Processes:
    """A supervisor of processes that are ready as soon as they are there."""

    def __init__(self) -> None:
        self.children: dict[str, Any] = {"booking": SimpleNamespace(pid=7, ready_at=None)}
        self.killed: list[str] = []

    async def wait_ready(self, *names: str) -> None:
        assert set(names) <= self.children.keys()

    async def kill(self, name: str) -> None:
        self.killed.append(name)


def chaos(supervisor: Any, lake: asyncio.Future[None]) -> Chaos:
    return Chaos(supervisor, ["booking", "lake"], lake=lake, share_done=lambda: 1.0, say=lambda _: None)


async def test_a_lake_that_is_still_being_set_up_is_killed_once_it_is_there() -> None:
    processes = Processes()
    lake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(chaos(processes, lake).run())
    for _ in range(10):
        await asyncio.sleep(0)
    assert processes.killed == ["booking"]
    assert not running.done()
    processes.children["lake"] = SimpleNamespace(pid=8, ready_at=None)
    lake.set_result(None)
    await running
    assert processes.killed == ["booking", "lake"]


async def test_a_lake_that_cannot_be_set_up_ends_it() -> None:
    lake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    lake.set_exception(RuntimeError("no Spark"))
    with pytest.raises(RuntimeError, match="no Spark"):
        await chaos(Processes(), lake).run()


async def test_a_kill_knows_how_long_its_process_was_away_though_it_dies_again() -> None:
    processes = Processes()
    twice = Chaos(processes, ["booking", "booking"], share_done=lambda: 1.0, say=lambda _: None)  # type: ignore[arg-type]  # a double

    async def come_back(*_: str) -> None:
        if twice.kills:
            processes.children["booking"].ready_at = twice.kills[-1].at_s + 1.5

    processes.wait_ready = come_back  # type: ignore[method-assign]  # a double
    await twice.run()
    assert [kill.back_after_s for kill in twice.note_returns()] == [pytest.approx(1.5), pytest.approx(1.5)]


def test_a_seed_gives_the_same_plan_and_another_seed_another() -> None:
    victims = ["booking", "broker", "surge"]
    plan = Plan.draw(victims, kills=30, seed=7)
    assert plan == Plan.draw(victims, kills=30, seed=7)
    assert plan != Plan.draw(victims, kills=30, seed=8)
    moments = [moment for moment, _ in plan.kills]
    assert moments == sorted(moments)
    assert len(moments) == 30
    assert {victim for _, victim in plan.kills} == set(victims)
    assert all(0 < begins < ends < 1 for begins, ends, _ in plan.outages)
    assert all(ends < begins for (_, ends, _), (begins, _, _) in pairwise(plan.outages))
    assert len(plan.outages) == 3


async def test_a_random_kill_does_not_wait_until_others_are_back() -> None:
    processes = Processes()
    processes.children["surge"] = SimpleNamespace(pid=8, ready_at=None)
    asked: list[tuple[str, ...]] = []

    async def wait_ready(*names: str) -> None:
        asked.append(names)

    processes.wait_ready = wait_ready  # type: ignore[method-assign]  # of a fake
    moments = [0.1, 0.2]
    many = Chaos(
        processes,  # type: ignore[arg-type]  # a fake
        ["booking", "surge"],
        share_done=lambda: 1.0,
        say=lambda _: None,
        moments=moments,
        overlaps=True,
    )
    await many.run()
    assert processes.killed == ["booking", "surge"]
    assert asked[:2] == [("booking",), ("surge",)]
