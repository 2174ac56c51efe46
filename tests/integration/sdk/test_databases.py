"""Outbox, inbox, answers and parking lot on both databases, and what only PostgreSQL does."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hailbus import (
    Backoff,
    ClusterAdmin,
    Context,
    Event,
    EventIdError,
    Inbox,
    KeyReusedError,
    Outbox,
    OutboxEntry,
    ParkingLot,
    Service,
    Topic,
)
from hailbus.clock import micros
from hailbus.codec import envelope_for
from hailbus.database import create_engine
from hailbus.idempotency import AnswerBook, StoredAnswer
from hailbus.inbox import inbox_table
from hailbus.outbox import outbox_table
from hailbus.state_machine import State, StateMachine, Step
from hailbus.testing import MemoryBus
from sqlalchemy import Table, func, select, text, true, update
from sqlalchemy.event import listen
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.integration.conftest import eventually
from tests.servers import PostgreSQL

ORDERS = Topic("orders.v1", partitions=3)
PAYMENTS = Topic("payments.v1", partitions=3)
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


class OrderPlaced(Event, topic=ORDERS, key="order_id", type="order.placed"):
    order_id: str
    number: int = 0


class PaymentReceived(Event, topic=PAYMENTS, key="payment_id", type="payment.received"):
    payment_id: str
    order_id: str


class Counted(State):
    orders: int
    payments: int


class OrderLapsed(Event, topic=ORDERS, key="order_id", type="order.lapsed"):
    order_id: str


def entry(event: Event, *, id: str | None = None, **more: Any) -> OutboxEntry:
    return OutboxEntry(event=event, envelope=envelope_for(event, source="/till", id=id, time=NOON), **more)


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    found = create_engine(database_url)
    yield found
    await found.dispose()


@pytest.fixture
async def bus() -> MemoryBus:
    found = MemoryBus()
    async with ClusterAdmin(found) as admin:
        await admin.provision([ORDERS])
    return found


@asynccontextmanager
async def relaying(bus: MemoryBus, *outboxes: Outbox) -> AsyncIterator[None]:
    producer = bus.producer(client_id="relay")
    await producer.start()
    tasks = [asyncio.create_task(outbox.relay(producer, bus.partitioner)) for outbox in outboxes]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await producer.stop()


def published(bus: MemoryBus) -> list[str]:
    return [dict(record.headers)["ce_id"].decode() for record in bus.records(ORDERS)]


async def test_many_events_go_in_at_once_and_several_schedules_are_withdrawn_at_once(
    engine: AsyncEngine, bus: MemoryBus
) -> None:
    now = NOON
    outbox = Outbox(engine, lambda: now)
    await outbox.create_tables()
    timers = [
        entry(OrderLapsed(order_id=f"o{i}"), id=f"t{i}", not_before=NOON + timedelta(minutes=1), schedule_id=f"s{i}")
        for i in range(4)
    ]
    async with engine.begin() as tx:
        placed = [entry(OrderPlaced(order_id="o1", number=i), id=f"p{i}") for i in range(3)]
        await outbox.add_many(tx, [*placed, *timers])
        await outbox.add_many(tx, [])
    async with relaying(bus, outbox):
        await eventually(lambda: _is(published(bus), ["p0", "p1", "p2"]))
        (first, *_) = bus.records(ORDERS)
        headers = dict(first.headers)
        assert (headers["ce_type"], headers["ce_source"], headers["ce_subject"]) == (b"order.placed", b"/till", b"o1")
        assert headers["ce_time"] == b"2026-05-01T12:00:00Z"
        assert first.value == b'{"order_id":"o1","number":0}'
        async with engine.begin() as tx:
            assert await outbox.cancel_many(tx, ["s0", "s2", "unknown"]) == 2
            assert await outbox.cancel_many(tx, []) == 0
            assert await outbox.cancel(tx, "s0") == 0
        now += timedelta(minutes=2)
        lag = await outbox.lag()
        assert lag.due_count in {0, 1, 2}  # the relay may have seen the clock move
        outbox.wake()
        await eventually(lambda: _is(sorted(published(bus)), ["p0", "p1", "p2", "t1", "t3"]))


async def _is(found: object, wanted: object) -> bool:
    return found == wanted


async def test_lag_counts_what_is_due_and_pruning_forgets_what_is_done(engine: AsyncEngine, bus: MemoryBus) -> None:
    now = NOON
    outbox = Outbox(engine, lambda: now, poll_interval=timedelta(milliseconds=10))
    await outbox.create_tables()
    assert (await outbox.lag()).due_count == 0
    async with engine.begin() as tx:
        await outbox.add_many(tx, [entry(OrderPlaced(order_id="a"), id="1")])
        later = NOON + timedelta(seconds=30)
        await outbox.add_many(tx, [entry(OrderLapsed(order_id="a"), id="2", not_before=later, schedule_id="s")])
        await outbox.add_many(tx, [entry(OrderLapsed(order_id="b"), id="3", not_before=later, schedule_id="b")])
        await outbox.cancel(tx, "b")
    now = NOON + timedelta(seconds=90)
    lag = await outbox.lag()
    assert (lag.due_count, lag.oldest_s) == (2, 90.0)
    assert outbox.last_lag == lag
    async with relaying(bus, outbox):
        await eventually(lambda: _is(published(bus), ["1", "2"]))

        async def nothing_is_due() -> bool:
            found = await outbox.lag()
            return (found.due_count, found.oldest_s) == (0, 0.0)

        await eventually(nothing_is_due)
    assert await outbox.prune(timedelta(hours=1)) == 0
    now += timedelta(hours=2)
    assert await outbox.prune(timedelta(hours=1)) == 3
    async with engine.connect() as connection:
        assert await connection.scalar(select(func.count()).select_from(outbox_table)) == 0


@dataclass
class Record:
    """As a consumer reads it."""

    headers: Sequence[tuple[str, bytes]]
    offset: int = 0
    topic: str = ORDERS.name
    partition: int = 0
    timestamp: int = 0
    timestamp_type: int = 0
    key: bytes | None = b"k"
    value: bytes | None = b"{}"


def context(id: str, *, offset: int = 0, source: str = "/till") -> Context:
    # In structured mode, where JSON can name what no header holds: lone surrogates.
    attributes = {"specversion": "1.0", "id": id, "source": source, "type": "order.placed", "time": NOON.isoformat()}
    headers = [("content-type", b"application/cloudevents+json")]
    return Context(Record(headers, offset, value=json.dumps(attributes).encode()))


async def test_an_inbox_claims_once_counts_what_it_sees_and_forgets_when_told(engine: AsyncEngine) -> None:
    now = NOON
    inbox = Inbox(engine, "till", clock=lambda: now)
    await inbox.create_tables()
    async with engine.begin() as tx:
        assert await inbox.claim(tx, [context("a"), context("b"), context("a")]) == {"a", "b"}
        assert await inbox.claim(tx, []) == set()
    async with engine.begin() as tx:
        assert await inbox.claim(tx, [context("b"), context("c"), context("a", source="/other")]) == {"c", "a"}
    assert await inbox.counts() == (4, 6)
    async with engine.begin() as tx:
        await inbox.release(tx, [context("b")])
        assert await inbox.claim(tx, [context("b")]) == {"b"}
    now += timedelta(days=8)
    assert await inbox.prune(timedelta(days=7)) == 4
    assert await inbox.counts() == (0, 0)


async def test_an_inbox_forgets_what_is_older_than_it_was_told_and_nothing_of_others(engine: AsyncEngine) -> None:
    now = NOON
    till, other = (Inbox(engine, name, clock=lambda: now) for name in ("till", "other"))
    await till.create_tables()

    async def claim(inbox: Inbox, *contexts: Context) -> set[str]:
        async with engine.begin() as tx:
            return await inbox.claim(tx, contexts)

    assert await claim(till, context("old")) == {"old"}
    assert await claim(other, context("old")) == {"old"}
    now += timedelta(hours=1)
    assert await claim(till, context("new")) == {"new"}
    assert await till.prune(timedelta(hours=1)) == 0
    now += timedelta(microseconds=1)
    assert await till.prune(timedelta(hours=1)) == 1
    assert (await till.counts(), await other.counts()) == ((1, 1), (1, 1))
    assert await claim(till, context("old"), context("new")) == {"old"}
    async with engine.begin() as tx:
        await till.release(tx, [context("old", source="/elsewhere"), context("new")])
    assert await claim(till, context("old"), context("new")) == {"new"}
    assert await claim(other, context("old")) == set()


@pytest.mark.parametrize(
    ("id_", "source"),
    [
        *(("a\0b", "/till"), ("x" * 256, "/till"), ("a\nb", "/till"), ("a\ud800", "/till")),
        *(("a", "y" * 300), ("a", "/t\0"), ("a", "/t\udfff")),
    ],
)
async def test_an_id_that_no_inbox_can_hold_is_refused_before_anything_is_written(
    engine: AsyncEngine, id_: str, source: str
) -> None:
    inbox = Inbox(engine, "till")
    await inbox.create_tables()
    bad = context(id_, offset=7, source=source)
    assert inbox.refusal_of(context("x" * 255)) is None
    async with engine.begin() as tx:
        with pytest.raises(EventIdError, match="1 to 255 printable characters") as refused:
            await inbox.claim(tx, [context("good"), bad])
        # Nothing failed in the database: the transaction goes on.
        assert await inbox.claim(tx, [context("y" * 255)]) == {"y" * 255}
    assert (refused.value.id, refused.value.source, refused.value.offset) == (id_, source, 7)
    assert await inbox.counts() == (1, 1)


async def test_answers_are_found_again_until_they_are_too_old(engine: AsyncEngine) -> None:
    now = NOON
    book = AnswerBook(engine, keep=timedelta(hours=1), clock=lambda: now)
    await book.create_tables()
    answers = [StoredAnswer(key=f"k{i}", fingerprint=f"f{i}", status=200 + i, body=bytes([i])) for i in range(3)]
    async with engine.begin() as tx:
        await book.add(tx, answers)
    async with engine.begin() as tx:
        assert await book.find(tx, ["k0", "k2", "none", "k0"]) == {"k0": answers[0], "k2": answers[2]}
        assert await book.find(tx, []) == {}
        found = (await book.find(tx, ["k1"]))["k1"].replay("f1")
        assert (found.status, found.body, found.replayed) == (201, b"\x01", True)
        with pytest.raises(KeyReusedError):
            answers[1].replay("f2")
    now += timedelta(hours=2)
    async with engine.begin() as tx:
        await book.add(tx, [])
        assert await book.find(tx, ["k0", "k1", "k2"]) == {}


async def test_a_parking_lot_keeps_records_in_order_until_they_are_released(engine: AsyncEngine) -> None:
    lot = ParkingLot(engine, clock=lambda: NOON)
    await lot.create_tables()
    for offset in range(3):
        await lot.add("till", context(f"e{offset}", offset=offset).record, reason="no", attempts=2)
    await lot.add("till", context("e0").record, reason="again", attempts=3)  # read again after a crash
    records = await lot.records("till", ORDERS.name, b"k")
    assert [(record.offset, record.attempts, record.parked_at) for record in records] == [
        (0, records[0].attempts, NOON),
        (1, 2, NOON),
        (2, 2, NOON),
    ]
    (key,) = await lot.keys("till")
    assert (key.key, key.is_released) == (b"k", False)
    assert await lot.release("till", ORDERS.name, b"k") == 3
    assert [found.is_released for found in await lot.keys("till")] == [True]
    assert await lot.edit(records[0].position, b'{"mended":1}')
    assert (await lot.records("till", ORDERS.name, b"k"))[0].value == b'{"mended":1}'
    await lot.hold("till", ORDERS.name, b"k")
    assert [found.is_released for found in await lot.keys("till")] == [False]
    assert await lot.remove([record.position for record in records]) == 3
    assert await lot.keys("till") == []


async def test_parked_keys_are_those_of_one_moment(engine: AsyncEngine) -> None:
    """With a second statement, a key that was released in between had no reason any more."""
    lot = ParkingLot(engine, clock=lambda: NOON)
    await lot.create_tables()
    await lot.add("till", context("e0").record, reason="no", attempts=2)
    await lot.add("till", context("e1", offset=1).record, reason="before its turn", attempts=1)
    await lot.add("shop", context("e0").record, reason="of another group", attempts=1)
    asked: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        asked.append(statement)

    listen(engine.sync_engine, "before_cursor_execute", note)
    (key,) = await lot.keys("till")
    assert (key.reason, key.waiting_count, key.parked_at, key.is_released) == ("no", 2, NOON, False)
    assert len([statement for statement in asked if "hailbus_parked" in statement]) == 1


# ------------------------------------------------------------------------------------------------ PostgreSQL


Make = Callable[[], AsyncEngine]


@pytest.fixture
async def connect(postgresql: PostgreSQL, request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    """Engines of a fresh PostgreSQL database, as several processes would have them."""
    url = await asyncio.to_thread(postgresql.create, f"sdk_{abs(hash(request.node.name))}")
    engines: list[AsyncEngine] = []

    def make() -> AsyncEngine:
        engines.append(create_engine(url))
        return engines[-1]

    yield make
    for engine in engines:
        await engine.dispose()


async def test_a_relay_wakes_at_the_commit_of_another_process(connect: Make, bus: MemoryBus) -> None:
    never = timedelta(hours=1)
    relay, writer = Outbox(connect(), poll_interval=never), Outbox(connect())
    await writer.create_tables()

    async def commit(number: int) -> None:
        async with writer.engine.begin() as tx:
            await writer.add_many(tx, [entry(OrderPlaced(order_id="a", number=number), id=str(number))])

    async with relaying(bus, relay):
        await eventually(lambda: _is(relay.is_listening, wanted=True))
        await commit(1)
        await eventually(lambda: _is(published(bus), ["1"]))
        async with writer.engine.begin() as tx:
            await writer.add_many(tx, [entry(OrderPlaced(order_id="a"), id="undone")])
            await tx.rollback()
        # The connection that listens is lost: rows of meanwhile are found when it is back.
        async with writer.engine.begin() as tx:
            await tx.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE query LIKE 'LISTEN%' AND datname = current_database() AND pid <> pg_backend_pid()"
                )
            )
        await eventually(lambda: _is(relay.is_listening, wanted=False))
        await commit(2)
        await eventually(lambda: _is(published(bus), ["1", "2"]))
        assert relay.is_listening
        await commit(3)
        await eventually(lambda: _is(published(bus), ["1", "2", "3"]))


async def test_publishers_notify_too(connect: Make, bus: MemoryBus) -> None:
    relay, writer = Outbox(connect(), poll_interval=timedelta(hours=1)), connect()
    await relay.create_tables()
    service = Service("till")
    publisher = service.publishes(OrderPlaced)
    service.relays(Outbox(writer), elsewhere=True)
    async with service.running(bus), relaying(bus, relay):
        await eventually(lambda: _is(relay.is_listening, wanted=True))
        async with writer.begin() as tx:
            await publisher.publish(OrderPlaced(order_id="a"), id="1", tx=tx)
        await eventually(lambda: _is(published(bus), ["1"]))


async def test_several_relays_share_the_rows_and_keep_the_order_of_each_key(connect: Make, bus: MemoryBus) -> None:
    writer = Outbox(connect())
    await writer.create_tables()
    keys, rows_per_key = 20, 30
    for start in range(0, rows_per_key, 10):
        async with writer.engine.begin() as tx:
            await writer.add_many(
                tx,
                [
                    entry(OrderPlaced(order_id=f"o{key}", number=number), id=f"{key}/{number}")
                    for number in range(start, start + 10)
                    for key in range(keys)
                ],
            )
    relays = [Outbox(connect(), batch_records=15, poll_interval=timedelta(milliseconds=5)) for _ in range(4)]
    bus_send = bus.producer(client_id="x").__class__.send

    async def slow_send(self: Any, topic: str, partition: int, records: Any) -> Any:
        await asyncio.sleep(0.002 * (partition + 1))  # so that relays overtake each other where nothing stops them
        return await bus_send(self, topic, partition, records)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bus.producer(client_id="x").__class__, "send", slow_send)
        async with relaying(bus, *relays):
            await eventually(
                lambda: _is(sum(relay.published_count for relay in relays), keys * rows_per_key), within_s=60
            )
    ids = published(bus)
    assert len(set(ids)) == len(ids)
    for key in range(keys):
        mine = [
            OrderPlaced.model_validate_json(r.value or b"").number
            for r in bus.records(ORDERS)
            if r.key == f"o{key}".encode()
        ]
        assert mine == list(range(rows_per_key)), key
    assert len(ids) == keys * rows_per_key
    assert sum(relay.published_count > 0 for relay in relays) > 1


# ------------------------------------------------------------------------------------------------ reading


async def test_large_results_counts_and_broken_statements(engine: AsyncEngine) -> None:
    """What SQLite's cursor of our own has to do as the driver's does."""
    async with engine.begin() as tx:
        await tx.execute(text("CREATE TABLE numbers (n INTEGER PRIMARY KEY, word VARCHAR(10))"))
        done = await tx.execute(
            text("INSERT INTO numbers VALUES (:n, :word)"), [{"n": n, "word": str(n)} for n in range(2_500)]
        )
        assert done.rowcount in {2_500, -1}  # asyncpg does not count many
    everything = text("SELECT n FROM numbers ORDER BY n")
    async with engine.connect() as connection:
        assert (await connection.execute(everything)).scalars().all() == list(range(2_500))
        result = await connection.stream(everything)
        assert [row.n async for row in result] == list(range(2_500))
        half_read = await connection.stream(everything)
        assert (await half_read.fetchone()) == (0,)
        assert [row.n for row in await half_read.fetchmany(3)] == [1, 2, 3]
        await half_read.close()
        assert await connection.scalar(text("SELECT count(*) FROM numbers")) == 2_500
    async with engine.begin() as tx:
        changed = await tx.execute(text("UPDATE numbers SET word = 'x' WHERE n < 7"))
        assert changed.rowcount == 7
        gone = await tx.execute(text("DELETE FROM numbers WHERE n >= 2000 RETURNING n"))
        assert sorted(gone.scalars()) == list(range(2_000, 2_500))
    async with engine.connect() as connection:
        await connection.execute(text("INSERT INTO numbers VALUES (5000, 'rolled')"))
        with pytest.raises(IntegrityError):
            await connection.execute(text("INSERT INTO numbers VALUES (1, 'twice')"))
        await connection.rollback()
    async with engine.connect() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM numbers")) == 2_000


@pytest.mark.parametrize("max_items", [1, 100])
async def test_processes_take_every_event_once_while_two_members_move_them(
    engine: AsyncEngine, bus: MemoryBus, max_items: int
) -> None:
    """The events of one process come from two topics, so that members meet on its row."""
    outbox = Outbox(engine)
    calls = 0

    def member() -> tuple[Service, StateMachine]:
        machine = StateMachine(
            "counting",
            inbox=Inbox(engine, "counting"),
            outbox=outbox,
            retry=Backoff(first=timedelta(milliseconds=1), max=timedelta(milliseconds=20), attempts=50),
            max_items=max_items,
        )

        @machine.starts(OrderPlaced)
        async def begin(event: OrderPlaced, step: Step) -> Counted:
            return Counted(orders=1, payments=0)

        @machine.on(Counted, OrderPlaced)
        async def order(state: Counted, event: OrderPlaced, step: Step) -> Counted:
            nonlocal calls
            calls += 1
            return Counted(orders=state.orders + 1, payments=state.payments)

        @machine.on(Counted, PaymentReceived, by=lambda event: event.order_id)
        async def payment(state: Counted, event: PaymentReceived, step: Step) -> Counted:
            nonlocal calls
            calls += 1
            return Counted(orders=state.orders, payments=state.payments + 1)

        svc = Service("shop")
        machine.attach(svc)
        return svc, machine

    orders = [f"o{number}" for number in range(12)]
    (one, machine), (other, _) = member(), member()
    async with bus.run(one, other) as t:
        await t.given(*(OrderPlaced(order_id=order) for order in orders))
        await t.settle()
        for number in range(5):
            await t.given(*(OrderPlaced(order_id=order) for order in orders))
            await t.given(*(PaymentReceived(payment_id=f"{order}-{number}", order_id=order) for order in orders))
        await t.redeliver_last()
        await t.settle(timeout_s=30)
    async with engine.connect() as connection:
        found = [await machine.state(connection, order) for order in orders]
    assert found == [Counted(orders=6, payments=5)] * 12
    assert calls >= 120  # more, when two met and one was rolled back
    if engine.dialect.name == "postgresql":
        await engine.dispose()  # a session reports its deadlocks at its end
        async with engine.connect() as connection:
            query = text("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
            assert await connection.scalar(query) == 0, "rows are locked in one order"


async def test_pruning_takes_many_rows_in_small_transactions(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hailbus.outbox.PRUNED_AT_ONCE", 3)
    monkeypatch.setattr("hailbus.inbox.PRUNED_AT_ONCE", 3)
    now = NOON
    outbox, inbox, other = (
        Outbox(engine, lambda: now),
        Inbox(engine, "till", clock=lambda: now),
        Inbox(engine, "cellar"),
    )
    await outbox.create_tables()
    await inbox.create_tables()

    async def happen(*names: str, is_published: bool = True) -> None:
        async with engine.begin() as tx:
            await outbox.add_many(tx, [entry(OrderPlaced(order_id=name), id=name) for name in names], wakes=False)
            if is_published:
                await tx.execute(
                    update(outbox_table).where(outbox_table.c.id.in_(names)).values(published_at=micros(now))
                )
            contexts = [context(name) for name in names]
            await inbox.claim(tx, contexts)
            await other.claim(tx, contexts)

    async def left(table: Table) -> list[str]:
        name = table.c.id if table is outbox_table else table.c.event_id
        only = table.c.consumer == "till" if table is inbox_table else true()
        async with engine.connect() as connection:
            return sorted((await connection.execute(select(name).where(only))).scalars())

    await happen("waiting", is_published=False)
    await happen(*(f"old-{i}" for i in range(7)))
    now += timedelta(days=1)
    await happen(*(f"new-{i}" for i in range(4)))
    now += timedelta(hours=1)
    assert (await outbox.prune(timedelta(hours=2)), await inbox.prune(timedelta(hours=2))) == (7, 8)
    new = [f"new-{i}" for i in range(4)]
    assert (await left(outbox_table), await left(inbox_table)) == ([*new, "waiting"], new)
    assert (await other.counts())[0] == 12, "another consumer's rows stay"
    assert (await outbox.prune(timedelta(hours=2)), await inbox.prune(timedelta(hours=2))) == (0, 0)
