"""Actions in event time: in order to within the window, bounded, and stoppable."""

import asyncio
from collections.abc import Iterator
from functools import partial

import pytest
from hailbus_demo.replay.stage import Stage


async def play(stage: Stage, times: list[int], seen: list[int], *, slow: int | None = None, until: int = 0) -> None:
    """Act out plans at these times; the `slow` one is done only after the one at `until`."""
    gate = asyncio.Event()

    async def act(planned: int, _: int) -> None:
        if planned == slow:
            await gate.wait()
        seen.append(planned)
        if planned == until:
            gate.set()

    await stage.run(iter(times), lambda at: (at, partial(act, at)))


async def test_plans_are_acted_in_order_of_time() -> None:
    seen: list[int] = []
    await play(Stage(limit=1), [0, 10, 500, 90_000, 400_000], seen)
    assert seen == [0, 10, 500, 90_000, 400_000]


async def test_nothing_overtakes_by_more_than_the_window() -> None:
    seen: list[int] = []
    await play(Stage(window_ms=20_000), list(range(0, 60_000, 1000)), seen, slow=0, until=19_000)
    before = seen[: seen.index(0)]
    assert before == list(range(1000, 20_000, 1000))
    assert sorted(seen) == list(range(0, 60_000, 1000))


async def test_actions_lead_to_others_and_background_does_not_keep_the_stage_alive() -> None:
    stage = Stage(window_ms=1000)
    seen: list[str] = []

    async def tick(at_ms: int) -> None:
        seen.append("tick")
        stage.at(at_ms + 1000, tick, background=True)

    async def first(at_ms: int) -> None:
        stage.at(at_ms + 5000, second)

    async def second(at_ms: int) -> None:
        seen.append(f"second at {at_ms}")

    stage.at(0, tick, background=True)
    async with asyncio.timeout(10):
        await stage.run(iter([0]), lambda at: (at, first))
    assert "second at 5000" in seen
    assert 5 <= seen.count("tick") <= 7


async def test_an_action_in_the_past_happens_now() -> None:
    stage = Stage()
    times: list[int] = []

    async def late(at_ms: int) -> None:
        times.append(at_ms)

    async def first(at_ms: int) -> None:
        stage.at(at_ms - 60_000, late)

    await stage.run(iter([100_000]), lambda at: (at, first))
    assert times == [100_000]


async def test_stop_begins_nothing_more() -> None:
    stage = Stage(limit=1)
    seen: list[int] = []

    def endless() -> Iterator[int]:
        at = 0
        while True:
            yield at
            at += 1000

    async def act(at_ms: int) -> None:
        seen.append(at_ms)
        if len(seen) == 10:
            stage.stop()

    await stage.run(endless(), lambda at: (at, act))
    assert len(seen) == 10


async def test_a_failure_ends_the_run() -> None:
    async def fail(at_ms: int) -> None:
        raise ValueError(f"at {at_ms}")

    with pytest.raises(ValueError, match="at 7"):
        await Stage().run(iter([7]), lambda at: (at, fail))
