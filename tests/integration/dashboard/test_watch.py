"""When the dashboard reads the log anew, and when it must not."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest
from dashboard.adapters import watch as watching
from dashboard.adapters.watch import Watch
from dashboard.domain.city import City
from hailbus import TopicPartition
from hailbus.testing import MemoryBus
from hailbus.testing.memory import MemoryAdmin

from tests.integration.dashboard.city import story


class ForgetfulBus(MemoryBus):
    """A bus whose next `forgets` answers about ends name half of each log: a new leader's high watermark lags."""

    def __init__(self) -> None:
        super().__init__()
        self.forgets = 0
        self.asked = 0

    def admin(self, *, client_id: str) -> "ForgetfulAdmin":
        return ForgetfulAdmin(self)


class ForgetfulAdmin(MemoryAdmin):
    """See `ForgetfulBus`."""

    def __init__(self, bus: ForgetfulBus) -> None:
        super().__init__(bus)
        self._forgetful = bus

    async def end_offsets(self, topics: Sequence[str]) -> Mapping[TopicPartition, int]:
        found = await super().end_offsets(topics)
        bus = self._forgetful
        bus.asked += 1
        if bus.forgets:
            bus.forgets -= 1
            return {tp: end // 2 for tp, end in found.items()}
        return found


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, at most 20 s."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - a bus in memory and a city announce nothing
            await asyncio.sleep(0.01)


@asynccontextmanager
async def watched(bus: ForgetfulBus) -> AsyncIterator[Watch]:
    watch = Watch(bus, lambda: City(tick_s=0.25))
    tasks = [asyncio.create_task(work) for work in (watch.read(), watch.poll())]
    try:
        yield watch
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_new_leader_that_knows_less_for_a_moment_is_no_new_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_POLL_S", 0.01)
    bus = ForgetfulBus()
    async with story(bus) as tell, watched(bus) as watch:
        await tell.ride("one", until="completed")
        await until(lambda: watch.city.rides.counts.completed == 1)
        city = watch.city
        bus.forgets, known = 2, bus.asked
        await until(lambda: bus.asked >= known + 8)
        await tell.ride("two")
        await until(lambda: watch.city.rides.counts.requested == 2)
        assert watch.city is city
        await until(lambda: watch.status.behind == 0)


async def test_a_log_that_stays_shorter_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_POLL_S", 0.01)
    bus = ForgetfulBus()
    async with story(bus) as tell, watched(bus) as watch:
        await tell.ride("one")
        await until(lambda: watch.city.rides.counts.requested == 1)
        city = watch.city
        bus.forgets = 3
        await until(lambda: not bus.forgets)
        await tell.ride("two")
        await until(lambda: watch.city is not city and watch.city.rides.counts.requested == 2)
