"""Offsets are committed of the settled prefix only, regularly, and a failure is covered by the next commit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from hailbus import SubscriberSettings, TopicPartition
from hailbus._consuming.committing import Committer
from hailbus._consuming.progress import Heads, Partitions
from hailbus._consuming.work import Ending, Item, Part, Route
from hailbus.subscription import SubscriberStats
from hailbus.testing import VirtualClock

pytestmark = pytest.mark.usefixtures("virtual_time")

P0, P1 = TopicPartition("rides", 0), TopicPartition("rides", 1)


class Record:
    """As much of a record as the account of a partition looks at."""

    value = None

    def __init__(self, offset: int, timestamp: int = 0) -> None:
        self.offset = offset
        self.timestamp = timestamp


class Member:
    """The partitions of a member with their committer, and a consumer that notes commits."""

    def __init__(self, **settings: Any) -> None:
        self.stats = SubscriberStats()
        self.resumed: list[TopicPartition] = []
        self.settings = SubscriberSettings(**settings)
        self.partitions = Partitions(
            stats=self.stats, settings=self.settings, clock=VirtualClock(), resume=self.resumed.append
        )
        self.commits: list[tuple[float, dict[TopicPartition, int]]] = []
        self.answer: bool | Exception = True
        self.has_consumer = True
        self.committer = Committer(
            "till",
            partitions=self.partitions,
            consumer=lambda: self if self.has_consumer else None,  # type: ignore[arg-type,return-value]  # only `commit`
            stats=self.stats,
            settings=self.settings,
        )

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> bool:
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer:
            self.commits.append((now(), dict(offsets)))
        return self.answer

    def receive(self, partition: TopicPartition, *offsets: int, timestamp: int = 0) -> bool:
        if partition not in self.partitions.prefixes:
            self.partitions.add(partition)
        records: Any = [Record(offset, timestamp) for offset in offsets]
        return self.partitions.received(partition, self.partitions.prefixes[partition], records)

    def settle(self, partition: TopicPartition, *offsets: int, ending: Ending = Ending.SETTLED) -> None:
        for offset in offsets:
            record: Any = Record(offset)
            self.partitions.end(Item(partition, self.partitions.prefixes[partition], record, Route(None, None)), ending)

    def settle_all(self, partition: TopicPartition, *offsets: int) -> None:
        records: Any = [Record(offset) for offset in offsets]
        part = Part(partition, self.partitions.prefixes[partition], records, Route(None, None))
        self.partitions.end_all([part], Ending.SETTLED)

    @property
    def offsets(self) -> list[dict[TopicPartition, int]]:
        return [offsets for _, offsets in self.commits]


def now() -> float:
    return asyncio.get_running_loop().time()


# ---------------------------------------------------------------------------------------------------- committing


async def test_only_what_has_newly_settled_is_committed() -> None:
    member = Member()
    member.receive(P0, 5, 6, 7)
    member.receive(P1, 0)
    await member.committer.commit()
    assert member.offsets == [{P0: 5, P1: 0}], "the first position is worth a commit"
    member.settle(P0, 5, 7)
    await member.committer.commit()
    await member.committer.commit()
    member.settle(P0, 6)
    await member.committer.commit()
    assert member.offsets[1:] == [{P0: 6}, {P0: 8}]
    assert member.stats.committed == 3


async def test_some_partitions_are_committed_alone() -> None:
    member = Member()
    member.receive(P0, 0)
    member.receive(P1, 0)
    member.settle(P0, 0)
    member.settle(P1, 0)
    await member.committer.commit(frozenset({P1}))
    assert member.offsets == [{P1: 1}]
    await member.committer.commit()
    assert member.offsets[1:] == [{P0: 1}]


async def test_a_commit_that_fails_is_repeated_by_the_next_one_and_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    member = Member()
    member.receive(P0, 0, 1)
    member.settle(P0, 0)
    with caplog.at_level(logging.INFO, "hailbus.subscriber"):
        member.answer = False
        await member.committer.commit()
        await asyncio.sleep(3)
        member.answer = RuntimeError("the client's mistake")
        await member.committer.commit()
        assert member.committer.reasons(after_s=3.5) == []
        assert member.committer.reasons(after_s=3) == [
            "group till could not commit offsets for 3 s: the client's mistake"
        ]
        assert member.stats.committed == 0
        member.answer = True
        await member.committer.commit()
        assert member.committer.reasons(after_s=0) == []
        member.settle(P0, 1)
        await member.committer.commit()
    assert member.offsets == [{P0: 1}, {P0: 2}]
    said = [line.getMessage() for line in caplog.records]
    assert sum("commit_failed" in line for line in said) == 1
    assert sum("commits_work_again" in line for line in said) == 1


async def test_without_a_consumer_nothing_is_committed_and_nothing_is_forgotten() -> None:
    member = Member()
    member.receive(P0, 0)
    member.settle(P0, 0)
    member.has_consumer = False
    await member.committer.commit()
    assert not await member.committer.commit_now({P0: 3})
    member.has_consumer = True
    await member.committer.commit()
    assert member.offsets == [{P0: 1}]


async def test_what_is_committed_at_once_is_not_committed_again() -> None:
    member = Member()
    member.receive(P0, 7)
    assert await member.committer.commit_now({P0: 7})
    await member.committer.commit()
    assert member.offsets == [{P0: 7}]
    member.answer = False
    assert not await member.committer.commit_now({P0: 9})


async def test_a_partition_that_comes_back_is_committed_from_where_it_begins() -> None:
    member = Member()
    member.receive(P0, 8)
    member.settle(P0, 8)
    await member.committer.commit()
    member.partitions.remove([P0])
    member.committer.forget(frozenset({P0, P1}))
    member.receive(P0, 2)
    member.settle(P0, 2)
    await member.committer.commit()
    assert member.offsets == [{P0: 9}, {P0: 3}]


async def test_a_partition_that_goes_during_a_commit_leaves_no_trace() -> None:
    member = Member()
    member.receive(P0, 8)
    member.settle(P0, 8)
    commit = member.commit

    async def slow(offsets: Mapping[TopicPartition, int]) -> bool:
        await asyncio.sleep(1)
        return await commit(offsets)

    member.commit = slow  # type: ignore[method-assign]  # a slow coordinator
    running = asyncio.ensure_future(member.committer.commit())
    await asyncio.sleep(0.5)
    member.partitions.remove([P0])
    member.committer.forget(frozenset({P0}))
    await running
    member.receive(P0, 2)
    member.settle(P0, 2)
    await member.committer.commit()
    assert member.offsets == [{P0: 9}, {P0: 3}]


async def test_commits_come_at_their_interval_and_at_once_when_enough_has_settled() -> None:
    member = Member(commit_interval=timedelta(seconds=2), commit_every=3)
    running = asyncio.ensure_future(member.committer.run())
    member.receive(P0, *range(10))
    member.settle(P0, 0)
    await asyncio.sleep(3)
    member.settle(P0, 1, 2)
    await asyncio.sleep(0.5)
    member.settle(P0, 3)
    await asyncio.sleep(0.25)
    member.settle_all(P0, 4, 5, 6)
    await asyncio.sleep(5)
    running.cancel()
    assert member.commits == [(2, {P0: 1}), (3.5, {P0: 4}), (3.75, {P0: 7})]


async def test_every_ending_counts_toward_the_next_commit() -> None:
    member = Member(commit_interval=timedelta(hours=1), commit_every=2)
    running = asyncio.ensure_future(member.committer.run())
    member.receive(P0, *range(4))
    member.settle(P0, 0, ending=Ending.SKIPPED)
    member.settle(P0, 1, ending=Ending.DEAD_LETTERED)
    await asyncio.sleep(1)
    running.cancel()
    assert member.offsets == [{P0: 2}]
    assert (member.stats.skipped, member.stats.dead_lettered, member.stats.settled) == (1, 1, 0)


# ---------------------------------------------------------------------------------------------------- room


async def test_reading_waits_while_too_much_is_buffered_until_half_of_it_has_settled() -> None:
    member = Member(max_buffered=10, poll_records=4)
    assert await member.partitions.until_room() == 4
    member.receive(P0, *range(7))
    assert await member.partitions.until_room() == 3
    member.receive(P0, 7, 8, 9)
    waiting = asyncio.ensure_future(member.partitions.until_room())
    await asyncio.sleep(0)
    member.settle(P0, *range(4))
    await asyncio.sleep(0)
    assert not waiting.done(), "tiny reads cost more than a short wait"
    began_s = now()
    member.settle(P0, 4)
    assert await waiting == 4
    assert now() == began_s


async def test_reading_looks_again_each_second_for_the_room_that_there_is() -> None:
    member = Member(max_buffered=10)
    member.receive(P0, *range(10))
    waiting = asyncio.ensure_future(member.partitions.until_room())
    await asyncio.sleep(0.5)
    member.settle(P0, 0, 1)
    assert await waiting == 2
    assert now() == 1
    member.receive(P0, 10, 11)
    waiting = asyncio.ensure_future(member.partitions.until_room())
    await asyncio.sleep(0.5)
    member.partitions.remove([P0])
    assert await waiting == 10
    assert now() == 1.5, "partitions that go make room"


async def test_a_partition_that_is_too_far_ahead_of_its_commit_waits_until_half_of_it_has_settled() -> None:
    member = Member(max_spread=6)
    assert not member.receive(P0, *range(5))
    assert member.receive(P0, 5)
    assert not member.receive(P0, 6), "it is paused already"
    assert member.partitions.spread == {P0}
    member.settle(P0, 1, 2, 3, 4, 5, 6)
    assert member.resumed == [], "the first record holds all others back"
    member.settle(P0, 0)
    assert (member.resumed, member.partitions.spread) == ([P0], set())


async def test_half_of_the_spread_is_counted_exactly() -> None:
    member = Member(max_spread=6)
    member.receive(P0, *range(6))
    member.settle_all(P0, 0, 1)
    assert member.resumed == []
    member.settle_all(P0, 2)
    assert member.resumed == [P0]


async def test_what_settles_after_its_partition_has_gone_counts_for_nothing() -> None:
    member = Member(max_spread=1)
    assert member.receive(P0, 0)
    prefix = member.partitions.prefixes[P0]
    record: Any = Record(0)
    member.partitions.remove([P0, P1])
    assert prefix.closed
    member.partitions.end(Item(P0, prefix, record, Route(None, None)), Ending.SETTLED)
    member.partitions.end_all([Part(P0, prefix, [record], Route(None, None))], Ending.SETTLED)
    assert member.stats.done == 0
    assert (member.resumed, member.partitions.spread) == ([], set())


# ---------------------------------------------------------------------------------------------------- progress


async def test_the_lag_is_the_age_of_the_oldest_read_that_has_not_settled() -> None:
    member = Member()
    assert member.partitions.lag_s == 0
    base_ms = int(VirtualClock()().timestamp() * 1000)
    await asyncio.sleep(100)
    member.receive(P0, 0, 1, timestamp=base_ms + 10_000)
    member.receive(P0, 2, 3, timestamp=base_ms + 30_000)
    member.receive(P1, 0, timestamp=base_ms + 20_000)
    assert member.partitions.lag_s == 90
    member.settle(P0, 0)
    assert member.partitions.lag_s == 90, "the read has settled when its last record has"
    member.settle(P0, 1)
    assert member.partitions.lag_s == 80
    member.settle(P1, 0)
    assert member.partitions.lag_s == 70
    member.settle(P0, 2, 3)
    assert member.partitions.lag_s == 0
    member.receive(P0, 4, timestamp=base_ms + 500_000)
    assert member.partitions.lag_s == 0, "a clock that is behind gives no negative age"
    member.partitions.remove([P0])
    assert member.partitions.lag_s == 0


async def test_a_head_that_does_not_move_is_stalled_and_one_that_moves_or_is_retried_is_not() -> None:
    heads = Heads()
    heads.look(P0, 5)
    heads.look(P1, 7)
    await asyncio.sleep(10)
    heads.look(P0, 5)
    heads.look(P1, 8)
    assert heads.stalled(10) == []
    assert heads.stalled(9) == [(P0, 5, 10)]
    heads.attempted(P0, 6, 30)
    assert heads.stalled(9) == [(P0, 5, 10)], "another record's retry is no progress of the head"
    heads.attempted(P0, 5, 30)
    await asyncio.sleep(35)
    assert heads.stalled(4) == [(P0, 5, 5), (P1, 8, 35)]
    heads.look(P1, None)
    heads.forget(P0)
    heads.forget(P0)
    assert heads.stalled(0) == []
    heads.attempted(P0, 6, 30)
    await asyncio.sleep(31)
    assert heads.stalled(0.5) == [(P0, 6, 1)]


async def test_looking_finds_the_first_record_of_each_partition_that_has_not_settled() -> None:
    member = Member()
    member.receive(P0, 0, 1)
    member.receive(P1, 0)
    member.settle(P0, 0)
    member.settle(P1, 0)
    member.partitions.look()
    await asyncio.sleep(2)
    assert member.partitions.heads.stalled(1) == [(P0, 1, 2)]
    assert member.partitions.unsettled_count == 1
    member.partitions.remove([P0])
    assert member.partitions.heads.stalled(0) == [], "a partition that has gone does not stall"
