"""Batches in which something is odd: what can be handled is handled, and the rest ends where its reason is written."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from hailbus import (
    AtLeastOnce,
    AtMostOnce,
    Backoff,
    Batch,
    Done,
    EffectivelyOnce,
    Event,
    Inbox,
    Reject,
    Retry,
    Service,
    Skip,
    SubscriberSettings,
    Topic,
    Verdict,
    upcast,
)
from hailbus.codec import encode, envelope_for
from hailbus.database import create_engine
from hailbus.dead_letter import dead_letter_topic
from hailbus.schema_id import prefix_of
from hailbus.testing import MemoryBus
from sqlalchemy import text

ORDERS = Topic("orders.v1", partitions=1)
STOCK = Topic("stock.v1", partitions=1, cleanup_policy="compact")
FAST = SubscriberSettings(commit_interval=timedelta(milliseconds=10))
TWICE = AtLeastOnce(retry=Backoff(first=timedelta(milliseconds=1), attempts=2))
LONG = timedelta(seconds=30)


class OrderPaidV1(Event, topic=ORDERS, key="order_id", type="order.paid", version=1):
    order_id: str
    amount: int


class OrderPaid(Event, topic=ORDERS, key="order_id", type="order.paid", version=2):
    order_id: str
    cents: int


@upcast(OrderPaidV1, OrderPaid)
def _to_cents(old: OrderPaidV1) -> OrderPaid:
    return OrderPaid(order_id=old.order_id, cents=old.amount * 100)


class StockCounted(Event, topic=STOCK, key="item", type="stock.counted"):
    item: str
    count: int


Headers = list[tuple[str, bytes]]


def record(event: Event, event_id: str) -> tuple[bytes | None, bytes, Headers]:
    key, value, headers = encode(event, envelope_for(event, source="/till", id=event_id))
    return key, value, list(headers)


def paid(cents: int, event_id: str) -> tuple[bytes | None, bytes, Headers]:
    return record(OrderPaid(order_id="a", cents=cents), event_id)


def letters(bus: MemoryBus, topic: Topic = ORDERS) -> list[tuple[str, str, str]]:
    """Id, who set the record aside, and the reason, of each dead letter of the group `till`."""
    found = [dict(letter.headers) for letter in bus.records(dead_letter_topic(topic, "till"))]
    return [
        (one["ce_id"].decode(), one["hailbus-failed-by"].decode(), one["kafka_dlt-exception-message"].decode())
        for one in found
    ]


async def handled(bus: MemoryBus, svc: Service, topic: Topic) -> None:
    """Run the service until its group has committed the topic's end."""
    async with svc.running(bus), asyncio.timeout(20):
        while bus.committed("till") != bus.end(topic):  # noqa: ASYNC110 any state of the bus may be the condition
            await asyncio.sleep(0.002)


async def test_what_cannot_be_decoded_is_taken_out_of_its_batch(bus: MemoryBus) -> None:
    svc = Service("till", subscribing=FAST)
    calls: list[list[int]] = []

    @svc.on_batch(OrderPaid, delivery=TWICE, max_items=3, max_wait=LONG)
    async def take(batch: Batch[OrderPaid]) -> None:
        calls.append([event.cents for event in batch.events])

    bus.create(ORDERS)
    key, _, headers = paid(2, "bad")
    bus.append("orders.v1", 0, [paid(1, "e1"), (key, b"not json", headers), paid(3, "e3")])
    await handled(bus, svc, ORDERS)
    assert calls == [[1, 3]]
    ((event_id, by, _),) = letters(bus)
    assert (event_id, by) == ("bad", "decoder")
    (letter,) = bus.records(dead_letter_topic(ORDERS, "till"))
    assert dict(letter.headers)["hailbus-attempt"] == b"0"


async def test_older_versions_reach_a_batch_as_the_newest(bus: MemoryBus) -> None:
    svc = Service("till", subscribing=FAST)
    calls: list[list[int]] = []

    @svc.on_batch(OrderPaid, delivery=TWICE, max_items=3, max_wait=LONG)
    async def take(batch: Batch[OrderPaid]) -> None:
        assert all(type(event) is OrderPaid for event in batch.events)
        calls.append([event.cents for event in batch.events])

    bus.create(ORDERS)
    old = [record(OrderPaidV1(order_id="a", amount=amount), f"old{amount}") for amount in (1, 2)]
    bus.append("orders.v1", 0, [*old, paid(7, "new")])
    await handled(bus, svc, ORDERS)
    assert [cents for call in calls for cents in call] == [100, 200, 7]


