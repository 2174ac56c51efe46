"""Under `ExactlyOnce` a transaction that fails is written again, and neither its events nor its offsets come twice."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from hailbus import (
    Backoff,
    Context,
    DeliveryError,
    Event,
    ExactlyOnce,
    Reject,
    Retry,
    Service,
    SubscriberSettings,
    Topic,
    TopicPartition,
)
from hailbus._transport import Outgoing
from hailbus.dead_letter import dead_letter_topic
from hailbus.errors import BrokerUnreachableError, ProducerFencedError, RecordTooLargeError
from hailbus.testing import Harness, MemoryBus
from hailbus.testing.memory import MemoryProducer

pytestmark = pytest.mark.usefixtures("virtual_time")

ORDERS = Topic("orders.v1", partitions=1)
BILLS = Topic("bills.v1", partitions=1)
P0 = TopicPartition("orders.v1", 0)
Act = Callable[["Placed"], Awaitable[Any]]


class Placed(Event, topic=ORDERS, key="order_id", type="order.placed"):
    order_id: str = "a"
    number: int = 0


class Cancelled(Event, topic=ORDERS, key="order_id", type="order.cancelled"):
    order_id: str = "a"


class Billed(Event, topic=BILLS, key="order_id", type="order.billed"):
    order_id: str = "a"
    number: int = 0


class Faulty(MemoryBus):
    """A cluster whose coordinator fails at the steps that the test names, once for each error given."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: dict[str, list[BaseException]] = {}
        self.steps: list[str] = []
        self.times: list[float] = []
        self.commits_despite_error = False
        self.hangs: set[str] = set()

    def producer(self, *, client_id: str, transactional_id: str | None = None) -> MemoryProducer:
        if transactional_id is None:
            return super().producer(client_id=client_id)
        return FaultyProducer(self, transactional_id)

    async def step(self, name: str) -> None:
        self.steps.append(name)
        self.times.append(now())
        if name in self.hangs:
            await asyncio.Event().wait()
        if errors := self.errors.get(name):
            raise errors.pop(0)

    def times_of(self, name: str) -> list[float]:
        return [round(at, 6) for step, at in zip(self.steps, self.times, strict=True) if step == name]


class FaultyProducer(MemoryProducer):
    def __init__(self, bus: Faulty, transactional_id: str) -> None:
        super().__init__(bus, transactional_id)
        self._faults = bus

    async def start(self) -> None:
        await super().start()
        await self._faults.step("start")

    async def stop(self) -> None:
        await self._faults.step("stop")
        if self._transaction is not None:
            await super().abort()

    async def begin(self) -> None:
        await self._faults.step("begin")
        await super().begin()

    async def send(self, topic: str, partition: int, records: Sequence[Outgoing]) -> Sequence[int]:
        await self._faults.step(f"send {topic} {len(records)}")
        return await super().send(topic, partition, records)

    async def send_offsets(self, offsets: Mapping[TopicPartition, int], group: str) -> None:
        await self._faults.step(f"offset {offsets[P0]}")
        await super().send_offsets(offsets, group)

    async def commit(self) -> None:
        if self._faults.commits_despite_error:
            self._faults.commits_despite_error = False
            await super().commit()
        await self._faults.step("commit")
        await super().commit()

    async def abort(self) -> None:
        await self._faults.step("abort")
        await super().abort()


def now() -> float:
    return asyncio.get_running_loop().time()


@asynccontextmanager
async def billing(bus: Faulty, act: Act | None = None, **options: Any) -> AsyncIterator[tuple[Harness, list[int]]]:
    """A service that bills each order, or does what the test says; and the numbers of the handled orders."""
    svc = Service("billing", subscribing=SubscriberSettings(commit_interval=timedelta(milliseconds=50)))
    pub = svc.publishes(Billed)
    handled: list[int] = []

    @svc.on(Placed, delivery=ExactlyOnce(**{"retry": Backoff(attempts=1), **options}))
    async def bill(event: Placed, ctx: Context) -> Any:
        handled.append(event.number)
        await pub.publish(Billed(order_id=event.order_id, number=event.number))
        return await act(event) if act is not None else None

    async with bus.run(svc) as t:
        t.expect_dead_letters()
        await t.settle()
        bus.steps.clear()
        bus.times.clear()
        yield t, handled


def bills(bus: MemoryBus) -> list[int]:
    """The numbers of the bills that a reader of committed records sees."""
    records, _ = bus.readable(TopicPartition("bills.v1", 0), 0, 1_000, committed_only=True)
    return [Billed.model_validate_json(record.value or b"").number for record in records]


