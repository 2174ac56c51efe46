"""A handler is called as often as its policy says, and a verdict against an event takes its effects back."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from hailbus import (
    AtLeastOnce,
    Backoff,
    Batch,
    Context,
    EffectivelyOnce,
    Event,
    Inbox,
    Reject,
    Retry,
    Service,
    SubscriberSettings,
    Topic,
    Verdict,
)
from hailbus.database import create_engine
from hailbus.dead_letter import dead_letter_topic
from hailbus.testing import MemoryBus
from sqlalchemy import text

ORDERS = Topic("orders.v1", partitions=1)
FAST = SubscriberSettings(commit_interval=timedelta(milliseconds=10))
THREE = Backoff(first=timedelta(milliseconds=1), attempts=3)


class OrderPaid(Event, topic=ORDERS, key="order_id", type="order.paid"):
    order_id: str
    number: int = 0


async def test_a_failing_batch_is_handled_as_often_as_attempts_says_and_then_each_event_once(bus: MemoryBus) -> None:
    svc = Service("shop", subscribing=FAST)
    calls: list[list[int]] = []

    @svc.on_batch(OrderPaid, delivery=AtLeastOnce(retry=THREE), max_items=3, max_wait=timedelta(seconds=30))
    async def paid(batch: Batch[OrderPaid]) -> None:
        calls.append([event.number for event in batch.events])
        if 1 in calls[-1]:
            raise ValueError("one")

    async with bus.run(svc) as t:
        t.expect_dead_letters()
        await t.given(*(OrderPaid(order_id="a", number=number) for number in range(3)))
        await t.settle()
    assert calls == [[0, 1, 2], [0, 1, 2], [0, 1, 2], [0], [1], [2]]
    (letter,) = bus.records(dead_letter_topic(ORDERS, "shop"))
    assert letter.value == b'{"order_id":"a","number":1}'


async def test_a_batch_of_one_event_is_handled_as_often_as_attempts_says(bus: MemoryBus) -> None:
    svc = Service("shop", subscribing=FAST)
    calls = 0

    @svc.on_batch(OrderPaid, delivery=AtLeastOnce(retry=THREE), max_items=1)
    async def paid(batch: Batch[OrderPaid]) -> None:
        nonlocal calls
        calls += 1
        raise ValueError("never")

    async with bus.run(svc) as t:
        t.expect_dead_letters()
        await t.given(OrderPaid(order_id="a"))
        await t.settle()
    assert calls == 3
    assert len(bus.records(dead_letter_topic(ORDERS, "shop"))) == 1


@pytest.mark.parametrize(
    "verdict", [Reject("no such account"), Retry(timedelta(milliseconds=1))], ids=["reject", "retry"]
)
async def test_a_verdict_against_an_event_takes_its_effects_back(
    bus: MemoryBus, tmp_path: Path, verdict: Verdict
) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/till.db")
    async with engine.begin() as tx:
        await tx.execute(text("CREATE TABLE ledger (attempt INTEGER)"))
    inbox = Inbox(engine, consumer="till")
    svc = Service("till", subscribing=FAST)

    @svc.on(OrderPaid, delivery=EffectivelyOnce(inbox=inbox, retry=THREE))
    async def paid(event: OrderPaid, ctx: Context) -> Verdict | None:
        assert ctx.tx is not None
        await ctx.tx.execute(text("INSERT INTO ledger VALUES (:attempt)"), {"attempt": ctx.attempt})
        return verdict if ctx.attempt == 1 else None

    async with bus.run(svc) as t:
        t.expect_dead_letters()
        await t.given(OrderPaid(order_id="a"))
        await t.settle()
    async with engine.connect() as connection:
        applied = list((await connection.execute(text("SELECT attempt FROM ledger"))).scalars())
    letters = bus.records(dead_letter_topic(ORDERS, "till"))
    if isinstance(verdict, Reject):
        assert (applied, await inbox.counts(), len(letters)) == ([], (0, 0), 1)
    else:
        assert (applied, await inbox.counts(), len(letters)) == ([2], (1, 1), 0)
    await engine.dispose()
