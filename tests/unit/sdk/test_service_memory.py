"""A service on the memory bus: publishing, handling, verdicts, retries, dead letters, batches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta

import pytest
from hailbus import (
    AtLeastOnce,
    AtMostOnce,
    Backoff,
    Batch,
    ConfigurationError,
    Context,
    Done,
    Event,
    MissingKeyError,
    NotInContractError,
    Publisher,
    Reject,
    Retry,
    Service,
    Skip,
    SubscriberSettings,
    Topic,
    Verdict,
    bus_reader,
)
from hailbus.dead_letter import dead_letter_topic
from hailbus.testing import MemoryBus
from hailbus.testing.memory import MemoryConsumer

ORDERS = Topic("orders.v1", partitions=3)
STOCK = Topic("stock.v1", partitions=2, cleanup_policy="compact")
QUICK = AtLeastOnce(retry=Backoff(first=timedelta(milliseconds=1), attempts=3))
FAST = SubscriberSettings(commit_interval=timedelta(milliseconds=10), revoke_grace=timedelta(milliseconds=200))


class OrderPlaced(Event, topic=ORDERS, key="order_id", type="order.placed"):
    order_id: str
    amount: int = 0


class OrderPaid(Event, topic=ORDERS, key="order_id", type="order.paid"):
    order_id: str


class OrderCancelled(Event, topic=ORDERS, key="order_id", type="order.cancelled"):
    order_id: str


class StockCounted(Event, topic=STOCK, key="item", type="stock.counted"):
    item: str
    count: int


async def until(condition: Callable[[], bool], *, seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 any state of the system may be the condition
            await asyncio.sleep(0.002)


def shop(*, name: str = "shop", subscribing: SubscriberSettings = FAST) -> Service:
    return Service(name, subscribing=subscribing)


async def test_published_events_are_handled_in_order_of_their_key_and_committed() -> None:
    bus = MemoryBus()
    svc = shop()
    pub: Publisher[OrderPlaced | OrderPaid] = svc.publishes(OrderPlaced | OrderPaid)
    seen: list[tuple[str, int, str]] = []

    @svc.on(OrderPlaced)
    async def placed(event: OrderPlaced, ctx: Context) -> None:
        seen.append((event.order_id, event.amount, ctx.envelope.source))

    async with svc.running(bus):
        receipts = await pub.publish_many([OrderPlaced(order_id=str(i % 7), amount=i) for i in range(70)])
        receipt = await pub.publish(OrderPaid(order_id="1"), id="fixed")
        await until(lambda: len(seen) == 70 and bus.committed("shop") == bus.end(ORDERS))
    assert receipt.id == "fixed"
    assert len({(r.partition, r.offset) for r in receipts}) == 70
    for key in range(7):
        assert [amount for order_id, amount, _ in seen if order_id == str(key)] == list(range(key, 70, 7))
    assert {source for _, _, source in seen} == {"/shop"}


async def test_envelope_carries_time_cause_and_headers() -> None:
    bus = MemoryBus()
    svc = shop()
    pub = svc.publishes(OrderPlaced | OrderPaid)
    noon = datetime(2014, 5, 1, 12, tzinfo=UTC)
    found: list[Context] = []

    @svc.on(OrderPlaced)
    async def placed(event: OrderPlaced, ctx: Context) -> None:
        await pub.publish(OrderPaid(order_id=event.order_id), cause=ctx)

    @svc.on(OrderPaid)
    async def paid(event: OrderPaid, ctx: Context) -> None:
        found.append(ctx)

    async with svc.running(bus):
        await pub.publish(OrderPlaced(order_id="a"), id="cause", time=noon, headers=[("tenant", b"\xff")])
        await until(lambda: bool(found))
    first = bus.records(ORDERS)[0]
    assert ("tenant", b"\xff") in first.headers
    assert ("ce_time", b"2014-05-01T12:00:00Z") in first.headers
    assert (found[0].envelope.causation_id, found[0].envelope.correlation_id) == ("cause", "cause")
    assert found[0].key == b"a"
    assert found[0].envelope.subject == "a"


async def test_publisher_refuses_what_it_did_not_declare() -> None:
    svc = shop()
    pub = svc.publishes(OrderPlaced)
    with pytest.raises(ConfigurationError, match="does not run"):
        await pub.publish(OrderPlaced(order_id="1"))
    async with svc.running(MemoryBus()):
        with pytest.raises(NotInContractError, match="OrderPlaced, not OrderPaid"):
            await pub.publish(OrderPaid(order_id="1"))  # type: ignore[arg-type]  # the point of the test
        with pytest.raises(MissingKeyError):
            await pub.publish(OrderPlaced(order_id=""))
        with pytest.raises(ConfigurationError, match="partitions 0 to 2"):
            await pub.publish(OrderPlaced(order_id="1"), partition=3)
        with pytest.raises(ConfigurationError, match="belongs to the envelope"):
            await pub.publish(OrderPlaced(order_id="1"), headers=[("ce_id", b"x")])
        with pytest.raises(ConfigurationError, match="need the outbox"):
            await pub.publish(OrderPlaced(order_id="1"), not_before=datetime.now(UTC))


async def test_handlers_of_one_key_never_overlap_and_other_keys_run_meanwhile() -> None:
    bus = MemoryBus()
    svc = shop()
    pub = svc.publishes(OrderPlaced)
    running: set[str] = set()
    most = 0
    seen: list[int] = []

    @svc.on(OrderPlaced, delivery=AtLeastOnce(max_in_flight=16))
    async def placed(event: OrderPlaced, ctx: Context) -> None:
        nonlocal most
        assert event.order_id not in running
        running.add(event.order_id)
        most = max(most, len(running))
        await asyncio.sleep(0.001)
        running.discard(event.order_id)
        seen.append(event.amount)

    async with svc.running(bus):
        await pub.publish_many([OrderPlaced(order_id=str(i % 20), amount=i) for i in range(200)])
        await until(lambda: len(seen) == 200)
    assert sorted(seen) == list(range(200))
    assert most == 16


async def test_failing_handler_is_retried_with_its_key_waiting_then_dead_lettered() -> None:
    bus = MemoryBus()
    svc = shop()
    pub = svc.publishes(OrderPlaced)
    calls: list[tuple[str, int, int]] = []

    @svc.on(OrderPlaced, delivery=QUICK)
    async def placed(event: OrderPlaced, ctx: Context) -> None:
        calls.append((event.order_id, event.amount, ctx.attempt))
        if event.amount == 1:
            raise ValueError("cannot book this")

    async with svc.running(bus):
        await pub.publish(OrderPlaced(order_id="a", amount=1), id="bad")
        await pub.publish(OrderPlaced(order_id="a", amount=2))
        await pub.publish(OrderPlaced(order_id="b", amount=3))
        await until(lambda: bus.committed("shop") == {k: v for k, v in bus.end(ORDERS).items() if v})
    assert [c for c in calls if c[0] == "a"] == [("a", 1, 1), ("a", 1, 2), ("a", 1, 3), ("a", 2, 1)]
    assert ("b", 3, 1) in calls
    (letter,) = bus.records(dead_letter_topic(ORDERS, "shop"))
    headers = dict(letter.headers)
    source = next(r for r in bus.records(ORDERS) if dict(r.headers)["ce_id"] == b"bad")
    assert letter.value == source.value
    assert letter.key == b"a"
    assert letter.partition == source.partition
    assert headers["kafka_dlt-original-topic"] == b"orders.v1"
    assert headers["kafka_dlt-original-offset"] == str(source.offset).encode()
    assert headers["kafka_dlt-original-consumer-group"] == b"shop"
    assert headers["kafka_dlt-exception-fqcn"] == b"builtins.ValueError"
    assert headers["kafka_dlt-exception-message"] == b"cannot book this"
    assert headers["hailbus-attempt"] == b"3"
    assert headers["ce_id"] == b"bad"


async def test_undecodable_records_become_dead_letters_with_their_bytes() -> None:
    bus = MemoryBus()
    bus.create(ORDERS)
    svc = shop()
    good: list[str] = []

    @svc.on(OrderPlaced, delivery=QUICK)
    async def placed(event: OrderPlaced, ctx: Context) -> None:
        good.append(event.order_id)

    def headers(**changes: bytes) -> list[tuple[str, bytes]]:
        base = {
            "ce_specversion": b"1.0",
            "ce_id": b"1",
            "ce_source": b"/x",
            "ce_type": b"order.placed",
            "ce_dataschema": b"hailbus:order.placed/v1",
        }
        return list((base | changes).items())

    bad = [
        (b"k", b"not json", headers()),
        (b"k", b'{"amount": 1}', headers()),
        (b"k", b"{}", [("other", b"\xff\xfe")]),
        (b"k", b"{}", headers(ce_dataschema=b"hailbus:order.placed/v9")),
        (b"k", b"{}", headers(ce_type=b"\xff")),
        (b"k", b"broken", [("content-type", b"application/cloudevents+json")]),
    ]
    bus.append("orders.v1", 0, [*bad, (b"k", b'{"order_id": "ok"}', headers())])
    bus.append("orders.v1", 1, [(b"k", b"{}", headers(ce_type=b"order.unheard_of")), (b"k", None, headers())])
    async with svc.running(bus):
        await until(lambda: bus.committed("shop") == {k: v for k, v in bus.end(ORDERS).items() if v})
    assert good == ["ok"]
    letters = bus.records(dead_letter_topic(ORDERS, "shop"))
    assert [letter.value for letter in letters] == [value for _, value, _ in bad]
    assert {dict(letter.headers)["hailbus-failed-by"] for letter in letters} == {b"decoder"}


async def test_verdicts() -> None:
    bus = MemoryBus()
    svc = shop()
    pub = svc.publishes(OrderPlaced)
    calls: list[tuple[int, int]] = []

    @svc.on(OrderPlaced)
    async def placed(event: OrderPlaced, ctx: Context) -> Verdict | None:
        calls.append((event.amount, ctx.attempt))
        match event.amount:
            case 0:
                return Done()
            case 1:
                return Skip("not mine")
            case 2:
                return Reject("odd amount")
            case _:
                return Retry(timedelta(milliseconds=1)) if ctx.attempt < 4 else None

    async with svc.running(bus):
        for amount in range(4):
            await pub.publish(OrderPlaced(order_id=str(amount), amount=amount))
        await until(lambda: bus.committed("shop") == {k: v for k, v in bus.end(ORDERS).items() if v})
    assert sorted(calls) == [(0, 1), (1, 1), (2, 1), (3, 1), (3, 2), (3, 3), (3, 4)]
    (letter,) = bus.records(dead_letter_topic(ORDERS, "shop"))
    assert dict(letter.headers)["kafka_dlt-exception-message"] == b"odd amount"


async def test_commit_never_passes_an_unsettled_event_and_it_is_delivered_again() -> None:
    bus = MemoryBus()
    svc = shop(subscribing=SubscriberSettings(drain_timeout=timedelta(milliseconds=50)))
    pub = svc.publishes(OrderPlaced)
    done: list[int] = []
    cancelled: list[int] = []

    @svc.on(OrderPlaced)
    async def placed(event: OrderPlaced, ctx: Context) -> None:
        if event.amount == 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(3)
                raise
        done.append(event.amount)

    async with svc.running(bus):
        for amount in range(6):
            await pub.publish(OrderPlaced(order_id=str(amount), amount=amount), partition=0)
        await until(lambda: len(done) == 5)
    assert cancelled == [3]
    assert [v for k, v in bus.committed("shop").items() if k.partition == 0] == [3]

    again = Service("shop", subscribing=FAST)
    second: list[int] = []

    @again.on(OrderPlaced)
    async def retake(event: OrderPlaced, ctx: Context) -> None:
        second.append(event.amount)

    async with again.running(bus):
        await until(lambda: len(second) == 3)
    assert sorted(second) == [3, 4, 5]


async def test_at_most_once_commits_before_handling() -> None:
    bus = MemoryBus()
    svc = shop()
    pub = svc.publishes(OrderPlaced)
    seen: list[int] = []

    @svc.on(OrderPlaced, delivery=AtMostOnce())
    async def placed(event: OrderPlaced, ctx: Context) -> None:
        assert bus.committed("shop")[ctx.topic, ctx.partition] > ctx.offset  # type: ignore[index]  # equal tuples
        seen.append(event.amount)
        raise RuntimeError("lost")

    async with svc.running(bus):
        await pub.publish_many([OrderPlaced(order_id=str(i), amount=i) for i in range(10)])
        await until(lambda: len(seen) == 10)
    assert bus.records(dead_letter_topic(ORDERS, "shop")) == []


@pytest.mark.parametrize(("max_buffered", "committed"), [(1_000, [40, 80, 100]), (25, [25])])
async def test_a_commit_at_most_once_covers_four_reads_and_no_more_than_may_be_buffered(
    bus: MemoryBus, max_buffered: int, committed: list[int]
) -> None:
    svc = shop(subscribing=SubscriberSettings(poll_records=10, max_buffered=max_buffered))
    is_open = asyncio.Event()

    @svc.on(StockCounted, delivery=AtMostOnce(max_in_flight=1), start="earliest")
    async def counted(event: StockCounted, ctx: Context) -> None:
        await is_open.wait()

    filler = Service("filler")
    pub = filler.publishes(StockCounted)
    async with filler.running(bus):
        await pub.publish_many([StockCounted(item="bolt", count=n) for n in range(100)])
    async with svc.running(bus):
        (stats,) = (subscriber.stats for subscriber in svc.subscribers)
        await until(lambda: stats.committed == len(committed))
        assert list(bus.committed("shop").values()) == committed[-1:]
        is_open.set()
        await until(lambda: stats.done == 100)


async def test_batches_by_size_and_time_with_verdict_per_item() -> None:
    bus = MemoryBus()
    svc = shop()
    pub = svc.publishes(OrderPlaced)
    sizes: list[int] = []
    order: dict[str, list[tuple[int, int]]] = {}

    @svc.on_batch(OrderPlaced, max_items=8, max_wait=timedelta(milliseconds=20))
    async def heat(batch: Batch[OrderPlaced]) -> list[Verdict]:
        sizes.append(len(batch))
        verdicts: list[Verdict] = []
        for item in batch:
            retry = item.event.amount == 5 and item.ctx.attempt == 1
            verdicts.append(Retry(timedelta(milliseconds=5)) if retry else Done())
            order.setdefault(item.event.order_id, []).append((item.event.amount, item.ctx.attempt))
        return verdicts

    async with svc.running(bus):
        await pub.publish_many([OrderPlaced(order_id="a", amount=i) for i in range(20)])
        await until(lambda: bus.committed("shop") == {k: v for k, v in bus.end(ORDERS).items() if v})
    assert max(sizes) == 8
    settled = [amount for amount, attempt in order["a"] if (amount, attempt) != (5, 1)]
    assert sorted(settled) == list(range(20))


async def test_failing_batch_is_split_so_that_one_bad_event_becomes_a_dead_letter() -> None:
    bus = MemoryBus()
    svc = shop()
    pub = svc.publishes(OrderPlaced)
    applied: list[int] = []

    @svc.on_batch(OrderPlaced, delivery=QUICK, max_items=10, max_wait=timedelta(milliseconds=5))
    async def heat(batch: Batch[OrderPlaced]) -> None:
        if any(event.amount == 4 for event in batch.events):
            raise ValueError("four")
        applied.extend(event.amount for event in batch.events)

    async with svc.running(bus):
        await pub.publish_many([OrderPlaced(order_id="a", amount=i) for i in range(10)])
        await until(lambda: bus.committed("shop") == {k: v for k, v in bus.end(ORDERS).items() if v})
    assert applied == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    (letter,) = bus.records(dead_letter_topic(ORDERS, "shop"))
    assert b'"amount":4' in (letter.value or b"")


async def test_a_batch_ends_with_the_event_that_reaches_its_bytes() -> None:
    bus = MemoryBus()
    svc = shop()
    pub = svc.publishes(OrderPlaced)
    events = [OrderPlaced(order_id="a", amount=100 + number) for number in range(20)]
    size_bytes = len(events[0].model_dump_json())
    batches: list[list[int]] = []

    @svc.on_batch(OrderPlaced, max_bytes=2 * size_bytes + 1, max_wait=timedelta(milliseconds=5))
    async def heat(batch: Batch[OrderPlaced]) -> None:
        batches.append([event.amount for event in batch.events])

    async with svc.running(bus):
        await pub.publish_many(events)
        await until(lambda: bus.committed("shop") == {k: v for k, v in bus.end(ORDERS).items() if v})
    assert [amount for batch in batches for amount in batch] == [event.amount for event in events]
    assert max(len(batch) for batch in batches) == 3


async def test_events_of_several_types_reach_the_batches_of_their_own_handlers_in_order() -> None:
    bus = MemoryBus()
    svc = shop()
    pub = svc.publishes(OrderPlaced | OrderPaid | OrderCancelled)
    placed: list[int] = []
    paid: list[str] = []

    @svc.on_batch(OrderPlaced, max_items=7, max_wait=timedelta(milliseconds=5))
    async def of_placed(batch: Batch[OrderPlaced]) -> None:
        placed.extend(event.amount for event in batch.events)

    @svc.on_batch(OrderPaid, max_items=4, max_wait=timedelta(milliseconds=5))
    async def of_paid(batch: Batch[OrderPaid]) -> None:
        paid.extend(item.ctx.envelope.id for item in batch)

    async with svc.running(bus):
        for number in range(30):
            await pub.enqueue(OrderPlaced(order_id="a", amount=number))
            if number % 3 == 0:
                await pub.enqueue(OrderPaid(order_id="a"), id=f"paid-{number}")
            if number % 4 == 0:
                await pub.enqueue(OrderCancelled(order_id="a"))
        await pub.flush()
        await until(lambda: bus.committed("shop") == {k: v for k, v in bus.end(ORDERS).items() if v})
    assert placed == list(range(30))
    assert paid == [f"paid-{number}" for number in range(0, 30, 3)]


async def test_two_members_share_partitions_and_a_rebalance_loses_nothing() -> None:
    bus = MemoryBus()
    seen: list[int] = []

    def member() -> Service:
        svc = shop()

        @svc.on(OrderPlaced)
        async def placed(event: OrderPlaced, ctx: Context) -> None:
            await asyncio.sleep(0.0005)
            seen.append(event.amount)

        return svc

    source = Service("source")
    pub = source.publishes(OrderPlaced)
    first, second = member(), member()
    async with source.running(bus), first.running(bus):
        await pub.publish_many([OrderPlaced(order_id=str(i), amount=i) for i in range(300)])
        async with second.running(bus):
            await until(lambda: bool(second.subscribers[0].assignment))
            held = [s.subscribers[0].assignment for s in (first, second)]
            assert held[0].isdisjoint(held[1])
            await pub.publish_many([OrderPlaced(order_id=str(i), amount=i) for i in range(300, 400)])
            await until(lambda: len(set(seen)) == 400)
        await pub.publish_many([OrderPlaced(order_id=str(i), amount=i) for i in range(400, 500)])
        await until(lambda: len(set(seen)) == 500 and bus.committed("shop") == bus.end(ORDERS))
    assert len(seen) == 500  # revocation waited for running handlers, so nothing came twice


async def test_groups_are_independent_and_wrong_subscriptions_are_refused() -> None:
    svc = shop()

    @svc.on(OrderPlaced)
    async def one(event: OrderPlaced, ctx: Context) -> None: ...

    @svc.on(OrderPlaced, group="other")
    async def two(event: OrderPlaced, ctx: Context) -> None: ...

    async with svc.running(MemoryBus()):
        assert sorted(s.group for s in svc.subscribers) == ["other", "shop"]

    @svc.on(OrderPlaced)
    async def three(event: OrderPlaced, ctx: Context) -> None: ...

    with pytest.raises(ConfigurationError, match="two handlers for OrderPlaced"):
        async with svc.running(MemoryBus()):
            pass
    mixed = shop()

    @mixed.on(OrderPlaced)
    async def four(event: OrderPlaced, ctx: Context) -> None: ...

    @mixed.on(OrderPaid, delivery=AtMostOnce())
    async def five(event: OrderPaid, ctx: Context) -> None: ...

    with pytest.raises(ConfigurationError, match="mixes AtMostOnce and AtLeastOnce"):
        async with mixed.running(MemoryBus()):
            pass


async def test_reading_pauses_while_handlers_are_behind() -> None:
    bus = MemoryBus()
    svc = shop(subscribing=SubscriberSettings(max_buffered=10, commit_interval=timedelta(milliseconds=5)))
    pub = svc.publishes(OrderPlaced)
    gate = asyncio.Event()
    seen: list[int] = []
    most = 0

    @svc.on(OrderPlaced)
    async def placed(event: OrderPlaced, ctx: Context) -> None:
        nonlocal most
        await gate.wait()
        most = max(most, svc.subscribers[0].unsettled_count)
        seen.append(event.amount)

    async with svc.running(bus):
        await pub.publish_many([OrderPlaced(order_id=str(i), amount=i) for i in range(100)])
        await until(lambda: svc.subscribers[0].unsettled_count == 10)
        gate.set()
        await until(lambda: len(seen) == 100)
    assert most == 10


async def test_tombstone_deletes_a_key_and_no_handler_sees_it() -> None:
    bus = MemoryBus()
    svc = shop()
    pub = svc.publishes(StockCounted | OrderPlaced)
    seen: list[str] = []

    @svc.on(StockCounted)
    async def counted(event: StockCounted, ctx: Context) -> None:
        seen.append(event.item)

    async with svc.running(bus):
        await pub.publish(StockCounted(item="a", count=1))
        receipt = await pub.tombstone(StockCounted, "a")
        with pytest.raises(ConfigurationError, match="not compacted"):
            await pub.tombstone(OrderPlaced, "a")
        await until(lambda: bus.committed("shop") == {k: v for k, v in bus.end(STOCK).items() if v})
    assert seen == ["a"]
    last = next(r for r in bus.records(STOCK) if r.offset == receipt.offset and r.partition == receipt.partition)
    assert (last.key, last.value) == (b"a", None)


async def test_reader_needs_no_group() -> None:
    bus = MemoryBus()
    svc = shop()
    pub = svc.publishes(OrderPlaced | OrderPaid)
    async with svc.running(bus):
        await pub.publish_many([OrderPlaced(order_id=str(i), amount=i) for i in range(5)])
        await pub.publish(OrderPaid(order_id="1"))
        found = [d.event.amount async for d in bus_reader(bus, OrderPlaced, start="earliest", until_end=True)]
        both = [d.event async for d in bus_reader(bus, OrderPlaced, OrderPaid, start="earliest", until_end=True)]
    assert sorted(found) == [0, 1, 2, 3, 4]
    assert len(both) == 6


async def test_a_reader_that_is_closed_has_stopped_its_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    bus, stopped = MemoryBus(), []
    svc = shop()
    pub = svc.publishes(OrderPlaced)
    stop = MemoryConsumer.stop

    async def slow_stop(consumer: MemoryConsumer) -> None:
        await asyncio.sleep(0)
        await stop(consumer)
        stopped.append(consumer)

    async with svc.running(bus):
        await pub.publish(OrderPlaced(order_id="1"))
        monkeypatch.setattr(MemoryConsumer, "stop", slow_stop)
        async with aclosing(bus_reader(bus, OrderPlaced, start="earliest")) as events:
            assert (await anext(events)).event.order_id == "1"
            assert not stopped
        assert len(stopped) == 1


async def test_flush_and_bounded_buffer() -> None:
    from hailbus import PublisherSettings

    bus = MemoryBus()
    svc = Service("source", publishing=PublisherSettings(max_buffered_records=5, max_batch_records=2))
    pub = svc.publishes(OrderPlaced)
    async with svc.running(bus):
        futures = [await pub.enqueue(OrderPlaced(order_id=str(i), amount=i)) for i in range(50)]
        await pub.flush()
        assert all(future.done() for future in futures)
        await asyncio.gather(*(pub.publish(OrderPlaced(order_id=str(i), amount=i)) for i in range(50)))
    assert len(bus.records(ORDERS)) == 100


def _accepts(_: Callable[[OrderPlaced, Context], Awaitable[Verdict | None]]) -> None: ...