def letters(bus: MemoryBus) -> list[dict[str, bytes]]:
    return [dict(letter.headers) for letter in bus.records(dead_letter_topic(ORDERS, "billing"))]


async def test_what_waits_is_written_in_one_transaction_of_a_bounded_size() -> None:
    bus = Faulty()
    release = asyncio.Event()

    async def act(event: Placed) -> None:
        if event.number == 0:
            await release.wait()

    async with billing(bus, act, max_items=3) as (t, handled):
        await t.given(Placed(number=0))
        await asyncio.sleep(1)
        await t.given(*(Placed(number=number) for number in range(1, 6)))
        await asyncio.sleep(1)
        release.set()
        await t.settle()
        assert handled == [0, 1, 2, 3, 4, 5]
        assert bills(bus) == handled
        assert [step for step in bus.steps if step.startswith("offset")] == ["offset 1", "offset 4", "offset 6"]
        assert [step for step in bus.steps if step.startswith("send")] == [
            "send bills.v1 1",
            "send bills.v1 3",
            "send bills.v1 2",
        ]
    assert bus.committed("billing")[P0] == 6


@pytest.mark.parametrize("step", ["begin", "send bills.v1 1", "offset 1"])
async def test_a_transaction_that_cannot_be_written_is_aborted_and_written_again(step: str) -> None:
    bus = Faulty()
    async with billing(bus) as (t, handled):
        bus.errors[step] = [DeliveryError("away", topic="bills.v1", retriable=True), TimeoutError("still away")]
        await t.given(Placed(number=1))
        await t.settle()
        assert handled == [1], "the handler is not called again"
        assert bills(bus) == [1]
        assert bus.steps.count("abort") == (0 if step == "begin" else 2)
        assert "start" not in bus.steps, "the producer is kept"
        assert bus.steps.count("commit") == 1
    assert bus.committed("billing")[P0] == 1


@pytest.mark.parametrize("committed", [False, True])
async def test_after_a_commit_of_unknown_outcome_a_new_producer_finds_out(committed: bool) -> None:
    bus = Faulty()
    async with billing(bus) as (t, handled):
        bus.commits_despite_error = committed
        bus.errors["commit"] = [TimeoutError("no answer")]
        await t.given(*(Placed(number=number) for number in range(3)))
        await t.settle()
        assert handled == bills(bus) == [0, 1, 2]
        assert "abort" not in bus.steps, "a commit that has begun cannot be taken back"
        assert bus.steps.count("start") == 1
        assert bus.steps.count("begin") == (1 if committed else 2)
        await t.given(Placed(number=3))
        await t.settle()
        assert handled == bills(bus) == [0, 1, 2, 3]
    assert bus.committed("billing")[P0] == 4


@pytest.mark.parametrize("how", ["raises", "hangs"])
async def test_a_transaction_that_cannot_be_aborted_is_ended_by_a_new_producer(how: str) -> None:
    bus = Faulty()
    async with billing(bus) as (t, handled):
        bus.errors["send bills.v1 1"] = [TimeoutError("away")]
        if how == "raises":
            bus.errors["abort"] = [TimeoutError("still away"), TimeoutError("still away")]
        else:
            bus.hangs.add("abort")
        await t.given(Placed(number=1))
        await asyncio.sleep(6)
        bus.hangs.clear()
        await t.settle()
        assert (handled, bills(bus)) == ([1], [1])
        assert bus.steps.count("start") == 1
        if how == "hangs":
            assert bus.times_of("stop")[0] == bus.times_of("abort")[0] + 5


async def test_a_fenced_producer_is_replaced_after_a_delay_that_doubles() -> None:
    bus = Faulty()
    async with billing(bus) as (t, handled):
        fenced = ProducerFencedError(transactional_id="x")
        bus.errors["begin"] = [fenced] * 7
        await t.given(Placed(number=1))
        await t.settle()
        began = bus.times_of("begin")
        assert [round(b - a, 6) for a, b in itertools.pairwise(began)] == [1, 2, 4, 8, 16, 30, 30]
        assert bills(bus) == [1]
        assert handled == [1] * 8, "the member after it might have had other records: they are handled again"
        bus.errors["begin"] = [fenced]
        await t.given(Placed(number=2))
        await t.settle()
        first, second = bus.times_of("begin")[-2:]
        assert round(second - first, 6) == 1, "the delay begins anew after a commit"
        assert bus.steps.count("stop") == 8
    assert bus.committed("billing")[P0] == 2


