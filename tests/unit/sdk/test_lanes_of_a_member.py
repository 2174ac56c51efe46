"""Handlers of single events: which may overlap, how many at once, and what stopping and revoking wait for."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Literal

import pytest
from hailbus import (
    AtLeastOnce,
    Backoff,
    ConfigurationError,
    Context,
    Event,
    Retry,
    Service,
    SubscriberSettings,
    Topic,
    TopicPartition,
    upcast,
)
from hailbus._consuming.lanes import YIELD_EVERY
from hailbus._transport import Outgoing
from hailbus.codec import encode, envelope_for
from hailbus.dead_letter import dead_letter_topic
from hailbus.testing import MemoryBus

ORDERS = Topic("orders.v1", partitions=1)
P0 = TopicPartition("orders.v1", 0)
FAST = SubscriberSettings(commit_interval=timedelta(milliseconds=10))
Act = Callable[["Placed"], Awaitable[Any]]


class PlacedV1(Event, topic=ORDERS, key="order_id", type="order.placed", version=1):
    order_id: str
    number: int


class Placed(Event, topic=ORDERS, key="order_id", type="order.placed", version=2):
    order_id: str = "a"
    number: int = 0


class Cancelled(Event, topic=ORDERS, key="order_id", type="order.cancelled"):
    order_id: str


@upcast(PlacedV1, Placed)
def _to_v2(old: PlacedV1) -> Placed:
    return Placed(order_id=old.order_id, number=old.number)


def record(event: Event, event_id: str, *, headers_in_order: bool = True) -> Outgoing:
    key, value, headers = encode(event, envelope_for(event, source="/till", id=event_id))
    return key, value, list(headers) if headers_in_order else list(reversed(headers))


def till(act: Act, **options: Any) -> Service:
    svc = Service("till", subscribing=options.pop("subscribing", FAST))

    @svc.on(Placed, delivery=AtLeastOnce(**{"retry": Backoff(attempts=1), **options}))
    async def take(event: Placed, ctx: Context) -> Any:
        return await act(event)

    return svc


def now() -> float:
    return asyncio.get_running_loop().time()


class Overlaps:
    """A handler that takes a second, and the most calls that ran at the same time: in all, and for one key."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self.most = self.most_of_a_key = 0
        self.ended: list[int] = []

    async def act(self, event: Placed) -> None:
        self.running[event.order_id] += 1
        self.most = max(self.most, self.running.total())
        self.most_of_a_key = max(self.most_of_a_key, *self.running.values())
        await asyncio.sleep(1)
        self.running[event.order_id] -= 1
        self.ended.append(event.number)


@pytest.mark.parametrize("headers_in_order", [True, False], ids=["our headers", "headers in another order"])
@pytest.mark.parametrize(("order", "most", "most_of_a_key"), [("partition", 1, 1), ("key", 3, 1), ("none", 6, 2)])
async def test_handlers_overlap_as_their_order_allows(
    bus: MemoryBus, order: Literal["partition", "key", "none"], most: int, most_of_a_key: int, headers_in_order: bool
) -> None:
    calls = Overlaps()
    async with bus.run(till(calls.act, order=order)) as t:
        events = [Placed(order_id=key, number=number) for number, key in enumerate("abcabc")]
        bus.append(
            "orders.v1", 0, [record(event, f"e{event.number}", headers_in_order=headers_in_order) for event in events]
        )
        await t.settle()
    assert sorted(calls.ended) == list(range(6))
    assert (calls.most, calls.most_of_a_key) == (most, most_of_a_key)


async def test_no_more_handlers_run_at_once_than_may_and_none_less_after_many_rounds(bus: MemoryBus) -> None:
    calls = Overlaps()
    async with bus.run(till(calls.act, max_in_flight=3)) as t:
        for _ in range(12):
            calls.most = 0
            began_s = now()
            await t.given(*(Placed(order_id=str(number), number=number) for number in range(6)))
            await t.settle()
            assert calls.most == 3
            assert now() - began_s < 2.5, "two rounds of three"