async def test_a_tombstone_is_no_event_of_a_batch(bus: MemoryBus) -> None:
    svc = Service("till", subscribing=FAST)
    calls: list[list[int]] = []

    @svc.on_batch(StockCounted, delivery=TWICE, max_items=3, max_wait=LONG)
    async def count(batch: Batch[StockCounted]) -> None:
        calls.append([event.count for event in batch.events])

    bus.create(STOCK)
    first, last = (record(StockCounted(item="pen", count=number), f"e{number}") for number in (1, 3))
    bus.append("stock.v1", 0, [first, (first[0], None, first[2]), last])
    await handled(bus, svc, STOCK)
    assert calls == [[1, 3]]
    assert letters(bus, STOCK) == []


@pytest.mark.parametrize("with_id", [{0, 1, 2}, {0}, {1}, {2}, {1, 2}])
async def test_schema_ids_in_front_of_some_values_are_passed_over(bus: MemoryBus, with_id: set[int]) -> None:
    svc = Service("till", subscribing=FAST)
    calls: list[list[int]] = []

    @svc.on_batch(OrderPaid, delivery=TWICE, max_items=3, max_wait=LONG)
    async def take(batch: Batch[OrderPaid]) -> None:
        calls.append([event.cents for event in batch.events])

    bus.create(ORDERS)
    written = [paid(number, f"e{number}") for number in range(3)]
    bus.append(
        "orders.v1",
        0,
        [
            (key, prefix_of(7) + value if number in with_id else value, headers)
            for number, (key, value, headers) in enumerate(written)
        ],
    )
    await handled(bus, svc, ORDERS)
    assert calls == [[0, 1, 2]]
    assert letters(bus) == []


async def test_at_most_once_gives_a_failing_batch_up(bus: MemoryBus) -> None:
    svc = Service("till", subscribing=FAST)
    calls: list[list[int]] = []

    @svc.on_batch(OrderPaid, delivery=AtMostOnce(), max_items=2, max_wait=LONG)
    async def take(batch: Batch[OrderPaid]) -> None:
        calls.append([event.cents for event in batch.events])
        raise ValueError("lost")

    bus.create(ORDERS)
    bus.append("orders.v1", 0, [paid(number, f"e{number}") for number in range(4)])
    async with svc.running(bus), asyncio.timeout(20):
        while sum(map(len, calls)) < 4:  # noqa: ASYNC110 the handler's own account is the condition
            await asyncio.sleep(0.002)
    assert calls == [[0, 1], [2, 3]]
    assert letters(bus) == []


async def test_a_wrong_number_of_verdicts_settles_nothing_by_itself(bus: MemoryBus) -> None:
    svc = Service("till", subscribing=FAST)
    calls: list[list[int]] = []

    @svc.on_batch(OrderPaid, delivery=TWICE, max_items=2, max_wait=LONG)
    async def take(batch: Batch[OrderPaid]) -> list[Verdict]:
        calls.append([event.cents for event in batch.events])
        return [Done()] if len(batch) == 2 or calls[-1] == [1] else []

    bus.create(ORDERS)
    bus.append("orders.v1", 0, [paid(1, "e1"), paid(2, "e2")])
    await handled(bus, svc, ORDERS)
    assert calls == [[1, 2], [1], [2]]
    ((event_id, _, reason),) = letters(bus)
    assert event_id == "e2"
    assert "gave 0 verdicts for 1 events" in reason


async def test_verdicts_of_a_batch_reach_their_own_events(bus: MemoryBus) -> None:
    svc = Service("till", subscribing=FAST)
    calls: list[list[tuple[int, int]]] = []

    @svc.on_batch(OrderPaid, delivery=TWICE, max_items=4, max_wait=timedelta(milliseconds=20))
    async def take(batch: Batch[OrderPaid]) -> list[Verdict]:
        calls.append([(item.event.cents, item.ctx.attempt) for item in batch])
        verdicts: dict[int, Verdict] = {
            1: Skip("not mine"),
            2: Reject("odd amount"),
            3: Retry(timedelta(milliseconds=5)) if calls[-1][-1] == (3, 1) else Done(),
        }
        return [verdicts.get(item.event.cents, Done()) for item in batch]

    bus.create(ORDERS)
    bus.append("orders.v1", 0, [paid(number, f"e{number}") for number in range(4)])
    await handled(bus, svc, ORDERS)
    assert calls == [[(0, 1), (1, 1), (2, 1), (3, 1)], [(3, 2)]]
    ((event_id, by, reason),) = letters(bus)
    assert (event_id, reason) == ("e2", "odd amount")
    assert by.endswith("take")