async def test_a_producer_that_cannot_register_is_stopped_and_another_one_tried() -> None:
    bus = Faulty()
    bus.errors["start"] = [BrokerUnreachableError(bootstrap="memory", waited_s=1), TimeoutError("no answer")]
    async with billing(bus) as (t, handled):
        await t.given(Placed(number=1))
        await t.settle()
        assert (handled, bills(bus)) == ([1], [1])
    assert (bus.steps.count("start"), bus.steps.count("stop")) == (2, 2), "none stays open, counted from the second"


async def test_what_a_handler_published_before_it_failed_is_not_written() -> None:
    bus = Faulty()

    async def act(event: Placed) -> Any:
        match event.number:
            case 1:
                raise ValueError("no")
            case 2:
                return Reject("not this one")
            case 3:
                raise asyncio.CancelledError
            case _:
                return None

    async with billing(bus, act) as (t, handled):
        await t.given(*(Placed(number=number) for number in range(5)))
        await t.settle()
        assert handled == [0, 1, 2, 3, 4]
        assert bills(bus) == [0, 4]
        assert [letter["kafka_dlt-original-offset"] for letter in letters(bus)] == [b"1", b"2", b"3"]


async def test_a_retry_commits_what_came_before_it_and_forgets_what_it_published_itself() -> None:
    bus = Faulty()
    asked: list[float] = []

    async def act(event: Placed) -> Any:
        if event.number == 1:
            asked.append(now())
            if len(asked) < 3:
                return Retry(after=timedelta(seconds=5), limit=9)
        return None

    async with billing(bus, act) as (t, handled):
        await t.given(*(Placed(number=number) for number in range(3)))
        await asyncio.sleep(1)
        assert bus.committed("billing")[P0] == 1
        await t.settle()
        assert bills(bus) == [0, 1, 2]
        assert handled == [0, 1, 1, 1, 2]
        assert [round(b - a, 6) for a, b in itertools.pairwise(asked)] == [5, 5]


async def test_events_that_are_known_and_not_handled_here_are_skipped_at_once() -> None:
    bus = Faulty()
    svc = Service("billing")
    svc.publishes(Cancelled)
    handled: list[int] = []

    @svc.on(Placed, delivery=ExactlyOnce())
    async def take(event: Placed) -> None:
        handled.append(event.number)

    async with bus.run(svc) as t:
        began_s = now()
        await t.given(Cancelled(), Placed(number=1), Cancelled())
        await t.settle()
        assert handled == [1]
        (member,) = svc.subscribers
        assert (member.stats.skipped, member.stats.settled, member.stats.retried) == (2, 1, 0)
        assert now() - began_s < 1, "nothing waited"


# ---------------------------------------------------------------------------------------------------- too large


async def test_records_that_are_too_large_together_are_written_one_by_one() -> None:
    bus = Faulty()
    async with billing(bus) as (t, handled):
        bus.errors["send bills.v1 3"] = [RecordTooLargeError(topic="bills.v1", size_bytes=9)]
        await t.given(*(Placed(number=number) for number in range(3)))
        await t.settle()
        assert bills(bus) == handled == [0, 1, 2]
        assert letters(bus) == []
        assert [step for step in bus.steps if step.startswith("offset")][-3:] == ["offset 1", "offset 2", "offset 3"]


async def test_one_record_whose_output_is_too_large_becomes_a_dead_letter_and_the_others_do_not() -> None:
    bus = Faulty()
    async with billing(bus) as (t, handled):
        too_large = RecordTooLargeError(topic="bills.v1", size_bytes=9)
        bus.errors["send bills.v1 1"] = [too_large]
        await t.given(Placed(number=7))
        await t.settle()
        assert (bills(bus), handled) == ([], [7])
        (letter,) = letters(bus)
        assert b"9 bytes" in letter["kafka_dlt-exception-message"]
        await t.given(Placed(number=8))
        await t.settle()
        assert bills(bus) == [8]


async def test_a_letter_that_is_too_large_is_written_in_a_smaller_form() -> None:
    bus = Faulty()

    async def act(event: Placed) -> Any:
        return Reject("no") if event.number == 7 else None

    async with billing(bus, act) as (t, _):
        topic = dead_letter_topic(ORDERS, "billing")
        too_large = RecordTooLargeError(topic=topic, size_bytes=9)
        bus.errors[f"send {topic} 1"] = [too_large]
        await t.given(Placed(number=7))
        await t.settle()
        assert bills(bus) == []
        (letter,) = letters(bus)
        assert letter["kafka_dlt-exception-message"] == b"no"
        assert bus.steps.count(f"send {topic} 1") == 2
    assert bus.committed("billing")[P0] == 1


