"""Collecting batches: when one is full, what waits, what a retry holds back, and where a new run begins."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hailbus import TopicPartition
from hailbus._consuming.batches import BatchRunner
from hailbus._consuming.progress import Partitions
from hailbus._consuming.work import Part, Route
from hailbus.delivery import AtLeastOnce
from hailbus.settlement import SettledPrefix
from hailbus.subscription import SubscriberSettings, SubscriberStats
from hailbus.testing import VirtualClock

pytestmark = pytest.mark.usefixtures("virtual_time")

P0, P1 = TopicPartition("rides", 0), TopicPartition("rides", 1)


class Runner:
    """A runner whose batches are collected by the test: records are (offset, key, size)."""

    def __init__(self, **bounds: Any) -> None:
        options = {"max_items": 4, "max_bytes": 100, "max_wait": timedelta(seconds=1), **bounds}
        subscription: Any = SimpleNamespace(name="take", delivery=AtLeastOnce(), deadline=None, **options)
        nothing: Any = None
        self.prefixes = {P0: SettledPrefix(), P1: SettledPrefix()}
        self.runner = BatchRunner(
            "till",
            subscription,
            router=nothing,
            partitions=Partitions(
                stats=SubscriberStats(),
                settings=SubscriberSettings(),
                clock=VirtualClock(),
                resume=lambda _partition: None,
            ),
            path=nothing,
            caller=nothing,
            stats=SubscriberStats(),
            rng=random.Random(1),
            keep=lambda runner: asyncio.ensure_future(runner.run()),
            ended=lambda: None,
        )

    def part(self, partition: TopicPartition, *offsets: int, size: int = 1, key: bytes = b"k") -> Part:
        records: Any = [
            SimpleNamespace(offset=offset, key=key, value=b"x" * size, topic="rides", partition=partition.partition)
            for offset in offsets
        ]
        return Part(partition, self.prefixes[partition], records, Route(None, None))

    def push(self, partition: TopicPartition, *offsets: int, size: int = 1, key: bytes = b"k") -> None:
        for offset in offsets:
            self.prefixes[partition].received(offset)
        self.runner.push(self.part(partition, *offsets, size=size, key=key))

    async def collect(self) -> tuple[list[int], float]:
        """The offsets of the next batch, and how long it took to come."""
        began_s = now()
        batch = await self.runner._collect()
        return [record.offset for part in batch for record in part.records], now() - began_s


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_full_batch_comes_at_once_and_another_after_its_wait() -> None:
    r = Runner()
    r.push(P0, 0, 1, 2, 3, 4, 5)
    assert await r.collect() == ([0, 1, 2, 3], 0)
    assert await r.collect() == ([4, 5], 1)


async def test_parts_are_put_together_and_split_where_the_batch_is_full() -> None:
    r = Runner()
    r.push(P0, 0, 1)
    r.push(P1, 7)
    r.push(P0, 2, 3)
    r.push(P1, 8, 9, 10)
    assert await r.collect() == ([0, 1, 7, 2], 0)
    assert await r.collect() == ([3, 8, 9, 10], 0)


async def test_a_batch_that_becomes_full_while_it_waits_comes_then() -> None:
    r = Runner()
    r.push(P0, 0)
    waiting = asyncio.ensure_future(r.collect())
    await asyncio.sleep(0.25)
    r.push(P0, 1, 2)
    await asyncio.sleep(0.25)
    assert not waiting.done()
    r.push(P0, 3)
    assert await waiting == ([0, 1, 2, 3], 0.5)


async def test_the_wait_begins_with_the_first_record() -> None:
    r = Runner()
    waiting = asyncio.ensure_future(r.collect())
    await asyncio.sleep(10)
    r.push(P0, 0)
    await asyncio.sleep(0.5)
    r.push(P0, 1)
    assert await waiting == ([0, 1], 11)


async def test_a_batch_is_full_by_its_bytes_and_ends_with_the_record_that_reaches_them() -> None:
    r = Runner(max_bytes=10)
    r.push(P0, 0, size=4)
    r.push(P0, 1, size=5)
    assert await r.collect() == ([0, 1], 1)
    r.push(P0, 2, size=9)
    r.push(P0, 3, size=9)
    r.push(P0, 4, size=9)
    assert await r.collect() == ([2, 3], 0)
    assert await r.collect() == ([4], 1), "nine bytes do not fill a batch"
    r.push(P0, 5, size=10)
    r.push(P0, 6, size=1)
    assert await r.collect() == ([5], 0)
    assert await r.collect() == ([6], 1)


async def test_records_of_partitions_that_have_gone_are_forgotten_and_not_counted() -> None:
    r = Runner(max_items=3, max_bytes=12)
    r.push(P0, 0, size=4)
    r.push(P1, 0, size=4)
    r.runner.drop([P0])
    r.push(P1, 1, size=4)
    assert await r.collect() == ([0, 1], 1), "two records do not fill a batch of three"
    r.push(P1, 2, 3, size=4)
    r.runner.drop(None)
    r.push(P0, 4, 5, size=4)
    assert await r.collect() == ([4, 5], 1)


async def test_records_behind_a_retry_of_their_key_wait_with_it_and_come_first_after_it() -> None:
    r = Runner()
    held = [r.part(P0, 0, key=b"a")]
    r.runner._held[P0, b"a"] = held
    r.push(P0, 1, 2, key=b"a")
    r.push(P0, 3, key=b"b")
    r.push(P1, 4, key=b"a")
    assert await r.collect() == ([3, 4], 0)
    r.push(P0, 5, key=b"b")
    r.runner._release((P0, b"a"), held)
    assert await r.collect() == ([0, 1, 2, 5], 0)
    assert r.runner._held == {}


async def test_a_batch_of_nothing_but_held_records_is_not_handed_out() -> None:
    r = Runner()
    held: list[Part] = []
    r.runner._held[P0, b"a"] = held
    r.push(P0, 0, 1, key=b"a")
    waiting = asyncio.ensure_future(r.collect())
    await asyncio.sleep(5)
    assert not waiting.done()
    r.push(P0, 2, key=b"b")
    assert await waiting == ([2], 6)
    assert [record.offset for part in held for record in part.records] == [0, 1]


async def test_a_retry_that_went_with_its_partition_holds_nothing_back() -> None:
    r = Runner()
    r.runner._held[P0, b"k"] = [r.part(P0, 0)]
    r.runner._held[P1, b"k"] = [r.part(P1, 0)]
    r.runner.drop([P0])
    r.push(P0, 5)
    r.push(P1, 6)
    assert await r.collect() == ([5], 1)


async def test_a_release_that_comes_after_its_partition_has_gone_brings_nothing_back() -> None:
    r = Runner()
    old, other = [r.part(P0, 0)], [r.part(P1, 5)]
    r.runner._held[P0, b"k"] = old
    r.runner._held[P1, b"k"] = other
    r.runner.drop([P0])
    r.runner._held[P0, b"k"] = [r.part(P0, 9)]  # the partition has come back
    r.runner._release((P0, b"k"), old)
    r.runner._release((P1, b"k"), other)
    assert await r.collect() == ([5], 1)
    assert set(r.runner._held) == {(P0, b"k")}


async def test_a_new_run_begins_with_what_the_last_one_left_unsettled() -> None:
    r = Runner()
    r.push(P0, 0, 1, 2)
    r.push(P1, 3)
    batches: list[list[int]] = []

    async def handle(batch: Any) -> None:
        batches.append([record.offset for part in batch for record in part.records])
        if len(batches) == 1:
            r.prefixes[P0].settled(1)
            r.runner._held[P0, b"c"] = [r.part(P0, 2)]
            raise RuntimeError("the runner dies")
        await asyncio.Event().wait()

    r.runner._handle = handle  # type: ignore[method-assign]  # a defect
    r.runner.start()
    task = r.runner.task
    assert task is not None
    await asyncio.wait({task})
    assert r.runner.touches(None)
    assert r.runner.touches([P1])
    r.runner.start()
    await asyncio.sleep(0.5)
    assert len(batches) == 1
    r.push(P0, 4, key=b"b")
    await asyncio.sleep(1)
    assert batches == [[0, 1, 2, 3], [0, 3, 4]]
    assert r.runner.task is not None
    r.runner.task.cancel()


async def test_a_running_runner_is_not_started_twice() -> None:
    r = Runner()
    r.runner.start()
    first = r.runner.task
    r.runner.start()
    assert r.runner.task is first
    assert first is not None
    first.cancel()


async def test_a_cancelled_batch_forgets_the_partitions_that_have_gone() -> None:
    r = Runner()
    r.runner._current = [r.part(P0, 0), r.part(P1, 1)]
    r.runner.abandon([P0])
    assert (r.runner.touches([P0]), r.runner.touches([P1])) == (False, True)
    r.runner.abandon(None)
    assert not r.runner.touches(None)
