"""Synchronous code: a publisher for threads and forks, outbox and inbox in a sync session, a relay that is killed."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

import pytest
from hailbus import (
    ConfigurationError,
    Context,
    Event,
    EventIdError,
    Inbox,
    KafkaBus,
    Outbox,
    Service,
    Topic,
    bus_reader,
)
from hailbus._command import main as command
from hailbus.codec import encode, envelope_for
from hailbus.database import create_engine as create_async_engine
from hailbus.database import table_metadata
from hailbus.errors import BrokerUnreachableError, DeliveryError, MissingKeyError, NotInContractError
from hailbus.inbox import inbox_table
from hailbus.outbox import outbox_table
from hailbus.sync import SyncInbox, SyncOutbox, SyncPublisher, create_engine
from hailbus.testing import MemoryBus, MemoryRecord
from sqlalchemy import Engine, func, select, text
from sqlalchemy.orm import Session

from tests.support import free_port

ORDERS = Topic("orders.v1", partitions=3)


class OrderPlaced(Event, topic=ORDERS, key="order_id", type="order.placed"):
    order_id: str
    number: int = 0


class OrderPaid(Event, topic=ORDERS, key="order_id", type="order.paid"):
    order_id: str


class Cluster(Protocol):
    @property
    def bootstrap(self) -> str: ...


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    found = create_engine(database_url)
    yield found
    found.dispose()


def publisher(bus: MemoryBus, **options: int) -> SyncPublisher[OrderPlaced]:
    shop = Service("shop", source="/flask", bus=bus)
    return SyncPublisher(shop, shop.publishes(OrderPlaced), max_waiting=options.get("max_waiting", 100))


def ids(records: list[MemoryRecord]) -> list[str]:
    return [dict(record.headers)["ce_id"].decode() for record in records]


# ------------------------------------------------------------------------------------------------ publisher


def test_events_are_published_and_acknowledged() -> None:
    bus = MemoryBus()
    with publisher(bus) as orders:
        receipt = orders.publish(OrderPlaced(order_id="a"), id="1", headers=[("x", b"y")])
        assert (receipt.id, receipt.topic, receipt.offset) == ("1", "orders.v1", 0)
        many = orders.publish_many(OrderPlaced(order_id="a", number=n) for n in range(250))
        assert [r.offset for r in many] == list(range(1, 251))
        future = orders.enqueue(OrderPlaced(order_id="b"), time=datetime(2024, 5, 1, tzinfo=UTC))
        orders.flush()
        assert future.done()
        assert orders.waiting_count == 0
    record = next(record for record in bus.records(ORDERS) if record.key == b"b")
    headers = dict(record.headers)
    assert headers["ce_source"] == b"/flask"
    assert headers["ce_time"] == b"2024-05-01T00:00:00Z"


def test_threads_share_one_publisher_and_keep_their_order() -> None:
    bus = MemoryBus()
    orders = publisher(bus, max_waiting=7)

    def work(name: str) -> None:
        for number in range(200):
            orders.enqueue(OrderPlaced(order_id=name, number=number), id=f"{name}-{number}")

    threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    orders.flush()
    orders.close()
    for n in range(8):
        own = [record for record in bus.records(ORDERS) if record.key == f"t{n}".encode()]
        assert ids(own) == [f"t{n}-{number}" for number in range(200)]


def test_a_full_buffer_blocks_the_caller_and_no_more() -> None:
    bus = MemoryBus()
    orders = publisher(bus, max_waiting=3).start()
    bus.is_down = True
    accepted: list[int] = []

    def work() -> None:
        for number in range(10):
            orders.enqueue(OrderPlaced(order_id="a", number=number))
            accepted.append(number)

    thread = threading.Thread(target=work)
    thread.start()
    deadline = time.monotonic() + 30
    while len(accepted) < 3 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert orders.waiting_count == 3
    assert accepted == [0, 1, 2]
    bus.come_up()
    thread.join(30)
    orders.close()
    assert len(bus.records(ORDERS)) == 10


def test_errors_come_to_the_caller() -> None:
    bus = MemoryBus()
    with publisher(bus) as orders:
        with pytest.raises(MissingKeyError):
            orders.publish(OrderPlaced(order_id=""))
        wrong: SyncPublisher[Event] = orders  # type: ignore[assignment]  # what a caller without a type checker does
        with pytest.raises(NotInContractError):
            wrong.publish(OrderPaid(order_id="a"))
        bus.fail_sends(DeliveryError("refused", topic="orders.v1"))
        with pytest.raises(DeliveryError, match="refused"):
            orders.publish_many([OrderPlaced(order_id="a")])
        assert orders.publish(OrderPlaced(order_id="a")).offset == 0
    with pytest.raises(ConfigurationError, match="was closed"):
        orders.publish(OrderPlaced(order_id="a"))
    orders.close()


def test_a_broker_that_is_away_is_said_at_once_and_tried_again() -> None:
    bus = MemoryBus()
    bus.is_down = True
    orders = publisher(bus)
    for _ in range(2):
        with pytest.raises(BrokerUnreachableError):
            orders.publish(OrderPlaced(order_id="a"))
    bus.is_down = False
    assert orders.publish(OrderPlaced(order_id="a")).offset == 0
    orders.close()


async def test_an_event_loop_is_not_blocked() -> None:
    orders = publisher(MemoryBus())
    for call in (lambda: orders.publish(OrderPlaced(order_id="a")), orders.flush):
        with pytest.raises(ConfigurationError, match="would block the event loop"):
            call()
    orders.close()


def test_handlers_of_the_service_do_not_run_in_the_publisher() -> None:
    bus = MemoryBus()
    shop = Service("shop", bus=bus)

    @shop.on(OrderPlaced)
    async def take(event: OrderPlaced, ctx: Context) -> None: ...

    with SyncPublisher(shop, shop.publishes(OrderPlaced)) as orders:
        orders.publish(OrderPlaced(order_id="a"))
        assert bus.groups == {}


PROGRAM = """
import os, sys
from hailbus import Event, KafkaBus, Service, Topic
from hailbus.sync import SyncPublisher