async def test_waking_a_member_without_work_starts_no_worker(bus: MemoryBus) -> None:
    calls = Overlaps()
    svc = till(calls.act)
    async with bus.run(svc) as t:
        await t.settle()
        (member,) = svc.subscribers
        member._lanes.wake()  # type: ignore[union-attr]  # of single events
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert not any(name.startswith("hailbus-work") for name in names)


async def test_an_event_whose_retry_is_due_comes_before_later_events(bus: MemoryBus) -> None:
    tried: list[int] = []

    async def act(event: Placed) -> Retry | None:
        tried.append(event.number)
        await asyncio.sleep(0.01)
        return Retry(after=timedelta(milliseconds=5)) if tried.count(0) == 1 and event.number == 0 else None

    async with bus.run(till(act, max_in_flight=1, retry=Backoff(attempts=2))) as t:
        bus.append("orders.v1", 0, [record(Placed(order_id=str(n), number=n), f"e{n}") for n in range(20)])
        await t.settle()
    assert tried == [0, 1, 0, *range(2, 20)]


@pytest.mark.parametrize("version", [1, 2])
async def test_handlers_that_never_wait_leave_the_event_loop_its_turn(bus: MemoryBus, version: int) -> None:
    handled: list[int] = []
    turns: list[int] = []

    async def act(event: Placed) -> None:
        handled.append(event.number)

    async def others() -> None:
        while True:
            turns.append(len(handled))
            await asyncio.sleep(0)

    made = Placed if version == 2 else PlacedV1
    count = 8 * YIELD_EVERY
    settings = SubscriberSettings(commit_interval=timedelta(seconds=1), poll_records=count, max_buffered=count)
    async with bus.run(till(act, subscribing=settings, max_in_flight=1)) as t:
        await t.settle()
        task = asyncio.ensure_future(others())
        bus.append("orders.v1", 0, [record(made(order_id=str(n % 7), number=n), f"e{n}") for n in range(count)])
        async with asyncio.timeout(60):
            while len(handled) < count:  # noqa: ASYNC110 the handler's own account is the condition
                await asyncio.sleep(0)
        task.cancel()
        await t.settle()
    steps = [after - before for before, after in itertools.pairwise(turns)]
    assert max(steps) <= YIELD_EVERY + 16
    assert handled.count(0) == 1


async def test_a_value_in_structured_mode_is_read_as_such_beside_the_attributes_of_another_record(
    bus: MemoryBus,
) -> None:
    numbers: list[int] = []

    async def act(event: Placed) -> None:
        numbers.append(event.number)

    first = record(Placed(number=1), "e1")
    key, value, headers = record(Placed(number=2), "e2")
    event = Placed(number=3)
    _, structured, (content_type, *_) = encode(event, envelope_for(event, source="/till", id="e3"), "structured")
    assert [name for name, _ in headers][6] == "content-type"
    mixed: Outgoing = (key, structured, [*headers[:6], content_type, *headers[7:]])
    assert json.loads(structured or b"")["id"] == "e3"
    async with bus.run(till(act)) as t:
        bus.append("orders.v1", 0, [first, (key, value, headers), mixed, record(Placed(number=4), "e4")])
        await t.settle()
    assert numbers == [1, 2, 3, 4]


@pytest.mark.parametrize("length", [5, 6, 7])
async def test_records_with_fewer_headers_are_handled_as_well(bus: MemoryBus, length: int) -> None:
    numbers: list[int] = []

    async def act(event: Placed) -> None:
        numbers.append(event.number)

    key, value, headers = record(Placed(number=2), "e2")
    async with bus.run(till(act)) as t:
        bus.append("orders.v1", 0, [record(Placed(number=1), "e1"), (key, value, headers[:length])])
        await t.settle()
    assert numbers == [1, 2]


# ---------------------------------------------------------------------------------------------------- stopping


async def test_stopping_waits_for_the_handlers_that_run_and_no_longer(bus: MemoryBus) -> None:
    calls = Overlaps()
    settings = SubscriberSettings(drain_timeout=timedelta(seconds=20))
    svc = till(calls.act, subscribing=settings)
    async with svc.running(bus):
        bus.append("orders.v1", 0, [record(Placed(order_id=key, number=n), f"e{n}") for n, key in enumerate("aab")])
        await asyncio.sleep(0.5)
        began_s = now()
    assert now() - began_s == 0.5
    assert sorted(calls.ended) == [0, 2], "the second event of the key is not begun"
    assert bus.committed("till")[P0] == 1