async def test_a_letter_that_no_form_makes_small_enough_holds_the_partition() -> None:
    bus = Faulty()

    async def act(event: Placed) -> Any:
        return Reject("no")

    async with billing(bus, act) as (t, handled):
        topic = dead_letter_topic(ORDERS, "billing")
        bus.errors[f"send {topic} 1"] = [RecordTooLargeError(topic=topic, size_bytes=9)] * 8
        await t.given(Placed(number=7))
        await asyncio.sleep(1)
        assert bus.committed("billing").get(P0, 0) == 0, "the record would be lost"
        tries = bus.times_of(f"send {topic} 1")
        await t.settle()
        assert len(letters(bus)) == 1
        assert handled == [7]
        assert len(bus.times_of(f"send {topic} 1")) == 9
        assert tries[-1] > tries[0], "the last form is tried again after a delay"


# ---------------------------------------------------------------------------------------------------- waiting


async def test_a_coordinator_that_does_not_answer_is_reported_after_five_seconds() -> None:
    bus = Faulty()
    async with billing(bus) as (t, _):
        bus.hangs.add("begin")
        await t.given(Placed(number=1))
        await asyncio.sleep(0.01)
        (began_s,) = bus.times_of("begin")
        await asyncio.sleep(began_s + 4.9 - now())
        (member,) = t.services[0].subscribers
        assert member.stats.outages == 0
        await asyncio.sleep(0.2)
        assert member.stats.outages == 1


async def test_reading_continues_when_a_full_queue_has_room_again() -> None:
    bus = Faulty()
    async with billing(bus, max_items=1) as (t, handled):
        began_s = now()
        for first in range(0, 16, 4):
            await t.given(*(Placed(number=number) for number in range(first, first + 4)))
            await t.settle()
        assert handled == bills(bus) == list(range(16))
        assert now() - began_s < 1, "no transaction waits for the next"


async def test_a_log_that_begins_anew_is_handled_from_its_new_beginning() -> None:
    bus = Faulty()
    async with billing(bus) as (t, handled):
        await t.given(*(Placed(number=number) for number in range(5)))
        await t.settle()
        bus.logs[P0] = []
        bus.rewind("billing", {P0: 0})
        await t.settle()
        await t.given(*(Placed(number=number) for number in range(10, 13)))
        await t.settle()
        assert handled == bills(bus) == [0, 1, 2, 3, 4, 10, 11, 12]


async def test_stopping_lets_the_event_in_progress_end_and_commits_it() -> None:
    bus = Faulty()
    began: list[int] = []
    svc = Service("billing")
    pub = svc.publishes(Billed)

    @svc.on(Placed, delivery=ExactlyOnce())
    async def bill(event: Placed) -> None:
        began.append(event.number)
        await asyncio.sleep(1)
        await pub.publish(Billed(number=event.number))

    async with bus.run(svc) as t:
        await t.given(*(Placed(number=number) for number in range(3)))
        await asyncio.sleep(0.5)
        began_s = now()
    assert now() - began_s == pytest.approx(0.5)
    assert began == bills(bus) == [0]
    assert bus.committed("billing")[P0] == 1


async def test_a_handler_that_takes_too_long_is_cancelled_at_stop_and_nothing_is_committed() -> None:
    bus = Faulty()
    svc = Service("billing", subscribing=SubscriberSettings(drain_timeout=timedelta(seconds=4)))
    pub = svc.publishes(Billed)

    @svc.on(Placed, delivery=ExactlyOnce())
    async def bill(event: Placed) -> None:
        await pub.publish(Billed(number=event.number))
        await asyncio.sleep(600)

    async with bus.run(svc) as t:
        await t.given(Placed(number=1))
        await asyncio.sleep(1)
        began_s = now()
    assert now() - began_s == pytest.approx(4)
    assert bills(bus) == []
    assert letters(bus) == [], "being cancelled is no failure"
    assert P0 not in bus.committed("billing")


async def test_a_member_that_runs_transactions_has_no_lanes_and_parks_no_keys() -> None:
    bus = Faulty()
    async with billing(bus) as (t, _):
        (member,) = t.services[0].subscribers
        assert (member.lanes_in_use, member.parked_keys) == (0, 0)