async def test_later_events_of_a_key_wait_behind_a_retry_and_others_do_not(bus: MemoryBus) -> None:
    svc = Service("till", subscribing=FAST)
    order: list[tuple[str, int]] = []
    release = asyncio.Event()

    @svc.on_batch(OrderPaid, delivery=TWICE, max_items=1, max_wait=timedelta(milliseconds=5))
    async def take(batch: Batch[OrderPaid]) -> list[Verdict]:
        (item,) = batch
        order.append((item.event.order_id, item.event.cents))
        if item.event.order_id == "b":
            release.set()
        again = item.event.cents == 0 and item.event.order_id == "a" and not release.is_set()
        return [Retry(timedelta(milliseconds=30)) if again else Done()]

    bus.create(ORDERS)
    events = [("a", 0), ("a", 1), ("a", 2), ("b", 3)]
    bus.append("orders.v1", 0, [record(OrderPaid(order_id=name, cents=cents), f"e{cents}") for name, cents in events])
    await handled(bus, svc, ORDERS)
    assert order == [("a", 0), ("b", 3), ("a", 0), ("a", 1), ("a", 2)]


@pytest.mark.parametrize("odd", ["rejected", "long id", "twice"])
async def test_effectively_once_applies_a_batch_as_a_whole(bus: MemoryBus, tmp_path: Path, odd: str) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/till.db")
    async with engine.begin() as tx:
        await tx.execute(text("CREATE TABLE ledger (cents INTEGER)"))
    inbox = Inbox(engine, consumer="till")
    svc = Service("till", subscribing=FAST)
    calls: list[list[int]] = []
    delivery = EffectivelyOnce(inbox=inbox, retry=Backoff(first=timedelta(milliseconds=1), attempts=2))

    @svc.on_batch(OrderPaid, delivery=delivery, max_items=3, max_wait=LONG)
    async def take(batch: Batch[OrderPaid]) -> list[Verdict] | None:
        calls.append([event.cents for event in batch.events])
        assert batch.tx is not None
        for event in batch.events:
            await batch.tx.execute(text("INSERT INTO ledger VALUES (:cents)"), {"cents": event.cents})
        return [Reject("no account") if event.cents == 2 and odd == "rejected" else Done() for event in batch.events]

    bus.create(ORDERS)
    second = {"rejected": "e2", "long id": "x" * 256, "twice": "e1"}[odd]
    bus.append("orders.v1", 0, [paid(1, "e1"), paid(2, second), paid(3, "e3")])
    await handled(bus, svc, ORDERS)
    async with engine.connect() as connection:
        applied = list((await connection.execute(text("SELECT cents FROM ledger ORDER BY cents"))).scalars())
    counts = await inbox.counts()
    await engine.dispose()
    match odd:
        case "rejected":
            assert calls == [[1, 2, 3], [1], [2], [3]]
            assert (applied, counts) == ([1, 3], (2, 2))
            ((event_id, _, reason),) = letters(bus)
            assert event_id == "e2"
            assert "gave Retry or Reject under EffectivelyOnce" in reason
        case "long id":
            assert calls == [[1, 3]]
            assert (applied, counts) == ([1, 3], (2, 2))
            ((event_id, by, _),) = letters(bus)
            assert (event_id, by) == ("x" * 256, "inbox")
        case _:
            assert calls == [[1, 3]]
            assert (applied, counts, letters(bus)) == ([1, 3], (2, 3), [])


@pytest.mark.parametrize("alone", [False, True], ids=["whole", "one by one"])
async def test_a_batch_that_is_cancelled_at_stop_has_not_failed(bus: MemoryBus, alone: bool) -> None:
    settings = SubscriberSettings(commit_interval=timedelta(milliseconds=10), drain_timeout=timedelta(seconds=2))
    svc = Service("till", subscribing=settings)
    calls: list[list[int]] = []

    @svc.on_batch(OrderPaid, delivery=AtLeastOnce(retry=Backoff(attempts=1)), max_items=2, max_wait=LONG)
    async def take(batch: Batch[OrderPaid]) -> None:
        calls.append([event.cents for event in batch.events])
        if alone and len(batch.events) > 1:
            raise ValueError("one of them is bad")
        await asyncio.sleep(600)

    bus.create(ORDERS)
    bus.append("orders.v1", 0, [paid(number, f"e{number}") for number in range(2)])
    async with svc.running(bus):
        await asyncio.sleep(1)
        began_s = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(2)
    assert calls == ([[0, 1], [0]] if alone else [[0, 1]])
    assert letters(bus) == []
    assert set(bus.committed("till").values()) <= {0}