class OrderPlaced(Event, topic=Topic("orders.v1", partitions=3), key="order_id", type="order.placed"):
    order_id: str

shop = Service("shop", bus=KafkaBus(bootstrap_servers=sys.argv[1]))
orders = SyncPublisher(shop, shop.publishes(OrderPlaced))
orders.publish(OrderPlaced(order_id="parent"))
child = os.fork()
if child == 0:
    orders.publish(OrderPlaced(order_id="child"))
    orders.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
orders.enqueue(OrderPlaced(order_id="at the end"))     # and the interpreter ends without close()
"""


def test_forks_and_the_end_of_the_interpreter_lose_nothing(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, tmp_path / "shop.py", cluster.bootstrap],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr

    async def read() -> list[str]:
        bus = KafkaBus(bootstrap_servers=cluster.bootstrap)
        return [d.event.order_id async for d in bus_reader(bus, OrderPlaced, start="earliest", until_end=True)]

    assert {"parent", "child", "at the end"} <= set(asyncio.run(read()))


# ------------------------------------------------------------------------------------------------ outbox and inbox


async def relay_all(database_url: str, bus: MemoryBus) -> int:
    engine = create_async_engine(database_url)
    outbox = Outbox(engine)
    svc = Service("relay")
    svc.publishes(OrderPlaced)
    svc.relays(outbox)
    async with svc.running(bus):
        await outbox.until_empty()
        await svc.flush()
    await engine.dispose()
    return outbox.published_count


def test_events_are_stored_with_the_state_that_they_tell_of(engine: Engine, database_url: str) -> None:
    bus = MemoryBus()
    outbox = SyncOutbox(engine)
    outbox.create_tables()
    outbox.create_tables()
    orders = publisher(bus)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE placed (id VARCHAR(10))"))
    with Session(engine) as tx:
        tx.execute(text("INSERT INTO placed VALUES ('a')"))
        orders.publish(OrderPlaced(order_id="a"), id="1", tx=tx)
        orders.publish_many([OrderPlaced(order_id="a", number=n) for n in (2, 3)], tx=tx)
        tx.commit()
    with Session(engine) as tx:
        tx.execute(text("INSERT INTO placed VALUES ('b')"))
        orders.publish(OrderPlaced(order_id="b"), tx=tx)
        tx.rollback()
    with engine.begin() as connection:
        later = datetime.now(UTC) + timedelta(hours=1)
        orders.publish(OrderPlaced(order_id="c"), tx=connection, not_before=later, schedule_id="c")
        assert outbox.cancel(connection, "c", "d") == 1
        assert outbox.cancel(connection) == 0
    orders.close()
    assert bus.records(ORDERS) == [] == list(bus.declared), "nothing was connected"
    assert asyncio.run(relay_all(database_url, bus)) == 3
    (first, *rest) = bus.records(ORDERS)
    assert (first.key, ids([first])) == (b"a", ["1"])
    assert [OrderPlaced.model_validate_json(r.value or b"").number for r in rest] == [2, 3]
    with engine.connect() as connection:
        assert connection.scalars(text("SELECT id FROM placed")).all() == ["a"]


def context(number: int, id_: str) -> Context:
    event = OrderPlaced(order_id="a", number=number)
    bus = MemoryBus()
    bus.create(ORDERS)
    key, value, headers = encode(event, envelope_for(event, source="/s", id=id_))
    bus.append("orders.v1", 0, [(key, value, headers)])
    return Context(bus.records(ORDERS)[0])


def test_an_event_is_claimed_once_by_sync_and_async_code_alike(engine: Engine, database_url: str) -> None:
    inbox = SyncInbox(engine, consumer="till")
    inbox.create_tables()
    one, two = context(1, "1"), context(2, "2")
    with Session(engine) as tx, tx.begin():
        assert inbox.claim(tx, [one, one]) == {"1"}
    with Session(engine) as tx:
        assert inbox.claim(tx, [two]) == {"2"}
        tx.rollback()
    with engine.begin() as connection:
        assert inbox.claim(connection, [one, two]) == {"2"}
        assert inbox.claim(connection, []) == set()

    async def by_async_code() -> set[str]:
        async_engine = create_async_engine(database_url)
        async with async_engine.begin() as tx:
            found = await Inbox(async_engine, consumer="till").claim(tx, [one, context(3, "3")])
        await async_engine.dispose()
        return found

    assert asyncio.run(by_async_code()) == {"3"}
    bad = context(4, "x" * 300)
    assert isinstance(inbox.refusal_of(bad), EventIdError)
    with Session(engine) as tx, pytest.raises(EventIdError):
        inbox.claim(tx, [bad])
    with Session(engine) as tx, tx.begin():
        inbox.release(tx, [one])
        assert inbox.claim(tx, [one]) == {"1"}
    assert inbox.prune(timedelta(0)) == 3
    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(inbox_table)) == 0


def test_one_set_of_tables(engine: Engine) -> None:
    assert {outbox_table.name, inbox_table.name} <= set(table_metadata().tables)


# ------------------------------------------------------------------------------------------------ relay


def relay(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = Path(sys.executable).with_name("hailbus")
    with (folder / "relay.log").open("a") as log:
        return subprocess.Popen(
            [command, "relay", *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True
        )


def end(process: subprocess.Popen[str], number: int) -> tuple[int, str]:
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    return process.returncode, output


APP = """
from sqlalchemy.orm import Session
from hailbus import Event, Service, Topic
from hailbus.sync import SyncOutbox, SyncPublisher, create_engine

