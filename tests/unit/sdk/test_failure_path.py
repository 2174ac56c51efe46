"""Whatever is raised around a handler ends as its class of failure says, under lanes, batches and transactions."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
from hailbus import (
    AtLeastOnce,
    AtMostOnce,
    Backoff,
    Batch,
    ConfigurationError,
    Context,
    DeliveryError,
    EffectivelyOnce,
    Event,
    ExactlyOnce,
    Inbox,
    ParkingLot,
    ParkKey,
    Reject,
    Retry,
    Service,
    Skip,
    SubscriberSettings,
    Topic,
    TopicPartition,
    Verdict,
    upcast,
)
from hailbus._transport import Outgoing
from hailbus.codec import encode, envelope_for
from hailbus.database import create_engine
from hailbus.dead_letter import dead_letter_topic
from hailbus.dead_letter_queue import DeadLetterQueue
from hailbus.errors import RecordTooLargeError
from hailbus.testing import Harness, MemoryBus, VirtualClock, run_virtual
from pydantic import field_validator
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

ORDERS = Topic("orders.v1", partitions=2)
FAST = SubscriberSettings(commit_interval=timedelta(milliseconds=10))
THREE = Backoff(first=timedelta(milliseconds=5), attempts=3, jitter=0.0)
How = Literal["lanes", "batches", "transactions"]
HOW: tuple[How, ...] = ("lanes", "batches", "transactions")
Act = Callable[["Placed", Context], Awaitable[Any]]


class PlacedV1(Event, topic=ORDERS, key="order_id", type="order.placed", version=1):
    order_id: str
    number: int


class Placed(Event, topic=ORDERS, key="order_id", type="order.placed", version=2):
    order_id: str
    number: int

    @field_validator("number")
    @classmethod
    def _look_up(cls, number: int) -> int:
        if number == 666:
            raise KeyError("a validator's own mistake")
        if number == 667:
            raise asyncio.CancelledError
        return number


@upcast(PlacedV1, Placed)
def _to_v2(old: PlacedV1) -> Placed:
    if old.number == 13:
        raise RuntimeError("an upcaster's own mistake")
    return Placed(order_id=old.order_id, number=old.number)


def record(event: Event, event_id: str = "e") -> Outgoing:
    key, value, headers = encode(event, envelope_for(event, source="/till", id=event_id))
    return key, value, list(headers)


def raw(number: int, *, key: str = "a") -> Outgoing:
    """A record that the class itself would refuse."""
    _, _, headers = record(Placed(order_id=key, number=1), f"raw-{number}")
    return key.encode(), b'{"order_id":"%s","number":%d}' % (key.encode(), number), headers


def service(act: Act, how: How = "lanes", *, settings: SubscriberSettings = FAST, **options: Any) -> Service:
    """A service that hands every event to `act`."""
    svc = Service("till", subscribing=settings)
    deadline = options.pop("deadline", None)
    if how == "batches":
        delivery = AtLeastOnce(**{"retry": THREE, **options})

        @svc.on_batch(Placed, delivery=delivery, max_items=50, max_wait=timedelta(milliseconds=1), deadline=deadline)
        async def take_all(batch: Batch[Placed]) -> Any:
            for item in batch:
                found = await act(item.event, item.ctx)
                if found is not None:
                    return found
            return None

        return svc
    promise = ExactlyOnce if how == "transactions" else AtLeastOnce

    @svc.on(Placed, delivery=promise(**{"retry": THREE, **options}), deadline=deadline)
    async def take(event: Placed, ctx: Context) -> Any:
        return await act(event, ctx)

    return svc


def letters(bus: MemoryBus) -> list[dict[str, bytes]]:
    return [dict(letter.headers) for letter in bus.records(dead_letter_topic(ORDERS, "till"))]


@asynccontextmanager
async def run(bus: MemoryBus, svc: Service) -> AsyncIterator[Harness]:
    """Run a service whose dead letters the test looks at itself."""
    async with bus.run(svc) as t:
        t.expect_dead_letters()
        yield t


def virtual(test: Callable[[MemoryBus], Awaitable[None]]) -> None:
    async def main() -> None:
        await test(MemoryBus(clock=VirtualClock()))

    run_virtual(main())


async def until(condition: Callable[[], Any], *, seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 any state of the system may be the condition
            await asyncio.sleep(0.002)


# ---------------------------------------------------------------------------------------------------- bad records


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(("bad", "name"), [(13, "RuntimeError"), (666, "KeyError"), (667, "CancelledError")])
def test_what_an_upcaster_or_validator_raises_is_one_dead_letter(
    how: How, bad: int, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    handled: list[int] = []

    async def act(event: Placed, ctx: Context) -> None:
        handled.append(event.number)

    async def play(bus: MemoryBus) -> None:
        svc = service(act, how)
        bus.create(ORDERS)
        records = [record(Placed(order_id=f"k{n % 5}", number=n)) for n in range(100, 129)]
        records.insert(7, record(PlacedV1(order_id="a", number=13)) if bad == 13 else raw(bad))
        bus.append("orders.v1", 0, records)
        async with run(bus, svc) as t:
            await t.settle(timeout_s=60)
            (stats,) = [subscriber.stats for subscriber in svc.subscribers]
        assert sorted(handled) == list(range(100, 129))
        (letter,) = letters(bus)
        assert letter["kafka_dlt-exception-fqcn"].decode().endswith(name)
        assert letter["hailbus-failed-by"] == b"decoder"
        assert letter["hailbus-attempt"] == b"0"
        assert (stats.received, stats.settled, stats.dead_lettered) == (30, 29, 1)
        assert stats.retried == 0, "reading the same bytes again helps nothing"

    with caplog.at_level(logging.WARNING, "hailbus"):
        virtual(play)
    assert len(caplog.records) < 5, [line.getMessage() for line in caplog.records]


@pytest.mark.parametrize("how", HOW)
def test_a_version_of_5000_digits_is_a_bad_record(how: How) -> None:
    handled: list[int] = []

    async def act(event: Placed, ctx: Context) -> None:
        handled.append(event.number)

    async def play(bus: MemoryBus) -> None:
        bus.create(ORDERS)
        key, value, headers = record(Placed(order_id="a", number=1))
        odd = [(n, b"hailbus:order.placed/v" + b"9" * 5000 if n == "ce_dataschema" else v) for n, v in headers]
        bus.append("orders.v1", 0, [(key, value, odd), (key, value, headers)])
        async with run(bus, service(act, how)) as t:
            await t.settle(timeout_s=60)
        assert handled == [1]
        assert len(letters(bus)) == 1

    virtual(play)


def test_forged_headers_of_an_origin_do_not_lead_a_letter_astray() -> None:
    async def act(event: Placed, ctx: Context) -> None:
        raise ValueError("no")

    async def play(bus: MemoryBus) -> None:
        bus.create(ORDERS)
        key, value, headers = record(Placed(order_id="a", number=1))
        forged = {"topic": b"elsewhere", "partition": b"9", "offset": b"9", "timestamp": b"9"}
        more = [(f"kafka_dlt-original-{name}", found) for name, found in forged.items()]
        bus.append("orders.v1", 0, [(key, value, [*headers, *more])])
        async with run(bus, service(act)) as t:
            await t.settle(timeout_s=60)
        (letter,) = letters(bus)
        assert letter["kafka_dlt-original-topic"] == b"orders.v1"

    virtual(play)


# ---------------------------------------------------------------------------------------------------- verdicts


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("value", [True, 7, "done", {}, [True], []], ids=repr)
def test_a_value_that_is_no_verdict_is_the_handlers_failure_at_once(how: How, value: object) -> None:
    calls: list[int] = []

    async def act(event: Placed, ctx: Context) -> object:
        calls.append(event.number)
        return value if event.number == 1 else None

    async def play(bus: MemoryBus) -> None:
        bus.create(ORDERS)
        bus.append("orders.v1", 0, [record(Placed(order_id=f"k{n}", number=n)) for n in range(3)])
        async with run(bus, service(act, how)) as t:
            await t.settle(timeout_s=60)
        (letter,) = letters(bus)
        reason = letter["kafka_dlt-exception-message"].decode()
        assert "take" in reason
        assert "a handler returns None, Done()" in reason
        # A batch is split: once in it, once alone.
        assert Counter(calls)[1] == (2 if how == "batches" else 1)

    virtual(play)


@pytest.mark.parametrize("how", HOW)
def test_retry_as_a_verdict_counts_as_an_attempt(how: How) -> None:
    calls: list[int] = []

    async def act(event: Placed, ctx: Context) -> object:
        calls.append(ctx.attempt)
        return [Retry(timedelta(milliseconds=1))] if how == "batches" else Retry(timedelta(milliseconds=1))

    async def play(bus: MemoryBus) -> None:
        bus.create(ORDERS)
        bus.append("orders.v1", 0, [record(Placed(order_id="a", number=1))])
        async with run(bus, service(act, how)) as t:
            await t.settle(timeout_s=60)
        (letter,) = letters(bus)
        assert "asked for a retry in all of its 3 calls" in letter["kafka_dlt-exception-message"].decode()

    virtual(play)
    assert calls == [1, 2, 3]


def test_a_limit_raises_the_bound_of_retry_and_at_most_once_needs_one() -> None:
    calls: list[tuple[str, int]] = []

    async def play(bus: MemoryBus) -> None:
        svc = Service("till", subscribing=FAST)

        @svc.on(Placed, delivery=AtLeastOnce(retry=THREE))
        async def take(event: Placed, ctx: Context) -> Verdict | None:
            calls.append(("least", ctx.attempt))
            return Retry(timedelta(milliseconds=1), limit=20)

        @svc.on(Placed, delivery=AtMostOnce(), group="most")
        async def take_once(event: Placed, ctx: Context) -> Verdict | None:
            calls.append(("most", ctx.attempt))
            return Retry(timedelta(milliseconds=1))

        bus.create(ORDERS)
        bus.append("orders.v1", 0, [record(Placed(order_id="a", number=1))])
        async with run(bus, svc) as t:
            await t.settle(timeout_s=60)
            stats = {subscriber.group: subscriber.stats for subscriber in svc.subscribers}
        assert stats["most"].dropped == 1
        assert len(letters(bus)) == 1

    virtual(play)
    assert [attempt for who, attempt in calls if who == "least"] == list(range(1, 21))
    assert [attempt for who, attempt in calls if who == "most"] == [1]


@pytest.mark.parametrize("how", HOW)
def test_every_record_is_counted_once(how: How) -> None:
    async def act(event: Placed, ctx: Context) -> object:
        verdicts = {0: Skip("not mine"), 1: Reject("odd"), 2: None, 3: None}
        return verdicts[event.number]

    async def play(bus: MemoryBus) -> None:
        svc = Service("till", subscribing=FAST)
        if how == "batches":

            @svc.on_batch(Placed, max_items=4)
            async def take_all(batch: Batch[Placed]) -> list[Verdict]:
                from hailbus import Done

                return [await act(item.event, item.ctx) or Done() for item in batch]  # type: ignore[misc]  # verdicts

        else:

            @svc.on(Placed, delivery=ExactlyOnce() if how == "transactions" else AtLeastOnce())
            async def take(event: Placed, ctx: Context) -> Any:
                return await act(event, ctx)

        bus.create(ORDERS)
        bus.append("orders.v1", 0, [record(Placed(order_id="a", number=n)) for n in range(4)])
        key, _, headers = record(Placed(order_id="a", number=1))
        bus.append("orders.v1", 0, [(key, None, headers)])
        async with run(bus, svc) as t:
            await t.settle(timeout_s=60)
            (stats,) = [subscriber.stats for subscriber in svc.subscribers]
        assert (stats.received, stats.settled, stats.skipped, stats.dead_lettered) == (5, 2, 2, 1)
        assert stats.done == stats.received

    virtual(play)


# ---------------------------------------------------------------------------------------------------- infrastructure


class Away:
    """A database that can be taken away."""

    def __init__(self, engine: AsyncEngine, table: str) -> None:
        self._engine = engine
        self._table = table

    async def go(self) -> None:
        async with self._engine.begin() as tx:
            await tx.execute(text(f"ALTER TABLE {self._table} RENAME TO {self._table}_gone"))

    async def come_back(self) -> None:
        async with self._engine.begin() as tx:
            await tx.execute(text(f"ALTER TABLE {self._table}_gone RENAME TO {self._table}"))


async def test_a_parking_lot_that_is_away_repeats_no_handler(bus: MemoryBus, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/lot.db")
    lot = ParkingLot(engine)
    calls: list[int] = []

    async def act(event: Placed, ctx: Context) -> None:
        calls.append(event.number)
        raise ValueError("never")

    svc = service(act, retry=Backoff(attempts=1), then=ParkKey(lot=lot))
    away = Away(engine, "hailbus_parked")
    async with run(bus, svc) as t:
        (subscriber,) = svc.subscribers
        await until(lambda: len(subscriber.assignment) == 2)
        await away.go()
        await t.given(Placed(order_id="a", number=1), Placed(order_id="a", number=2))
        await until(lambda: subscriber.stats.outages > 0)
        await asyncio.sleep(1.0)
        assert calls == [1]
        assert sum(t.committed(ORDERS).values()) == 0
        await away.come_back()
        await t.settle(timeout_s=30)
        assert calls == [1]
        (key,) = await lot.keys("till")
        assert key.waiting_count == 2
        assert subscriber.parked_keys == 1
    assert letters(bus) == []
    await engine.dispose()


@pytest.mark.parametrize("how", ["lanes", "batches", "own transaction"])
async def test_an_inbox_that_is_away_pauses_and_judges_nothing(bus: MemoryBus, tmp_path: Path, how: str) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/inbox.db")
    inbox = Inbox(engine, "till")
    svc = Service("till", subscribing=FAST)
    delivery = EffectivelyOnce(inbox=inbox, retry=Backoff(first=timedelta(milliseconds=1), attempts=2))
    handled: list[int] = []
    if how == "batches":

        @svc.on_batch(Placed, delivery=delivery, max_items=20)
        async def take_all(batch: Batch[Placed]) -> None:
            handled.extend(event.number for event in batch.events)

    elif how == "own transaction":

        @svc.on_batch(Placed, delivery=replace(delivery, own_transaction=True), max_items=20)
        async def take_by_ourselves(batch: Batch[Placed]) -> None:
            async with engine.begin() as tx:
                claim = await batch.claim(tx)
                await claim.store()
            handled.extend(event.number for event in batch.events)

    else:

        @svc.on(Placed, delivery=delivery)
        async def take(event: Placed, ctx: Context) -> None:
            handled.append(event.number)

    away = Away(engine, "hailbus_inbox")
    async with run(bus, svc) as t:
        (subscriber,) = svc.subscribers
        await away.go()
        for number in range(50):
            await t.given(Placed(order_id=f"k{number % 9}", number=number), id=f"e{number}")
        await until(lambda: subscriber.stats.outages > 0)
        await asyncio.sleep(1.0)
        assert (handled, letters(bus)) == ([], [])
        assert subscriber.stats.outages <= 2
        await away.come_back()
        await t.settle(timeout_s=30)
    assert sorted(handled) == list(range(50))
    assert letters(bus) == []
    assert (await inbox.counts())[0] == 50
    await engine.dispose()


@pytest.mark.parametrize("how", HOW)
def test_a_dead_letter_topic_that_cannot_be_written_pauses_and_repeats_no_handler(
    how: How, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []

    async def act(event: Placed, ctx: Context) -> None:
        calls.append(event.number)
        raise ValueError("never")

    async def play(bus: MemoryBus) -> None:
        svc = service(act, how)
        async with run(bus, svc) as t:
            (subscriber,) = svc.subscribers
            bus.fail_sends(*(DeliveryError("scripted", topic="", retriable=True) for _ in range(20)))
            await t.given(Placed(order_id="a", number=1))
            await asyncio.sleep(60)
            assert len(calls) == 3
            assert sum(t.committed(ORDERS).values()) == 0
            assert "waits for" in subscriber.unhealthy_reasons[0]
            await t.settle(timeout_s=3600)
            assert subscriber.unhealthy_reasons == []
        assert len(calls) == 3
        assert len(letters(bus)) == 1

    with caplog.at_level(logging.WARNING, "hailbus"):
        virtual(play)
    assert sum("infrastructure_away" in line.getMessage() for line in caplog.records) == 1


class Narrow(MemoryBus):
    """A bus whose dead letter topics take small records only."""

    limit = 0

    def append(self, topic: str, partition: int, records: Any, *, transaction: int | None = None) -> list[int]:
        for key, value, headers in records:
            size = len(key or b"") + len(value or b"") + sum(len(n) + len(v) for n, v in headers)
            if topic.endswith("-dlt") and size > self.limit:
                raise RecordTooLargeError(topic=topic, size_bytes=size, limit_bytes=self.limit)
        return super().append(topic, partition, records, transaction=transaction)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(("limit", "omitted"), [(9_000, b"stacktrace"), (2_000, b"stacktrace,value")])
def test_a_letter_that_is_too_large_is_written_smaller(how: How, limit: int, omitted: bytes) -> None:
    async def act(event: Placed, ctx: Context) -> None:
        def deeper(depth: int) -> None:
            if depth:
                deeper(depth - 1)
            raise ValueError("x" * 900)

        deeper(40)

    async def main() -> None:
        bus = Narrow(clock=VirtualClock())
        bus.limit = limit
        bus.create(ORDERS)
        key, _, headers = record(Placed(order_id="a", number=1))
        value = b'{"order_id":"a","number":1,"note":"%s"}' % (b"n" * 6_000)
        bus.append("orders.v1", 0, [(key, value, headers)])
        bus.append("orders.v1", 0, [record(Placed(order_id="b", number=2))])
        async with run(bus, service(act, how)) as t:
            await t.settle(timeout_s=3600)
        both = bus.records(dead_letter_topic(ORDERS, "till"))
        (first,) = [letter for letter in both if letter.key == b"a"]
        found = dict(first.headers)
        assert found["hailbus-omitted"] == omitted
        assert first.value == (value if omitted == b"stacktrace" else None)
        assert (found["kafka_dlt-original-topic"], found["kafka_dlt-original-offset"]) == (b"orders.v1", b"0")

    run_virtual(main())


# ---------------------------------------------------------------------------------------------------- deadlines


@pytest.mark.parametrize("how", HOW)
def test_a_handler_past_its_deadline_is_cancelled_and_retried(how: How) -> None:
    calls: list[int] = []
    cancelled: list[int] = []

    async def act(event: Placed, ctx: Context) -> None:
        calls.append(event.number)
        if event.number != 1:
            return
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append(event.number)
            raise

    async def play(bus: MemoryBus) -> None:
        svc = service(act, how, deadline=timedelta(seconds=2))
        async with run(bus, svc) as t:
            await t.given(Placed(order_id="a", number=1), Placed(order_id="b", number=2))
            await t.settle(timeout_s=60)
            (stats,) = [subscriber.stats for subscriber in svc.subscribers]
        (letter,) = letters(bus)
        assert "after its deadline of 2 s" in letter["kafka_dlt-exception-message"].decode()
        assert letter["kafka_dlt-exception-fqcn"].endswith(b"HandlerDeadlineError")
        assert stats.deadlines_exceeded >= 3
        assert cancelled == [1] * len(cancelled)
        assert 2 in calls

    virtual(play)


def test_without_a_deadline_a_hung_handler_is_found_beside_flowing_traffic() -> None:
    async def act(event: Placed, ctx: Context) -> None:
        if event.number == 0:
            await asyncio.sleep(100)

    async def play(bus: MemoryBus) -> None:
        svc = service(act, settings=SubscriberSettings(stall_after=timedelta(seconds=30)))
        async with run(bus, svc) as t:
            bus.create(ORDERS)
            bus.append("orders.v1", 0, [record(Placed(order_id="a", number=0))])
            for number in range(1, 60):
                bus.append("orders.v1", number % 2, [record(Placed(order_id=f"k{number}", number=number))])
                await asyncio.sleep(1)
            (reason,) = svc.unhealthy_reasons
            assert "no progress on orders.v1-0" in reason
            assert "offset 0 " in reason
            await t.settle(timeout_s=200)
            assert svc.unhealthy_reasons == []

    virtual(play)


# ---------------------------------------------------------------------------------------------------- logs that shrink


class Shrinking(MemoryBus):
    """A bus on which a partition can lose its records, as a topic that is created anew does."""

    def shrink(self, topic: str, partition: int) -> None:
        self.logs[TopicPartition(topic, partition)].clear()
        for group in self.groups.values():
            for member in group.members:
                member._positions[TopicPartition(topic, partition)] = 0


@pytest.mark.parametrize("how", HOW)
def test_a_log_that_begins_anew_is_handled_from_there(how: How, caplog: pytest.LogCaptureFixture) -> None:
    handled: list[int] = []

    async def act(event: Placed, ctx: Context) -> None:
        handled.append(event.number)

    async def main() -> None:
        bus = Shrinking(clock=VirtualClock())
        bus.create(ORDERS)
        svc = service(act, how)
        async with run(bus, svc) as t:
            bus.append("orders.v1", 0, [record(Placed(order_id="a", number=n)) for n in range(10)])
            await t.settle(timeout_s=60)
            bus.shrink("orders.v1", 0)
            bus.append("orders.v1", 0, [record(Placed(order_id="a", number=n)) for n in range(100, 103)])
            await until(lambda: len(handled) == 13, seconds=60)
            await until(lambda: t.committed(ORDERS)[TopicPartition("orders.v1", 0)] == 3, seconds=60)
            assert svc.unhealthy_reasons == []
        assert handled == [*range(10), *range(100, 103)]

    with caplog.at_level(logging.ERROR, "hailbus"):
        run_virtual(main())
    (line,) = caplog.records
    assert "log_moved_back" in line.getMessage()


def test_a_letter_without_its_value_is_not_replayed_as_a_tombstone() -> None:
    async def act(event: Placed, ctx: Context) -> None:
        raise ValueError("no")

    async def main() -> None:
        bus = Narrow(clock=VirtualClock())
        bus.limit = 2_000
        bus.create(ORDERS)
        key, _, headers = record(Placed(order_id="a", number=1))
        bus.append("orders.v1", 0, [(key, b'{"order_id":"a","number":1,"note":"%s"}' % (b"n" * 6_000), headers)])
        async with run(bus, service(act)) as t:
            await t.settle(timeout_s=3600)
        queue = DeadLetterQueue(bus, dead_letter_topic(ORDERS, "till"))
        with pytest.raises(ConfigurationError, match=r"read the original at orders\.v1-0@0"):
            await queue.replay()
        assert len(bus.records(ORDERS)) == 1
        await queue.replay(value=b'{"order_id":"a","number":2}')
        assert [found.value for found in bus.records(ORDERS)][1:] == [b'{"order_id":"a","number":2}']

    run_virtual(main())


def test_letters_of_former_releases_are_still_read() -> None:
    async def main() -> None:
        bus = MemoryBus(clock=VirtualClock())
        topic = dead_letter_topic(ORDERS, "till")
        bus.create(ORDERS)
        bus.create(Topic(topic, partitions=2))
        key, value, headers = record(Placed(order_id="a", number=1))
        former = [("sdk-attempt", b"3"), ("sdk-parked-by", b"decoder"), ("kafka_dlt-original-topic", b"orders.v1")]
        bus.append(topic, 0, [(key, value, [*headers, *former])])
        (letter,) = await DeadLetterQueue(bus, topic).letters()
        assert (letter.facts["hailbus-attempt"], letter.facts["hailbus-failed-by"]) == ("3", "decoder")

    run_virtual(main())
