"""What `bus.run(svc)` offers a test: settle without waiting, redelivery, typed dead letters that fail the test."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hailbus import (
    AtLeastOnce,
    Backoff,
    Batch,
    Context,
    EffectivelyOnce,
    Event,
    ExactlyOnce,
    Inbox,
    Outbox,
    Reject,
    RetryTopics,
    Service,
    SubscriberSettings,
    Topic,
    Verdict,
)
from hailbus.clock import utc_now
from hailbus.database import create_engine
from hailbus.errors import InvalidPayloadError
from hailbus.testing import MemoryBus, VirtualLoop

ORDERS = Topic("orders.v1", partitions=3)
ONCE = AtLeastOnce(retry=Backoff(attempts=1))


class OrderPlaced(Event, topic=ORDERS, key="order_id", type="order.placed"):
    order_id: str
    amount: int = 0


class OrderPaid(Event, topic=ORDERS, key="order_id", type="order.paid"):
    order_id: str


def virtual_loop() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


# ------------------------------------------------------------------------------------------------ settle


async def test_settle_commits_without_waiting_for_the_interval(bus: MemoryBus) -> None:
    svc = Service("till", subscribing=SubscriberSettings(commit_interval=timedelta(hours=10), commit_every=10_000))
    paid = svc.publishes(OrderPaid)

    @svc.on(OrderPlaced)
    async def take(event: OrderPlaced, ctx: Context) -> None:
        await paid.publish(OrderPaid(order_id=event.order_id))

    async with bus.run(svc) as t:
        await t.given(*(OrderPlaced(order_id=str(n)) for n in range(50)))
        began_s = virtual_loop().time()
        await t.settle()
        assert virtual_loop().time() == began_s, "nothing had to wait, so no time passed"
        assert t.committed(ORDERS) == t.end(ORDERS)
        assert len(t.published(OrderPaid)) == 50


def test_settle_commits_without_waiting_in_real_time_too() -> None:
    async def main() -> None:
        svc = Service("till", subscribing=SubscriberSettings(commit_interval=timedelta(hours=10)))

        @svc.on(OrderPlaced)
        async def take(event: OrderPlaced, ctx: Context) -> None: ...

        async with MemoryBus().run(svc) as t:
            await t.given(OrderPlaced(order_id="a"))
            await t.settle()
            assert t.committed(ORDERS) == t.end(ORDERS)

    asyncio.run(main())


async def test_settle_takes_virtual_time_for_retries(bus: MemoryBus) -> None:
    svc = Service("till")
    calls: list[float] = []

    @svc.on(OrderPlaced)  # five attempts by default, three seconds in all
    async def take(event: OrderPlaced, ctx: Context) -> None:
        calls.append(virtual_loop().time())
        raise ValueError("no money")

    async with bus.run(svc) as t:
        await t.given(OrderPlaced(order_id="a"))
        await t.settle()
        assert len(calls) == 5
        assert 2.5 < calls[-1] - calls[0] < 4.0
        assert t.dead_letters(OrderPlaced).one().attempts == 5


async def test_retry_topics_pass_in_virtual_time_by_the_default_clock(bus: MemoryBus) -> None:
    svc = Service("till")
    calls: list[datetime] = []

    @svc.on(
        OrderPlaced,
        delivery=AtLeastOnce(retry=Backoff(attempts=1), then=RetryTopics(timedelta(seconds=5), timedelta(minutes=10))),
    )
    async def take(event: OrderPlaced, ctx: Context) -> None:
        calls.append(utc_now())
        raise ValueError("no money")

    async with bus.run(svc) as t:
        await t.given(OrderPlaced(order_id="a"))
        await t.settle()
        t.dead_letters(OrderPlaced).one()
    assert timedelta(seconds=5) <= calls[1] - calls[0] < timedelta(seconds=10)
    assert timedelta(minutes=10) <= calls[2] - calls[1] < timedelta(minutes=11)


async def test_settle_waits_for_batches_transactions_and_outboxes(bus: MemoryBus, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'till.db'}")
    outbox, inbox = Outbox(engine), Inbox(engine, consumer="till")
    svc, totals, copies = Service("till"), Service("totals"), Service("copies")
    paid = svc.publishes(OrderPaid)
    again = copies.publishes(OrderPlaced)
    svc.relays(outbox)
    sizes: list[int] = []

    @svc.on(OrderPlaced, delivery=EffectivelyOnce(inbox=inbox))
    async def take(event: OrderPlaced, ctx: Context) -> None:
        if event.amount == 0:
            await paid.publish(OrderPaid(order_id=event.order_id), tx=ctx.tx)

    @totals.on_batch(OrderPaid)
    async def count(batch: Batch[OrderPaid]) -> None:
        sizes.append(len(batch))

    @copies.on(OrderPaid, delivery=ExactlyOnce())
    async def copy(event: OrderPaid, ctx: Context) -> None:
        await again.publish(OrderPlaced(order_id=f"again-{event.order_id}", amount=1))

    async with bus.run(svc, totals, copies) as t:
        await t.given(*(OrderPlaced(order_id=str(n)) for n in range(20)))
        await t.redeliver_last()
        await t.settle()
        assert sum(sizes) == 20
        assert len(t.published(OrderPlaced)) == 20
        for service in ("till", "totals", "copies"):
            assert bus.lag(service) == 0
    await engine.dispose()


async def test_settle_says_why_when_a_handler_hangs(bus: MemoryBus) -> None:
    svc = Service("till")

    @svc.on(OrderPlaced)
    async def take(event: OrderPlaced, ctx: Context) -> None:
        await asyncio.sleep(100_000)

    async with bus.run(svc) as t:
        await t.given(OrderPlaced(order_id="a"))
        with pytest.raises(AssertionError, match=r"within 600 s of virtual time.*till.*no progress"):
            await t.settle(timeout_s=600)


async def test_settle_says_at_once_that_a_group_reads_no_more(bus: MemoryBus) -> None:
    svc = Service("till", subscribing=SubscriberSettings(unknown_event="fail"))

    @svc.on(OrderPlaced)
    async def take(event: OrderPlaced, ctx: Context) -> None: ...

    async with bus.run(svc) as t:
        await t.given(OrderPaid(order_id="a"))
        with pytest.raises(AssertionError, match=r"cannot come to rest.*reads no more"):
            await t.settle()


async def test_clock_stands_still_while_a_thread_works(bus: MemoryBus) -> None:
    release = time.monotonic() + 0.05

    def work() -> str:
        while time.monotonic() < release:
            time.sleep(0.001)
        return "done"

    async with asyncio.timeout(0.01):  # virtual: the work takes longer than that in real time
        assert await asyncio.to_thread(work) == "done"


async def test_default_clock_is_ahead_by_the_time_that_was_skipped(bus: MemoryBus) -> None:
    before = datetime.now(UTC)
    await asyncio.sleep(3600)
    assert timedelta(hours=1) <= utc_now() - before < timedelta(hours=1, minutes=10)


# ------------------------------------------------------------------------------------------------ redelivery


async def test_the_record_given_last_is_delivered_again(bus: MemoryBus) -> None:
    svc = Service("till")
    seen: list[str] = []

    @svc.on(OrderPlaced)
    async def take(event: OrderPlaced, ctx: Context) -> None:
        seen.append(event.order_id)

    async with bus.run(svc) as t:
        for last in range(1, 25):
            seen.clear()
            records = await t.given(*(OrderPlaced(order_id=f"{last}-{n}") for n in range(last)))
            await t.redeliver_last()
            await t.settle()
            assert sorted(seen) == sorted([f"{last}-{n}" for n in range(last)] + [f"{last}-{last - 1}"])
            again = bus.logs[(records[-1].topic, records[-1].partition)][-1]  # type: ignore[index]  # a plain tuple is equal
            assert (again.key, again.value, again.headers) == (
                records[-1].key,
                records[-1].value,
                records[-1].headers,
            )


async def test_redelivery_before_any_given_says_what_is_missing(bus: MemoryBus) -> None:
    async with bus.run(Service("till")) as t:
        with pytest.raises(AssertionError, match=r"call given\(event\) before it"):
            await t.redeliver_last()


# ------------------------------------------------------------------------------------------------ dead letters


async def test_dead_letters_are_typed_and_say_why(bus: MemoryBus) -> None:
    svc = Service("till")

    @svc.on(OrderPlaced, delivery=AtLeastOnce(retry=Backoff(attempts=3)))
    async def take(event: OrderPlaced, ctx: Context) -> Verdict | None:
        if event.amount == 7:
            return Reject("seven is not sold here")
        raise LookupError(f"no {event.order_id}")

    async with bus.run(svc) as t:
        (source,) = await t.given(OrderPlaced(order_id="a"))
        await t.given(OrderPlaced(order_id="b", amount=7))
        bad = await t.given_record(ORDERS, b"{", key=b"c", headers=source.headers)
        await t.settle()
        by_key = {letter.key: letter for letter in t.dead_letters(OrderPlaced)}
        failed, parked, broken = by_key[b"a"], by_key[b"b"], by_key[b"c"]
        assert failed.event == OrderPlaced(order_id="a")
        assert (failed.error, failed.reason, failed.attempts) == ("LookupError", "no a", 3)
        assert (failed.topic, failed.partition, failed.offset) == ("orders.v1", source.partition, source.offset)
        assert failed.group == "till"
        assert failed.by.endswith("take")
        assert "LookupError: no a" in failed.stacktrace
        assert (parked.event.amount, parked.error, parked.reason) == (7, None, "seven is not sold here")
        assert (broken.value, broken.attempts, broken.by) == (b"{", 0, "decoder")
        assert broken.error == "hailbus.errors.InvalidPayloadError"
        assert broken.offset == bad.offset
        with pytest.raises(InvalidPayloadError):
            _ = broken.event
        assert len(t.dead_letters()) == len(t.dead_letters(ORDERS, group="till")) == 3
        t.dead_letters(OrderPaid).none()
        t.dead_letters(ORDERS, group="another").none()
        with pytest.raises(AssertionError, match="3 dead letters of OrderPlaced, not one"):
            t.dead_letters(OrderPlaced).one()


async def _failing(bus: MemoryBus, *, looks: bool, announces: bool) -> None:
    svc = Service("till")

    @svc.on(OrderPlaced, delivery=ONCE)
    async def take(event: OrderPlaced, ctx: Context) -> None:
        raise LookupError("no money")

    async with bus.run(svc) as t:
        if announces:
            t.expect_dead_letters()
        await t.given(OrderPlaced(order_id="a"), OrderPlaced(order_id="b"))
        await t.settle()
        if looks:
            assert t.dead_letters(OrderPlaced)[0].error == "LookupError"


async def test_unexpected_dead_letters_fail_the_test(bus: MemoryBus) -> None:
    with pytest.raises(AssertionError, match=r"unexpected dead letters: .*order\.placed orders\.v1-.*no money"):
        await _failing(bus, looks=False, announces=False)


async def test_dead_letters_that_the_test_looks_at_or_announces_do_not_fail_it(bus: MemoryBus) -> None:
    await _failing(bus, looks=True, announces=False)
    await _failing(bus, looks=False, announces=True)


async def test_a_failing_test_keeps_its_own_error(bus: MemoryBus) -> None:
    svc = Service("till")
    svc.publishes(OrderPaid)

    @svc.on(OrderPlaced, delivery=ONCE)
    async def take(event: OrderPlaced, ctx: Context) -> None:
        raise LookupError("no money")

    async def test() -> None:
        async with bus.run(svc) as t:
            await t.given(OrderPlaced(order_id="a"))
            await t.settle()
            t.published(OrderPaid).one()

    with pytest.raises(AssertionError, match=r"0 OrderPaid were published, not one; dead letters: .*LookupError"):
        await test()


async def test_dead_letters_of_an_earlier_run_count_for_that_run_only(bus: MemoryBus) -> None:
    await _failing(bus, looks=True, announces=False)
    svc = Service("till")

    @svc.on(OrderPlaced)
    async def take(event: OrderPlaced, ctx: Context) -> None: ...

    async with bus.run(svc) as t:
        await t.settle()
        t.dead_letters().none()
