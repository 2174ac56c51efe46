"""Parked keys: what is queued when someone releases them, and what their release handles, keeps and forgets."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hailbus import TopicPartition
from hailbus._consuming.failure import DEFECT_ATTEMPTS, Stage, StageError
from hailbus._consuming.outages import Outages
from hailbus._consuming.parked import MOST_AT_ONCE, ParkedKeys
from hailbus._consuming.path import STORE_TIMEOUT_S
from hailbus._consuming.progress import Heads
from hailbus.delivery import AtLeastOnce, Backoff, ParkKey, Reject, Retry, Verdict
from hailbus.subscription import SubscriberStats

pytestmark = pytest.mark.usefixtures("virtual_time")

P0, P1 = TopicPartition("rides", 0), TopicPartition("rides", 1)
Handle = Callable[[int], Awaitable[Verdict | None]]


class Lot:
    """A parking lot in memory that can be away."""

    def __init__(self) -> None:
        self.parked: dict[tuple[TopicPartition, bytes], bool] = {}
        self.waiting: list[int] = []
        self.held: list[tuple[str, int]] = []
        self.error: Exception | None = None
        self.hangs = False
        self.asked: list[float] = []

    async def ask(self) -> None:
        self.asked.append(round(now(), 6))
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error

    async def keys(self, group: str, partitions: Collection[TopicPartition]) -> list[Any]:
        await self.ask()
        assert group == "till"
        return [
            SimpleNamespace(topic=place.topic, partition=place.partition, key=key, is_released=is_released)
            for (place, key), is_released in self.parked.items()
            if place in partitions
        ]

    async def records(self, group: str, topic: str, key: bytes, *, limit: int) -> list[Any]:
        await self.ask()
        return [
            SimpleNamespace(
                position=position, topic=topic, partition=0, key=key, offset=position, attempts=3, value=b"", headers=()
            )
            for position in self.waiting[:limit]
        ]

    async def remove(self, positions: list[int]) -> None:
        self.waiting = [position for position in self.waiting if position not in positions]

    async def hold(self, group: str, topic: str, key: bytes, *, reason: str, attempts: int) -> None:
        self.held.append((reason, attempts))


class Member:
    """The parked keys of a member whose handler does what the test says."""

    def __init__(self, handle: Handle | None = None, *, attempts: int = 1) -> None:
        self.lot = Lot()
        self.delivery = AtLeastOnce(retry=Backoff(first=timedelta(seconds=1), attempts=attempts, jitter=0))
        policy: Any = SimpleNamespace(lot=self.lot, look_every=timedelta(seconds=1))
        self.policy: ParkKey = policy
        self.handled: list[tuple[int, int]] = []
        self.queued: list[tuple[float, TopicPartition, bytes]] = []
        self.partitions = {P0, P1}
        self.has_handler = True
        self.is_tombstone = False
        self.stats = SubscriberStats()
        self._handle = handle
        router: Any = SimpleNamespace(route_for=self.route_for, event_of=self.event_of)
        caller: Any = SimpleNamespace(single=self.single)
        self.heads = Heads()
        self.outages = Outages(
            "till",
            stats=self.stats,
            rng=random.Random(1),
            hold=lambda _partition: None,
            release=lambda _partition: None,
        )
        self.keys = ParkedKeys(
            "till",
            [policy],
            router=router,
            caller=caller,
            outages=self.outages,
            stats=self.stats,
            rng=random.Random(1),
            heads=self.heads,
        )

    def route_for(self, record: Any) -> Any:
        if record.offset < 0:
            raise StageError(Stage.DECODE, ValueError("it can no longer be read"))
        if not self.has_handler:
            return None
        return SimpleNamespace(handler=object(), subscription=SimpleNamespace(delivery=self.delivery))

    def event_of(self, route: object, record: Any, *, structured: bool) -> Any:
        return None if self.is_tombstone else record.offset

    async def single(
        self, route: object, partition: TopicPartition, event: int, ctx: Any, *, may_skip: bool
    ) -> Verdict | None:
        self.handled.append((event, ctx.attempt))
        return await self._handle(event) if self._handle is not None else None

    def watch(self) -> asyncio.Task[None]:
        return asyncio.ensure_future(
            self.keys.watch(
                self.policy,
                lambda: self.partitions,
                lambda partition, key: self.queued.append((round(now(), 6), partition, key)),
            )
        )

    async def release(self) -> None:
        item: Any = SimpleNamespace(record=SimpleNamespace(key=b"a"), partition=P0)
        await self.keys.release(item)


def now() -> float:
    return asyncio.get_running_loop().time()


# ---------------------------------------------------------------------------------------------------- watching


async def test_a_released_key_is_queued_once_until_its_release_has_ended() -> None:
    member = Member()
    member.lot.parked = {(P0, b"a"): True, (P1, b"b"): False}
    task = member.watch()
    await asyncio.sleep(5.5)
    assert member.queued == [(1, P0, b"a")], "nobody has released the other"
    await member.release()
    await asyncio.sleep(1)
    assert member.queued[1:] == [(6, P0, b"a")]
    task.cancel()


async def test_a_key_of_a_partition_that_went_meanwhile_is_not_queued() -> None:
    member = Member()
    member.lot.parked = {(P0, b"a"): True}
    keys = member.lot.keys

    async def slow(group: str, partitions: Collection[TopicPartition]) -> list[Any]:
        found = await keys(group, partitions)
        member.partitions = {P1}
        return found

    member.lot.keys = slow  # type: ignore[method-assign]  # a rebalance meanwhile
    task = member.watch()
    await asyncio.sleep(3)
    assert member.queued == []
    assert member.keys.places == {}
    task.cancel()


async def test_a_lot_that_is_away_is_asked_less_often_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    member = Member()
    member.lot.error = ConnectionError("refused")
    member.lot.parked = {(P0, b"a"): True}
    task = member.watch()
    await asyncio.sleep(25)
    assert member.lot.asked == [1, 11, 21]
    member.lot.error = None
    await asyncio.sleep(8.5)
    assert member.lot.asked == [1, 11, 21, 31, 32, 33]
    assert member.queued == [(31, P0, b"a")]
    assert sum("parking_lot_unreachable" in line.getMessage() for line in caplog.records) == 1
    task.cancel()


async def test_a_lot_that_does_not_answer_is_asked_again() -> None:
    member = Member()
    member.lot.hangs = True
    task = member.watch()
    await asyncio.sleep(2)
    member.lot.hangs = False
    await asyncio.sleep(STORE_TIMEOUT_S + 10)
    assert member.lot.asked == [1, 1 + STORE_TIMEOUT_S + 10]
    task.cancel()


async def test_the_keys_of_assigned_partitions_are_known_and_those_of_others_forgotten() -> None:
    member = Member()
    member.lot.parked = {(P0, b"a"): False, (P0, b"c"): True, (P1, b"b"): False}
    await member.keys.load([P0])
    assert set(member.keys.places) == {(P0, b"a"), (P0, b"c")}
    await member.keys.load([P1])
    member.keys.forget(P0)
    assert set(member.keys.places) == {(P1, b"b")}


# ---------------------------------------------------------------------------------------------------- releasing


async def test_the_waiting_records_of_a_released_key_are_handled_in_order_and_counted() -> None:
    member = Member()
    member.lot.waiting = list(range(MOST_AT_ONCE + 5))
    member.keys.places[P0, b"a"] = member.lot  # type: ignore[assignment]  # as a lot
    await member.release()
    assert member.handled == [(position, 4) for position in range(MOST_AT_ONCE + 5)], "the fourth attempt of each"
    assert (member.lot.waiting, member.lot.held, member.keys.places) == ([], [], {})
    assert member.stats.settled == MOST_AT_ONCE + 5


@pytest.mark.parametrize(
    ("answer", "reason", "attempts"),
    [
        (ValueError("still broken"), "still broken", 1),
        (StageError(Stage.CLAIM, ValueError("no id")), "a defect in hailbus: no id", DEFECT_ATTEMPTS),
        (asyncio.CancelledError("its own"), "its own", 1),
        (Retry(), "the handler asked for a retry in all of its 1 calls", 1),
        (Reject("not this one"), "not this one", 1),
    ],
)
async def test_the_first_record_that_fails_again_keeps_the_key_parked(answer: Any, reason: str, attempts: int) -> None:
    async def handle(event: int) -> Verdict | None:
        if event < 2:
            return None
        if isinstance(answer, BaseException):
            raise answer
        found: Verdict = answer
        return found

    member = Member(handle)
    member.lot.waiting = [0, 1, 2, 3]
    member.keys.places[P0, b"a"] = member.lot  # type: ignore[assignment]  # as a lot
    await member.release()
    assert [event for event, _ in member.handled] == [0, 1] + [2] * attempts
    assert (member.lot.waiting, member.lot.held) == ([2, 3], [(reason, attempts)])
    assert member.stats.settled == 2
    assert set(member.keys.places) == {(P0, b"a")}, "events of the key wait behind them"


@pytest.mark.parametrize("answer", [OSError("not now"), Retry(timedelta(seconds=1))], ids=["raises", "asks"])
async def test_a_parked_record_is_tried_as_often_as_the_policy_says(answer: Any) -> None:
    begun_s = now()
    called_s: list[float] = []

    async def handle(event: int) -> Verdict | None:
        called_s.append(now() - begun_s)
        if event == 1 or len(called_s) == 3:
            return None
        if isinstance(answer, BaseException):
            raise answer
        found: Verdict = answer
        return found

    member = Member(handle, attempts=3)
    member.lot.waiting = [0, 1]
    member.keys.places[P0, b"a"] = member.lot  # type: ignore[assignment]  # as a lot
    await member.release()
    assert member.handled == [(0, 4), (0, 5), (0, 6), (1, 4)], "the second record waits for the first"
    assert (member.lot.waiting, member.lot.held, member.keys.places) == ([], [], {})
    is_raised = isinstance(answer, BaseException)
    assert [round(s, 3) for s in called_s] == ([0, 1, 3, 3] if is_raised else [0, 1, 2, 2])
    assert (member.stats.settled, member.stats.retried, member.stats.failed) == (2, 2, 2 if is_raised else 0)


async def test_a_parked_record_that_fails_in_all_its_attempts_says_how_many_they_were() -> None:
    async def handle(event: int) -> None:
        raise OSError("never")

    member = Member(handle, attempts=3)
    member.lot.waiting = [0, 1]
    member.keys.places[P0, b"a"] = member.lot  # type: ignore[assignment]  # as a lot
    await member.release()
    assert member.handled == [(0, 4), (0, 5), (0, 6)]
    assert (member.lot.waiting, member.lot.held) == ([0, 1], [("never", 3)])


async def test_a_release_that_waits_for_its_next_attempt_may_be_cancelled_at_once() -> None:
    async def handle(event: int) -> None:
        raise OSError("not now")

    member = Member(handle, attempts=3)
    member.lot.waiting = [0]
    member.keys.places[P0, b"a"] = member.lot  # type: ignore[assignment]  # as a lot
    member.heads.look(P0, 7)
    task = asyncio.ensure_future(member.release())
    await asyncio.sleep(2.5)
    assert member.outages.waiting == {task}
    assert not member.heads.stalled(1.5), "the second call, after 1 s, was progress"
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert (member.outages.waiting, member.lot.waiting, member.lot.held) == (set(), [0], [])


async def test_a_record_that_can_no_longer_be_read_keeps_the_key_parked() -> None:
    member = Member()
    member.lot.waiting = [-1]
    member.keys.places[P0, b"a"] = member.lot  # type: ignore[assignment]  # as a lot
    await member.release()
    assert (member.handled, member.lot.waiting, member.lot.held) == ([], [-1], [("it can no longer be read", 1)])


@pytest.mark.parametrize("gone", ["has_handler", "is_tombstone"])
async def test_what_is_no_longer_handled_here_does_not_wait(gone: str) -> None:
    member = Member()
    setattr(member, gone, gone == "is_tombstone")
    member.lot.waiting = [0, 1]
    member.keys.places[P0, b"a"] = member.lot  # type: ignore[assignment]  # as a lot
    await member.release()
    assert (member.handled, member.lot.waiting, member.lot.held) == ([], [], [])


async def test_a_release_that_is_cancelled_neither_holds_the_key_nor_loses_a_record() -> None:
    async def handle(event: int) -> None:
        await asyncio.sleep(60)

    member = Member(handle)
    member.lot.waiting = [0, 1]
    member.lot.parked = {(P0, b"a"): True}
    member.keys.places[P0, b"a"] = member.lot  # type: ignore[assignment]  # as a lot
    task = asyncio.ensure_future(member.release())
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert (member.lot.waiting, member.lot.held) == ([0, 1], [])
    watching = member.watch()
    await asyncio.sleep(1.5)
    assert [key for _, _, key in member.queued] == [b"a"], "it can be queued again"
    watching.cancel()


async def test_a_release_waits_for_a_lot_that_is_away() -> None:
    member = Member()
    member.lot.waiting = [0]
    member.lot.error = ConnectionError("refused")
    member.keys.places[P0, b"a"] = member.lot  # type: ignore[assignment]  # as a lot
    task = asyncio.ensure_future(member.release())
    await asyncio.sleep(30)
    assert not task.done()
    member.lot.error = None
    await task
    assert [event for event, _ in member.handled] == [0]


async def test_a_lot_that_hangs_during_a_release_is_asked_again_after_its_time_out() -> None:
    member = Member()
    member.lot.waiting = [0]
    member.lot.hangs = True
    member.keys.places[P0, b"a"] = member.lot  # type: ignore[assignment]  # as a lot
    task = asyncio.ensure_future(member.release())
    await asyncio.sleep(STORE_TIMEOUT_S - 1)
    member.lot.hangs = False
    assert len(member.lot.asked) == 1
    await asyncio.sleep(2)
    assert task.done()


async def test_the_release_of_a_key_that_is_not_parked_here_does_nothing() -> None:
    member = Member()
    await member.release()
    assert (member.handled, member.lot.asked) == ([], [])
