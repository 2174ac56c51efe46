"""Outages: who probes what is away, and when the report of it ends."""

from __future__ import annotations

import asyncio
import random

import pytest
from hailbus._consuming.failure import Stage, StageError
from hailbus._consuming.outages import Outages
from hailbus._transport import TopicPartition
from hailbus.subscription import SubscriberStats
from hailbus.testing import run_virtual

PLACE = TopicPartition("work.v1", 0)


class Resource:
    """Refuses, hangs or answers."""

    def __init__(self, state: str) -> None:
        self.state = state
        self.calls = 0

    async def ask(self) -> str:
        self.calls += 1
        if self.state == "refuses":
            raise StageError(Stage.PARK, OSError("connection refused"))
        if self.state == "hangs":
            await asyncio.sleep(100_000)
        return "answer"


def outages_of(held: set[TopicPartition]) -> Outages:
    return Outages("workers", stats=SubscriberStats(), rng=random.Random(1), hold=held.add, release=held.discard)


def test_an_outage_ends_when_the_only_task_that_asks_is_cancelled() -> None:
    async def main() -> None:
        held: set[TopicPartition] = set()
        outages, resource = outages_of(held), Resource("hangs")
        task = asyncio.create_task(outages.reach("the store", [PLACE], resource.ask, slow_after_s=5))
        await asyncio.sleep(6)
        assert outages.reasons(after_s=0)
        assert held == {PLACE}
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert outages.reasons(after_s=0) == []
        assert held == set()

    run_virtual(main())


def test_another_task_probes_when_the_first_is_cancelled() -> None:
    async def main() -> None:
        held: set[TopicPartition] = set()
        outages, resource = outages_of(held), Resource("refuses")
        first = asyncio.create_task(outages.reach("the store", [PLACE], resource.ask))
        await asyncio.sleep(0)
        second = asyncio.create_task(outages.reach("the store", [PLACE], resource.ask))
        await asyncio.sleep(60)
        assert resource.calls < 20
        resource.state = "answers"
        first.cancel()
        assert await second == "answer"
        assert held == set()
        assert outages.reasons(after_s=0) == []

    run_virtual(main())