async def test_stopping_begins_no_further_event_of_what_was_read(bus: MemoryBus) -> None:
    calls = Overlaps()
    async with till(calls.act, max_in_flight=1).running(bus):
        bus.append("orders.v1", 0, [record(Placed(order_id=str(n), number=n), f"e{n}") for n in range(5)])
        await asyncio.sleep(1.5)
    assert calls.ended == [0, 1]
    assert bus.committed("till")[P0] == 2


async def test_a_partition_that_goes_takes_what_was_read_of_it_along(bus: MemoryBus) -> None:
    calls = Overlaps()
    async with bus.run(till(calls.act, max_in_flight=1)) as t:
        bus.append("orders.v1", 0, [record(Placed(order_id=str(n), number=n), f"e{n}") for n in range(5)])
        await asyncio.sleep(1.5)
        bus.rebalance("till")
        await t.settle()
    assert calls.ended == [0, 1, 2, 3, 4], "once each"
    assert calls.most == 1


async def test_a_handler_that_takes_too_long_is_cancelled_at_stop_and_its_event_comes_again(
    bus: MemoryBus, caplog: pytest.LogCaptureFixture
) -> None:
    began: list[int] = []

    async def act(event: Placed) -> None:
        began.append(event.number)
        if event.number == 1 and began.count(1) == 1:
            await asyncio.sleep(600)

    settings = SubscriberSettings(drain_timeout=timedelta(seconds=20))
    svc = till(act, subscribing=settings)
    async with svc.running(bus):
        bus.append("orders.v1", 0, [record(Placed(number=n), f"e{n}") for n in range(3)])
        await asyncio.sleep(0.5)
        began_s = now()
    assert now() - began_s == 20
    assert any("drain_timed_out" in line.getMessage() for line in caplog.records)
    assert bus.committed("till")[P0] == 1
    assert bus.records(dead_letter_topic(ORDERS, "till")) == [], "being cancelled is no failure"
    async with bus.run(till(act)) as t:
        await t.settle()
    assert began == [0, 1, 1, 2]


async def test_stopping_does_not_wait_for_an_event_that_waits_for_its_retry(bus: MemoryBus) -> None:
    tried: list[float] = []

    async def act(event: Placed) -> Retry:
        tried.append(now())
        return Retry(after=timedelta(seconds=10), limit=99)

    async with till(act).running(bus):
        bus.append("orders.v1", 0, [record(Placed(), "e")])
        await asyncio.sleep(1)
        began_s = now()
    assert now() == began_s
    assert len(tried) == 1


async def test_an_exception_that_ends_a_generator_is_no_failure_of_the_event(
    bus: MemoryBus, no_worker_dies: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[float] = []

    async def act(event: Placed) -> None:
        tried.append(now())
        if len(tried) < 3:
            raise GeneratorExit

    with caplog.at_level(logging.CRITICAL, "asyncio"):
        async with bus.run(till(act)) as t:
            await t.given(Placed())
            await t.settle()
    assert [round(b - a, 6) for a, b in itertools.pairwise(tried)] == [1, 1]
    assert len(no_worker_dies) == 2, "another worker takes the place of each after a second"
    no_worker_dies.clear()
    assert bus.records(dead_letter_topic(ORDERS, "till")) == []


# ---------------------------------------------------------------------------------------------------- refusals


async def test_a_group_that_would_start_at_both_ends_is_refused(bus: MemoryBus) -> None:
    svc = Service("till")

    @svc.on(Placed, start="earliest")
    async def take(event: Placed) -> None: ...

    @svc.on(Cancelled, start="latest")
    async def drop(event: Cancelled) -> None: ...

    with pytest.raises(ConfigurationError, match="group 'till' has subscriptions that start at both ends"):
        async with svc.running(bus):
            pass