ORDERS = Topic("relayed.v1", partitions=3)

class OrderPlaced(Event, topic=ORDERS, key="order_id", type="order.placed"):
    order_id: str
    number: int

engine = create_engine(DATABASE)
outbox = SyncOutbox(engine)
shop = Service("shop")
orders = SyncPublisher(shop, shop.publishes(OrderPlaced))
"""


class Relayed(Event, topic=Topic("relayed.v1", partitions=3), key="order_id", type="order.placed"):
    order_id: str
    number: int


@pytest.mark.slow_with("apache-sqlite", "inhouse-postgresql")
def test_a_relay_that_is_killed_again_and_again_loses_nothing_and_keeps_the_order(
    cluster: Cluster, engine: Engine, database_url: str, tmp_path: Path
) -> None:
    url = database_url.replace("+aiosqlite", "").replace("+asyncpg", "")
    (tmp_path / "app.py").write_text(f"DATABASE = {url!r}\n{APP}")
    SyncOutbox(engine).create_tables()
    shop = Service("shop")
    orders = SyncPublisher(shop, shop.publishes(Relayed))
    count, keys = 1200, 10
    arguments = ("app:outbox", "-b", cluster.bootstrap, "--create-topics", "app", "--log-level", "warning")
    stop = threading.Event()

    def write() -> None:
        for number in range(count):
            with Session(engine) as tx, tx.begin():
                orders.publish(Relayed(order_id=f"k{number % keys}", number=number), id=f"id-{number}", tx=tx)
            if stop.is_set():
                return

    def published() -> int:
        with engine.connect() as connection:
            where = outbox_table.c.published_at.is_not(None)
            return int(connection.scalar(select(func.count()).select_from(outbox_table).where(where)) or 0)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for life in range(1, 4):
            process = relay(tmp_path, *arguments)
            deadline = time.monotonic() + 60
            while published() < count * life // 5 and time.monotonic() < deadline:
                time.sleep(0.005)
            assert published() >= count * life // 5, (tmp_path / "relay.log").read_text()[-3000:]
            end(process, signal.SIGKILL)
        writer.join(120)
    finally:
        stop.set()
        writer.join(120)
    last = subprocess.run(
        [Path(sys.executable).with_name("hailbus"), "relay", *arguments, "--until-empty"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert last.returncode == 0, last.stderr
    assert published() == count

    async def read() -> list[tuple[str, int, str]]:
        bus = KafkaBus(bootstrap_servers=cluster.bootstrap)
        return [
            (d.event.order_id, d.event.number, d.ctx.envelope.id)
            async for d in bus_reader(bus, Relayed, start="earliest", until_end=True)
            if d.ctx.envelope.source == "/shop"
        ]

    found = asyncio.run(read())
    assert {event_id for _, _, event_id in found} == {f"id-{n}" for n in range(count)}
    for key in range(keys):
        seen = list(dict.fromkeys(number for order, number, _ in found if order == f"k{key}"))
        assert seen == sorted(seen), "a repetition may follow, an event never comes before an earlier one"


def test_the_relay_stops_on_sigterm(cluster: Cluster, engine: Engine, database_url: str, tmp_path: Path) -> None:
    url = database_url.replace("+aiosqlite", "").replace("+asyncpg", "")
    SyncOutbox(engine).create_tables()
    process = relay(tmp_path, "--database", url, "-b", cluster.bootstrap, "--log-level", "info")
    deadline = time.monotonic() + 60
    while "service_started" not in (tmp_path / "relay.log").read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert end(process, signal.SIGTERM) == (0, "published=0\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name the outbox"),
        (("--database", "sqlite:///outbox.db", "app:outbox"), "one of the two"),
        (("--database", "mysql://x/y"), "is not supported"),
        (("os:sep",), "neither an Outbox nor a SyncOutbox"),
    ],
)
def test_the_relay_says_what_it_cannot_do(
    arguments: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["hailbus", "relay", "-b", f"127.0.0.1:{free_port()}", *arguments])
    with pytest.raises(SystemExit) as ended:
        command()
    assert (ended.value.code, said in capsys.readouterr().err) == (2, True)
