"""What follows a failure: upcasting, unknown types and versions, retry topics, parked keys, effectively once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hailbus import (
    AtLeastOnce,
    Backoff,
    Batch,
    Catalogue,
    ConfigurationError,
    Context,
    DeliveryError,
    EffectivelyOnce,
    Event,
    ExactlyOnce,
    Inbox,
    Outbox,
    ParkingLot,
    ParkKey,
    ProducerFencedError,
    Retry,
    RetryTopics,
    Service,
    SubscriberSettings,
    Topic,
    TopicPartition,
    Verdict,
    bus_reader,
    upcast,
)
from hailbus._transport import Outgoing
from hailbus.codec import decode, encode, envelope_for
from hailbus.database import create_engine
from hailbus.dead_letter import dead_letter_topic
from hailbus.testing import MemoryBus, VirtualClock, run_virtual
from sqlalchemy import text
from sqlalchemy.exc import DataError, OperationalError
from sqlalchemy.ext.asyncio import AsyncTransaction

ORDERS = Topic("orders.v1", partitions=2)
FAST = SubscriberSettings(commit_interval=timedelta(milliseconds=10))
ONCE = Backoff(attempts=1)


class OrderPlacedV1(Event, topic=ORDERS, key="order_id", type="order.placed", version=1):
    order_id: str
    amount: int


class OrderPlacedV2(Event, topic=ORDERS, key="order_id", type="order.placed", version=2):
    order_id: str
    amount_cents: int


class OrderPlaced(Event, topic=ORDERS, key="order_id", type="order.placed", version=3):
    order_id: str
    amount_cents: int
    currency: str


@upcast(OrderPlacedV1, OrderPlacedV2)
def _to_v2(old: OrderPlacedV1) -> OrderPlacedV2:
    return OrderPlacedV2(order_id=old.order_id, amount_cents=old.amount * 100)


@upcast(OrderPlacedV2, OrderPlaced)
def _to_v3(old: OrderPlacedV2) -> OrderPlaced:
    return OrderPlaced(order_id=old.order_id, amount_cents=old.amount_cents, currency="USD")


class OrderPaid(Event, topic=ORDERS, key="order_id", type="order.paid"):
    order_id: str
    number: int = 0


async def until(condition: Callable[[], Any], *, seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while True:
            answer = condition()
            if isinstance(answer, Coroutine):
                answer = await answer
            if answer:
                return
            await asyncio.sleep(0.002)


async def test_handlers_see_only_the_newest_version(bus: MemoryBus) -> None:
    svc = Service("shop", subscribing=FAST)
    seen: list[OrderPlaced] = []
    versions: list[int] = []

    @svc.on(OrderPlaced)
    async def placed(event: OrderPlaced, ctx: Context) -> None:
        seen.append(event)
        versions.append(ctx.envelope.version)

    async with bus.run(svc) as t:
        await t.given(
            OrderPlacedV1(order_id="a", amount=3),
            OrderPlacedV2(order_id="a", amount_cents=450),
            OrderPlaced(order_id="a", amount_cents=5, currency="EUR"),
        )
        await t.settle()
        assert t.committed(ORDERS) == t.end(ORDERS)
    assert [(e.amount_cents, e.currency) for e in seen] == [(300, "USD"), (450, "USD"), (5, "EUR")]
    assert versions == [1, 2, 3]


def test_codec_upcasts_too_and_wrong_upcasters_are_refused() -> None:
    from types import SimpleNamespace

    old = OrderPlacedV1(order_id="a", amount=3)
    key, value, headers = encode(old, envelope_for(old, source="/x"))
    record = SimpleNamespace(topic="orders.v1", key=key, value=value, headers=headers)
    event, envelope = decode(record, Catalogue.of(OrderPlaced))
    assert event == OrderPlaced(order_id="a", amount_cents=300, currency="USD")
    assert envelope.version == 1
    assert Catalogue.of(OrderPlaced).versions("order.placed") == (1, 2, 3)
    with pytest.raises(ConfigurationError, match="from a lower to a higher version"):
        upcast(OrderPlaced, OrderPlacedV1)
    with pytest.raises(ConfigurationError, match="has an upcaster already"):
        upcast(OrderPlacedV1, OrderPlaced)
    with pytest.raises(ConfigurationError, match="subscribe to OrderPlaced"):

        @Service("x").on(OrderPlacedV1)
        async def handle(event: OrderPlacedV1, ctx: Context) -> None: ...


def foreign(kind: str, version: int) -> list[tuple[str, bytes]]:
    return [
        ("ce_id", b"1"),
        ("ce_source", b"/x"),
        ("ce_type", kind.encode()),
        ("ce_dataschema", f"hailbus:{kind}/v{version}".encode()),
    ]


@pytest.mark.parametrize("policy", ["skip", "dead-letter", "fail"])
@pytest.mark.parametrize(("kind", "version"), [("order.lost", 1), ("order.paid", 9)])
async def test_policies_for_unknown_types_and_versions(bus: MemoryBus, policy: Any, kind: str, version: int) -> None:
    settings = SubscriberSettings(
        commit_interval=timedelta(milliseconds=10), unknown_event=policy, unknown_version=policy
    )
    svc = Service("shop", subscribing=settings)

    @svc.on(OrderPaid)
    async def paid(event: OrderPaid, ctx: Context) -> None: ...

    bus.create(ORDERS)
    bus.append("orders.v1", 0, [(b"k", b"{}", foreign(kind, version))])
    async with bus.run(svc) as t:
        subscriber = svc.subscribers[0]
        if policy == "fail":
            await until(lambda: subscriber.failure is not None)
            assert "reads no more" in svc.unhealthy_reasons[0]
            assert t.committed(ORDERS)[TopicPartition("orders.v1", 0)] == 0
        else:
            await t.settle()
            letters = t.dead_letters(ORDERS, group="shop")
            assert len(letters) == (1 if policy == "dead-letter" else 0)
            assert subscriber.stats.skipped == (0 if policy == "dead-letter" else 1)


def test_retry_topics_wait_their_delay_and_end_in_the_dead_letter_topic() -> None:
    async def main() -> None:
        bus = MemoryBus(clock=VirtualClock())
        svc = Service("shop", clock=bus.clock)
        calls: list[tuple[str, int, float]] = []
        delays = (timedelta(seconds=5), timedelta(minutes=10))

        @svc.on(OrderPaid, delivery=AtLeastOnce(retry=ONCE, then=RetryTopics(*delays)))
        async def paid(event: OrderPaid, ctx: Context) -> None:
            calls.append((event.order_id, ctx.attempt, asyncio.get_running_loop().time()))
            if event.order_id == "bad" or (event.order_id == "later" and ctx.attempt == 1):
                raise ValueError(f"no {event.order_id}")

        async with bus.run(svc) as t:
            (source,) = await t.given(OrderPaid(order_id="bad"), id="the-bad-one")
            await t.given(OrderPaid(order_id="later"), OrderPaid(order_id="good"))
            await t.settle(timeout_s=3600)
            (letter,) = t.dead_letters(ORDERS, group="shop")
            names = [name for name in bus.declared if "retry" in name]
        assert sorted(names) == ["orders.v1.shop-retry-5000", "orders.v1.shop-retry-600000"]
        bad = [(attempt, at) for order, attempt, at in calls if order == "bad"]
        assert [attempt for attempt, _ in bad] == [1, 2, 3]
        assert bad[1][1] - bad[0][1] == pytest.approx(5, abs=0.5)
        assert bad[2][1] - bad[1][1] == pytest.approx(600, abs=1)
        assert [attempt for order, attempt, _ in calls if order == "later"] == [1, 2]
        assert [attempt for order, attempt, _ in calls if order == "good"] == [1]
        headers = dict(letter.headers)
        assert headers["ce_id"] == b"the-bad-one"
        assert headers["kafka_dlt-original-topic"] == b"orders.v1"
        assert headers["kafka_dlt-original-partition"] == str(source.partition).encode()
        assert headers["kafka_dlt-original-offset"] == str(source.offset).encode()
        assert headers["hailbus-attempt"] == b"3"
        assert "retry_topic-attempts" not in headers

    run_virtual(main())


async def test_a_parked_key_waits_in_order_until_it_is_released(bus: MemoryBus, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/parked.db")
    lot = ParkingLot(engine)
    broken = True
    seen: list[tuple[str, int]] = []

    def service() -> Service:
        svc = Service("shop", subscribing=FAST)
        then = ParkKey(lot=lot, look_every=timedelta(milliseconds=5))

        @svc.on(OrderPaid, delivery=AtLeastOnce(retry=ONCE, then=then))
        async def paid(event: OrderPaid, ctx: Context) -> None:
            if event.order_id == "a" and event.number == 1 and broken:
                raise ValueError("one is broken")
            seen.append((event.order_id, event.number))

        return svc

    async with bus.run(service()) as t:
        await t.given(*(OrderPaid(order_id=key, number=n) for n in range(4) for key in "ab"))
        await t.settle()
    assert [n for key, n in seen if key == "a"] == [0]
    assert [n for key, n in seen if key == "b"] == [0, 1, 2, 3]
    (parked,) = await lot.keys("shop")
    assert (parked.key, parked.waiting_count, parked.reason, parked.is_released) == (b"a", 3, "one is broken", False)

    # A restart remembers: events that come now wait too.
    async with bus.run(service()) as t:
        await t.given(OrderPaid(order_id="a", number=4))
        await t.settle()
        assert [n for key, n in seen if key == "a"] == [0]
        # Released while still broken: parked again, nothing lost.
        await lot.release("shop", "orders.v1", b"a")

        async def tried() -> bool:
            records = await lot.records("shop", "orders.v1", b"a")
            return records[0].attempts == 2 and not (await lot.keys("shop"))[0].is_released

        await until(tried)
        assert [n for key, n in seen if key == "a"] == [0]
        broken = False
        await lot.release("shop", "orders.v1", b"a")
        await until(lambda: len([n for key, n in seen if key == "a"]) == 5)
        await t.given(OrderPaid(order_id="a", number=5))
        await t.settle()
    assert [n for key, n in seen if key == "a"] == [0, 1, 2, 3, 4, 5]
    assert await lot.keys("shop") == []
    assert bus.records(dead_letter_topic(ORDERS, "shop")) == []
    await engine.dispose()


@pytest.mark.parametrize("batch", [False, True])
async def test_effectively_once_commits_effect_inbox_and_outbox_together(
    bus: MemoryBus, tmp_path: Path, batch: bool
) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/once.db")
    async with engine.begin() as tx:
        await tx.execute(text("CREATE TABLE ledger (number INTEGER)"))
    inbox = Inbox(engine, consumer="till")
    outbox = Outbox(engine)
    svc = Service("till", subscribing=FAST)
    placed = svc.publishes(OrderPlaced)
    svc.relays(outbox)
    failures = 2
    delivery = EffectivelyOnce(inbox=inbox, retry=Backoff(first=timedelta(milliseconds=1), attempts=5))

    async def apply(event: OrderPaid, ctx: Context, tx: Any) -> None:
        nonlocal failures
        await tx.execute(text("INSERT INTO ledger VALUES (:n)"), {"n": event.number})
        out = OrderPlaced(order_id=event.order_id, amount_cents=event.number, currency="USD")
        await placed.publish(out, tx=tx, cause=ctx)
        if event.number == 2 and failures:
            failures -= 1
            raise ValueError("after the effect, before the commit")

    if batch:

        @svc.on_batch(OrderPaid, delivery=delivery)
        async def paid_batch(items: Batch[OrderPaid]) -> None:
            for item in items:
                await apply(item.event, item.ctx, items.tx)

    else:

        @svc.on(OrderPaid, delivery=delivery)
        async def paid(event: OrderPaid, ctx: Context) -> Verdict | None:
            await apply(event, ctx, ctx.tx)
            return Retry(timedelta(milliseconds=1)) if event.number == 1 and ctx.attempt == 1 else None

    async with bus.run(svc) as t:
        for number in range(4):
            await t.given(OrderPaid(order_id=str(number), number=number), id=f"id-{number}")
            await t.redeliver_last()
        await t.settle()
        published = sorted(event.amount_cents for event in t.published(OrderPlaced).events)
    async with engine.connect() as connection:
        rows = sorted((await connection.execute(text("SELECT number FROM ledger"))).scalars())
    assert rows == [0, 1, 2, 3]
    assert published == [0, 1, 2, 3]
    assert (await inbox.counts())[0] == 4
    await engine.dispose()


def test_policies_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        lot = ParkingLot(create_engine(f"sqlite:///{tmp_path}/x.db"))
        with pytest.raises(ConfigurationError, match="needs order='key'"):
            AtLeastOnce(then=ParkKey(lot=lot), order="none")
        with pytest.raises(ConfigurationError, match="at least one delay"):
            RetryTopics()
        with pytest.raises(ConfigurationError, match="takes batches"):

            @Service("x").on_batch(OrderPaid, delivery=AtLeastOnce(then=ParkKey(lot=lot)))
            async def handle(batch: Batch[OrderPaid]) -> None: ...

    asyncio.run(main())


class Total(Event, topic=Topic("totals.v1", partitions=2), key="order_id", type="total.changed"):
    order_id: str
    number: int


async def test_exactly_once_commits_output_and_offsets_together(bus: MemoryBus) -> None:
    svc = Service("sum", subscribing=FAST)
    totals = svc.publishes(Total)
    failed: set[int] = set()

    @svc.on(OrderPaid, delivery=ExactlyOnce(retry=Backoff(first=timedelta(milliseconds=1), attempts=3), max_items=7))
    async def add(event: OrderPaid, ctx: Context) -> None:
        receipt = await totals.publish(Total(order_id=event.order_id, number=event.number))
        assert receipt.offset is None
        if event.number % 10 == 3 and event.number not in failed:
            failed.add(event.number)
            raise ValueError("after publishing")
        if event.number == 8:
            raise ValueError("always")

    async with bus.run(svc) as t:
        await t.given(*(OrderPaid(order_id=str(n % 5), number=n) for n in range(40)))
        bus.fail_sends(DeliveryError("scripted", topic="", retriable=True))
        await t.settle()
        bus.rebalance("sum")
        await t.given(*(OrderPaid(order_id=str(n % 5), number=n) for n in range(40, 60)))
        await t.settle()
        (letter,) = t.dead_letters(ORDERS, group="sum")
    assert b'"number":8' in (letter.value or b"")
    read = [d.event.number async for d in bus_reader(bus, Total, start="earliest", until_end=True)]
    assert sorted(read) == [n for n in range(60) if n != 8]


async def test_an_older_transactional_producer_is_fenced(bus: MemoryBus) -> None:
    bus.create(ORDERS)
    old, new = (bus.producer(client_id="x", transactional_id="t") for _ in range(2))
    await old.start()
    await old.begin()
    await old.send("orders.v1", 0, [(b"k", b"old", [])])
    await new.start()
    with pytest.raises(ProducerFencedError):
        await old.commit()
    await new.begin()
    await new.send("orders.v1", 0, [(b"k", b"new", [])])
    await new.commit()
    await old.abort()
    reader = bus.consumer(client_id="r", group=None, topics=["orders.v1"], start="earliest")
    await reader.start()
    found = await reader.poll(timeout_s=0.1, max_records=10)
    assert [record.value for records in found.values() for record in records] == [b"new"]


async def test_an_event_that_the_parking_lot_refuses_becomes_a_dead_letter(bus: MemoryBus, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/parked.db")
    lot = ParkingLot(engine)

    async def refuse(*_: object, **__: object) -> None:
        raise DataError("INSERT", {}, ValueError("the key is too long"))

    lot.add = refuse  # type: ignore[method-assign]  # as a database that cannot hold the record
    svc = Service("shop", subscribing=FAST)
    seen: list[int] = []

    @svc.on(OrderPaid, delivery=AtLeastOnce(retry=ONCE, then=ParkKey(lot=lot)))
    async def take(event: OrderPaid, ctx: Context) -> None:
        seen.append(event.number)
        if event.number == 1:
            raise ValueError("no")

    async with bus.run(svc) as t:
        t.expect_dead_letters()
        await t.given(*(OrderPaid(order_id="a", number=number) for number in range(3)))
        await t.settle()
        (member,) = svc.subscribers
        assert member.parked_keys == 0
    (letter,) = bus.records(dead_letter_topic(ORDERS, "shop"))
    headers = dict(letter.headers)
    assert headers["hailbus-failed-by"] == b"parking lot"
    assert b"the key is too long" in headers["kafka_dlt-exception-message"]
    assert seen == [0, 1, 2], "later events of the key do not wait"
    await engine.dispose()


async def test_while_the_parking_lot_is_away_no_further_event_of_the_partition_is_begun(
    bus: MemoryBus, tmp_path: Path
) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/parked.db")
    lot = ParkingLot(engine)
    add = lot.add

    async def refuse(*_: object, **__: object) -> None:
        raise ConnectionRefusedError("refused")

    lot.add = refuse  # type: ignore[method-assign]  # away
    svc = Service("shop", subscribing=FAST)
    seen: list[int] = []

    @svc.on(OrderPaid, delivery=AtLeastOnce(retry=ONCE, then=ParkKey(lot=lot), max_in_flight=2))
    async def take(event: OrderPaid, ctx: Context) -> None:
        seen.append(event.number)
        await asyncio.sleep(0.5 + event.number)
        if event.number == 0:
            raise ValueError("no")

    def record(number: int) -> Outgoing:
        event = OrderPaid(order_id=str(number), number=number)
        key, value, headers = encode(event, envelope_for(event, source="/till", id=f"e{number}"))
        return key, value, list(headers)

    async with bus.run(svc) as t:
        bus.append("orders.v1", 0, [record(number) for number in range(4)])
        await asyncio.sleep(30)
        assert seen == [0, 1]
        lot.add = add  # type: ignore[method-assign]  # back
        await t.settle()
    assert seen == [0, 1, 2, 3]
    assert [key.key for key in await lot.keys("shop")] == [b"0"]
    await engine.dispose()


async def test_a_database_that_is_lost_at_the_commit_is_waited_for_and_the_event_applied_once(
    bus: MemoryBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/inbox.db")
    inbox = Inbox(engine, "shop")
    await inbox.create_tables()
    async with engine.begin() as tx:
        await tx.execute(text("CREATE TABLE applied (number INTEGER)"))
    svc = Service("shop", subscribing=FAST)
    calls: list[int] = []

    @svc.on(OrderPaid, delivery=EffectivelyOnce(inbox=inbox, retry=ONCE))
    async def take(event: OrderPaid, ctx: Context) -> None:
        calls.append(event.number)
        assert ctx.tx is not None
        await ctx.tx.execute(text("INSERT INTO applied VALUES (:number)"), {"number": event.number})

    commit = AsyncTransaction.commit
    left = 3

    async def lost(self: AsyncTransaction) -> None:
        nonlocal left
        if left:
            left -= 1
            raise OperationalError("COMMIT", {}, OSError("the connection is gone"))
        await commit(self)

    async with bus.run(svc) as t:
        monkeypatch.setattr(AsyncTransaction, "commit", lost)
        await t.given(OrderPaid(order_id="a", number=7))
        await t.settle()
        monkeypatch.undo()
        (member,) = svc.subscribers
        assert (member.stats.outages, member.stats.failed, member.stats.settled) == (1, 0, 1)
    assert calls == [7, 7, 7, 7]
    async with engine.connect() as connection:
        assert (await connection.execute(text("SELECT number FROM applied"))).scalars().all() == [7]
    assert bus.records(dead_letter_topic(ORDERS, "shop")) == []
    await engine.dispose()
