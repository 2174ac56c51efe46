"""The buffer bounds what waits for the broker, keeps the order of each partition, and decides every record once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from hailbus import ConfigurationError, DeliveryError, DeliveryTimeoutError, PublisherSettings
from hailbus._transport import Outgoing
from hailbus.durations import BOUNDS_S
from hailbus.publish_buffer import YIELD_EVERY, PublishBuffer, PublishStats, Receipt

pytestmark = pytest.mark.usefixtures("virtual_time")

Place = tuple[str, int]
P0, P1 = ("rides", 0), ("rides", 1)


class Broker:
    """A bus whose producer takes a fixed time for each send and does with the records what the test says."""

    def __init__(self) -> None:
        self.log: dict[Place, list[bytes | None]] = {}
        self.sends: list[tuple[float, Place, int]] = []
        self.latency_s = 1.0
        self.answers: list[Exception | Sequence[int | DeliveryError]] = []
        self.started = self.stopped = 0
        self.client_ids: list[str] = []

    def producer(self, *, client_id: str) -> Broker:
        self.client_ids.append(client_id)
        return self

    async def start(self) -> None:
        self.started += 1

    async def stop(self) -> None:
        self.stopped += 1

    async def send_each(self, topic: str, partition: int, records: Sequence[Outgoing]) -> Sequence[int | DeliveryError]:
        self.sends.append((now(), (topic, partition), len(records)))
        await asyncio.sleep(self.latency_s)
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        log = self.log.setdefault((topic, partition), [])
        first = len(log)
        log.extend(value for _, value, _ in records)
        return list(range(first, len(log)))


class Shop:
    """A started buffer, and what became of each record that was added to it."""

    def __init__(self, buffer: PublishBuffer, broker: Broker) -> None:
        self.buffer = buffer
        self.broker = broker
        self.decided: dict[object, Receipt | DeliveryError] = {}
        self.times: dict[object, float] = {}
        self.sent: list[tuple[str, int, float, DeliveryError | None]] = []

    def settled(self, token: object, outcome: Receipt | DeliveryError) -> None:
        assert token not in self.decided, "decided twice"
        self.decided[token] = outcome
        self.times[token] = now()

    def add(self, *tokens: str, place: Place = P0) -> None:
        for token in tokens:
            self.buffer.add(*place, (b"k", token.encode(), []), f"id-{token}", self.settled, token)

    def error(self, token: str) -> DeliveryError:
        found = self.decided[token]
        assert isinstance(found, DeliveryError)
        return found


@asynccontextmanager
async def shop(**settings: Any) -> AsyncIterator[Shop]:
    broker = Broker()
    made: list[Shop] = []
    buffer = PublishBuffer(
        broker,  # type: ignore[arg-type]  # only what a buffer asks of a bus
        PublisherSettings(**settings),
        client_id="shop-1",
        sent=lambda *told: made[0].sent.append(told),
    )
    made.append(Shop(buffer, broker))
    await buffer.start()
    yield made[0]
    await buffer.stop(flush_timeout_s=0)


def now() -> float:
    return asyncio.get_running_loop().time()


# ---------------------------------------------------------------------------------------------------- sending


async def test_records_of_a_partition_go_in_order_in_batches_one_send_at_a_time() -> None:
    async with shop(max_batch_records=2) as s:
        s.add("a", "b", "c", "d", "e")
        s.add("x", place=P1)
        await s.buffer.flush()
        assert s.broker.log == {P0: [b"a", b"b", b"c", b"d", b"e"], P1: [b"x"]}
        assert s.broker.sends == [(0, P0, 2), (0, P1, 1), (1, P0, 2), (2, P0, 1)]
        assert s.decided["d"] == Receipt(id="id-d", topic="rides", partition=0, offset=3)
        assert s.decided["x"] == Receipt(id="id-x", topic="rides", partition=1, offset=0)
        assert (s.buffer.stats.published, s.buffer.stats.failed, s.buffer.buffered_count) == (6, 0, 0)
        assert s.broker.client_ids == ["shop-1"]


async def test_a_partition_that_was_idle_is_sent_to_again() -> None:
    async with shop() as s:
        s.add("a")
        await s.buffer.flush()
        await asyncio.sleep(10)
        s.add("b")
        await s.buffer.flush()
        assert s.broker.sends == [(0, P0, 1), (11, P0, 1)]


async def test_flush_waits_for_every_partition_and_for_nothing_when_there_is_nothing() -> None:
    async with shop(max_batch_records=1) as s:
        await s.buffer.flush()
        assert now() == 0
        s.add("a", "b", "c")
        s.add("x", place=P1)
        both = [asyncio.ensure_future(s.buffer.flush()) for _ in range(2)]
        both[0].cancel()
        await asyncio.wait(both)
        assert now() == 3
        assert not both[1].cancelled()


async def test_a_caller_is_told_when_the_records_before_its_question_are_decided() -> None:
    async with shop(max_batch_records=2) as s:
        done = s.buffer.until_decided(*P0)
        assert done.done(), "nothing was added"
        s.add("a", "b", "c")
        first = s.buffer.until_decided(*P0)
        await asyncio.sleep(0.5)
        s.add("d", "e")
        second, other = s.buffer.until_decided(*P0), s.buffer.until_decided(*P1)
        assert other.done()
        await first
        assert now() == 2, "c is decided by the second send"
        assert not second.done()
        await second
        assert now() == 3
        s.add("f")
        third = s.buffer.until_decided(*P0)
        assert not third.done()
        await third
        assert now() == 4


# ---------------------------------------------------------------------------------------------------- failures


async def test_each_record_gets_its_own_outcome() -> None:
    async with shop() as s:
        refused = DeliveryError("too large", topic="rides", partition=0)
        also = DeliveryError("too large as well", topic="rides", partition=0)
        s.broker.answers = [[7, refused, 8, also]]
        s.add("a", "b", "c", "d")
        await s.buffer.flush()
        assert s.decided["b"] is refused
        assert s.decided["d"] is also
        assert s.decided["c"] == Receipt(id="id-c", topic="rides", partition=0, offset=8)
        assert (s.buffer.stats.published, s.buffer.stats.failed) == (2, 2)
        assert s.sent == [("rides", 4, 1.0, refused)]


async def test_an_error_of_the_whole_send_is_the_outcome_of_each_record() -> None:
    async with shop() as s:
        away = DeliveryError("away", topic="rides", partition=0, retriable=True)
        s.broker.answers = [away]
        s.add("a", "b")
        await s.buffer.flush()
        s.add("c")
        await s.buffer.flush()
        assert s.decided["a"] is s.decided["b"] is away
        assert isinstance(s.decided["c"], Receipt)
        assert s.sent == [("rides", 2, 1.0, away), ("rides", 1, 1.0, None)]
        assert (s.buffer.stats.published, s.buffer.stats.failed) == (1, 2)


async def test_a_defect_of_the_client_reaches_the_callers_and_ends_nothing() -> None:
    async with shop() as s:
        defect = KeyError("a defect")
        s.broker.answers = [defect]
        s.add("a", "b")
        await s.buffer.flush()
        for token in "ab":
            error = s.error(token)
            assert str(error) == "publishing failed: KeyError('a defect')"
            assert (error.topic, error.partition, error.__cause__) == ("rides", 0, defect)
        s.add("c")
        await s.buffer.flush()
        assert isinstance(s.decided["c"], Receipt)


async def test_a_record_times_out_counted_from_its_own_call() -> None:
    async with shop(delivery_timeout=timedelta(seconds=10), max_batch_records=1) as s:
        s.broker.latency_s = 60
        s.add("a")
        await asyncio.sleep(4)
        s.add("b")
        await s.buffer.flush()
        for token in "ab":
            error = s.error(token)
            assert isinstance(error, DeliveryTimeoutError)
            assert (error.topic, error.partition, error.timeout_s) == ("rides", 0, 10)
        assert s.times == {"a": 10, "b": 14}
        assert [(count, took_s) for _, count, took_s, _ in s.sent] == [(1, 10), (1, 4)]


async def test_a_record_whose_time_is_up_before_its_turn_times_out_at_once() -> None:
    async with shop(delivery_timeout=timedelta(seconds=10), max_batch_records=1) as s:
        s.broker.latency_s = 60
        s.add("a", "b")
        await s.buffer.flush()
        assert s.times == {"a": 10, "b": 10}


# ---------------------------------------------------------------------------------------------------- bounds


@pytest.mark.parametrize(
    ("settings", "most"),
    [({"max_buffered_records": 3}, 3), ({"max_buffered_bytes": 2 * (64 + 1)}, 2), ({"max_buffered_bytes": 129}, 2)],
)
async def test_publishing_waits_while_as_much_is_buffered_as_may_be(settings: dict[str, int], most: int) -> None:
    async with shop(**settings, max_batch_records=1) as s:
        for number in range(8):
            await s.buffer.until_room()
            s.add(str(number))
            assert s.buffer.buffered_count <= most
        assert now() == 8 - most, "each record waits for the acknowledgement of one before it"
        filled = s.buffer.full, s.buffer.must_wait
        await s.buffer.flush()
        emptied = s.buffer.full, s.buffer.must_wait
        assert (filled, emptied) == ((True, True), (False, False))


async def test_a_tombstone_counts_with_its_overhead() -> None:
    async with shop(max_buffered_bytes=65) as s:
        s.buffer.add(*P0, (b"k", None, []), "id", s.settled, "a")
        assert not s.buffer.full
        assert not s.buffer.must_wait
        s.buffer.add(*P0, (b"k", b"", []), "id", s.settled, "b")
        filled = s.buffer.full
        await s.buffer.flush()
        assert (filled, s.buffer.full) == (True, False)


async def test_those_who_wait_for_room_are_served_in_turn_and_one_for_each_free_place() -> None:
    order: list[str] = []
    async with shop(max_buffered_records=2, max_batch_records=1) as s:

        async def publish(token: str) -> None:
            await s.buffer.until_room()
            order.append(token)
            s.add(token)
            assert s.buffer.buffered_count <= 2

        s.add("0", "1")
        tasks = [asyncio.ensure_future(publish(token)) for token in "abcd"]
        await asyncio.sleep(0.5)
        tasks[1].cancel()
        await asyncio.sleep(2)
        assert order == ["a", "c"]
        await asyncio.wait(tasks)
        assert order == ["a", "c", "d"]
        await s.buffer.flush()
        assert s.broker.log[P0] == [b"0", b"1", b"a", b"c", b"d"]


async def test_a_send_that_frees_several_places_lets_several_in() -> None:
    async with shop(max_buffered_records=3) as s:
        s.add("0", "1", "2")
        times: list[float] = []

        async def publish(token: str) -> None:
            await s.buffer.until_room()
            times.append(now())
            s.add(token)

        await asyncio.gather(*(publish(token) for token in "abcd"))
        assert times == [1, 1, 1, 2]


async def test_the_event_loop_gets_its_turn_while_many_events_are_built() -> None:
    async with shop() as s:
        for number in range(YIELD_EVERY):
            assert not s.buffer.must_wait
            s.add(str(number))
        assert (s.buffer.must_wait, len(s.broker.sends)) == (True, 0)
        await s.buffer.until_room()
        assert (s.buffer.must_wait, len(s.broker.sends)) == (False, 1)


async def test_room_is_what_may_be_built_before_the_next_wait() -> None:
    async with shop(max_buffered_records=YIELD_EVERY + 10) as s:
        assert s.buffer.room() == YIELD_EVERY
        for number in range(20):
            s.add(str(number))
        assert s.buffer.room() == YIELD_EVERY - 10
        for number in range(20, YIELD_EVERY + 10):
            s.add(str(number))
        assert s.buffer.room() == 1
        await s.buffer.flush()


# ---------------------------------------------------------------------------------------------------- stopping


async def test_stopping_sends_what_is_buffered_and_disconnects_once() -> None:
    async with shop() as s:
        s.add("a")
        assert await s.buffer.stop(flush_timeout_s=5)
        assert isinstance(s.decided["a"], Receipt)
        assert await s.buffer.stop(flush_timeout_s=5)
        assert (s.broker.started, s.broker.stopped) == (1, 1)
        with pytest.raises(ConfigurationError, match="nothing can be published before the service runs"):
            s.add("b")
        with pytest.raises(ConfigurationError):
            _ = s.buffer.producer


async def test_what_cannot_be_sent_in_time_is_given_up_and_may_be_published_again() -> None:
    async with shop(max_batch_records=1, max_buffered_records=3) as s:
        s.broker.latency_s = 60
        s.add("a", "b")
        await asyncio.sleep(1)
        s.add("c", place=P1)
        waiting = asyncio.ensure_future(s.buffer.until_room())
        assert not await s.buffer.stop(flush_timeout_s=5)
        assert now() == 6
        for token, partition in (("a", 0), ("b", 0), ("c", 1)):
            error = s.error(token)
            assert (str(error), error.retriable) == ("publishing was cancelled", True)
            assert (error.topic, error.partition) == ("rides", partition)
        await asyncio.wait_for(waiting, 1)
        assert s.buffer.buffered_count == 0
        assert s.buffer.stats.failed == 3
        assert s.broker.stopped == 1


async def test_records_that_come_while_the_last_ones_are_given_up_are_given_up_too() -> None:
    async with shop() as s:
        s.broker.latency_s = 60
        s.add("a")
        stopping = asyncio.ensure_future(s.buffer.stop(flush_timeout_s=5))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_at(5 + 1e-10, lambda: s.add("late", place=P1))  # in the same turn
        assert not await stopping
        assert str(s.error("late")) == "publishing was cancelled"
        assert s.broker.sends == [(0, P0, 1)]
        assert s.buffer.buffered_count == 0


# ---------------------------------------------------------------------------------------------------- statistics


def test_durations_between_the_first_and_the_last_record_are_spread_evenly() -> None:
    stats = PublishStats()
    stats.took(0.9, 0.1, 5)  # 0.9, 0.7, 0.5, 0.3 and 0.1 s
    counts = dict(zip([*BOUNDS_S, "more"], stats.duration_counts, strict=True))
    assert {bound: count for bound, count in counts.items() if count} == {1.0: 1, 0.75: 1, 0.5: 2, 0.1: 1}
    assert stats.duration_sum_s == pytest.approx(0.9 + 0.7 + 0.5 + 0.3 + 0.1)


def test_records_of_one_bucket_are_counted_at_once() -> None:
    stats = PublishStats()
    stats.took(0.9, 0.8, 3)
    stats.took(20.0, 20.0, 1)
    assert stats.duration_counts[BOUNDS_S.index(1.0)] == 3
    assert stats.duration_counts[-1] == 1
    assert sum(stats.duration_counts) == 4
    assert stats.duration_sum_s == pytest.approx(0.85 * 3 + 20)


def test_a_single_record_is_counted_where_its_call_began() -> None:
    stats = PublishStats()
    stats.took(0.6, 0.2, 1)
    assert stats.duration_counts[BOUNDS_S.index(0.75)] == 1
    assert sum(stats.duration_counts) == 1


async def test_the_duration_of_a_record_is_counted_from_its_call() -> None:
    async with shop(max_batch_records=2) as s:
        s.broker.latency_s = 0.4
        s.add("a", "b", "c")
        await s.buffer.flush()
        assert s.buffer.stats.duration_sum_s == pytest.approx(0.4 + 0.4 + 0.8)
        assert s.buffer.stats.duration_counts[BOUNDS_S.index(0.5)] == 2
        assert s.buffer.stats.duration_counts[BOUNDS_S.index(1.0)] == 1


async def test_a_buffer_without_a_listener_needs_none(caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker()
    buffer = PublishBuffer(broker, PublisherSettings(), client_id="shop-1")  # type: ignore[arg-type]  # as above
    assert await buffer.stop(flush_timeout_s=1), "nothing was started"
    await buffer.start()
    outcomes: list[Receipt | DeliveryError] = []
    buffer.add(*P0, (None, b"a", []), "id-a", lambda _, outcome: outcomes.append(outcome), None)
    with caplog.at_level(logging.WARNING):
        assert await buffer.stop(flush_timeout_s=5)
    assert outcomes == [Receipt(id="id-a", topic="rides", partition=0, offset=0)]
    assert caplog.records == []
