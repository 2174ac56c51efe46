"""When a relay looks for rows: at commits, by polling, at once after a full round, and less often while it fails."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from hailbus import ConfigurationError, DeliveryError, Event, Inbox, Outbox, OutboxEntry, Topic
from hailbus.clock import micros
from hailbus.codec import envelope_for
from hailbus.database import create_engine
from hailbus.outbox import OutboxLag, outbox_table
from sqlalchemy import select, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
ORDERS = Topic("orders.v1", partitions=1)


class Placed(Event, topic=ORDERS, key="order_id", type="order.placed"):
    order_id: str


class Rounds:
    """A relay whose rounds the test plays: how many rows each found, or the error that it met."""

    def __init__(self, *, batch_records: int = 10, poll_interval_s: float = 5.0) -> None:
        engine: Any = None  # not used: no round looks into a database
        self.outbox = Outbox(engine, batch_records=batch_records, poll_interval=timedelta(seconds=poll_interval_s))
        self.times: list[float] = []
        self.found: list[int | Exception] = []
        self.outbox.relay_once = self.round  # type: ignore[assignment,method-assign]  # played by the test

    async def round(self, *_: object) -> int:
        self.times.append(round(now(), 6))
        found = self.found.pop(0) if self.found else 0
        if isinstance(found, Exception):
            raise found
        return found

    def relay(self) -> asyncio.Task[None]:
        nothing: Any = None
        return asyncio.ensure_future(self.outbox._relay(nothing, nothing))


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.usefixtures("virtual_time")
async def test_rows_are_looked_for_at_each_interval_and_when_the_relay_is_woken() -> None:
    rounds = Rounds()
    task = rounds.relay()
    await asyncio.sleep(12)
    rounds.outbox.wake()
    await asyncio.sleep(6)
    task.cancel()
    assert rounds.times == [0, 5, 10, 12, 17]


@pytest.mark.usefixtures("virtual_time")
async def test_after_a_full_round_the_next_one_follows_at_once() -> None:
    rounds = Rounds()
    rounds.found = [10, 10, 9]
    task = rounds.relay()
    await asyncio.sleep(1)
    task.cancel()
    assert rounds.times == [0, 0, 0]


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize(
    "error",
    [
        lambda: DeliveryError("away", topic="orders.v1"),
        lambda: OperationalError("SELECT", {}, OSError("gone")),
        lambda: ConfigurationError("no such topic"),
        lambda: ConnectionError("refused"),
        lambda: TimeoutError("no answer"),
    ],
)
async def test_a_relay_that_fails_tries_again_with_growing_delays_up_to_fifteen_seconds(
    error: Callable[[], Exception], caplog: pytest.LogCaptureFixture
) -> None:
    rounds = Rounds()
    rounds.found = [*(error() for _ in range(10)), 3, error()]
    task = rounds.relay()
    await asyncio.sleep(80)
    task.cancel()
    waited = [round(b - a, 6) for a, b in zip(rounds.times, rounds.times[1:], strict=False)]
    assert waited[:12] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 15, 15, 5, 0.1]
    assert sum("relay_failed" in line.getMessage() for line in caplog.records) == 2, "once for each outage"


@pytest.mark.usefixtures("virtual_time")
async def test_a_wake_during_a_round_is_not_lost() -> None:
    rounds = Rounds()

    async def slow(*_: object) -> int:
        rounds.times.append(now())
        await asyncio.sleep(1)
        return 0

    rounds.outbox.relay_once = slow  # type: ignore[assignment,method-assign]  # played by the test
    task = rounds.relay()
    await asyncio.sleep(0.5)
    rounds.outbox.wake()
    await asyncio.sleep(2)
    task.cancel()
    assert rounds.times == [0, 1]


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize(("takes_s", "ends_after_s", "is_whole"), [(1, 1, True), (60, 5.5, False)])
async def test_a_round_that_has_begun_ends_before_the_relay_does_unless_it_hangs(
    takes_s: float, ends_after_s: float, is_whole: bool
) -> None:
    rounds = Rounds()

    async def slow(*_: object) -> int:
        await asyncio.sleep(takes_s)
        rounds.times.append(now())
        return 0

    rounds.outbox.relay_once = slow  # type: ignore[assignment,method-assign]  # played by the test
    task = rounds.relay()
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert now() == ends_after_s
    assert rounds.times == ([takes_s] if is_whole else [])


@pytest.mark.usefixtures("virtual_time")
async def test_commits_that_come_together_wake_the_relay_once_and_soon() -> None:
    rounds = Rounds()
    await asyncio.sleep(100)
    task = rounds.relay()
    await asyncio.sleep(1)
    rounds.outbox.wake_soon()
    await asyncio.sleep(0.002)
    rounds.outbox.wake_soon()
    await asyncio.sleep(0.01)
    assert rounds.times == [100, 101.005]
    rounds.outbox.wake_soon()
    await asyncio.sleep(0.5)
    assert rounds.times == [100, 101.005, 101.035], "rounds are 30 ms apart at least"
    task.cancel()


async def test_rows_of_a_clock_that_is_ahead_have_no_negative_age(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/outbox.db")
    time = NOON
    outbox = Outbox(engine, lambda: time)
    await outbox.create_tables()
    async with engine.begin() as tx:
        event = Placed(order_id="a")
        await outbox.add_many(
            tx, [OutboxEntry(event=event, envelope=envelope_for(event, source="/till", id="e", time=NOON))], wakes=False
        )
    time = NOON - timedelta(seconds=3)
    assert await outbox.lag() == OutboxLag(due_count=1, oldest_s=0.0)
    time = NOON + timedelta(seconds=3)
    assert await outbox.lag() == outbox.last_lag == OutboxLag(due_count=1, oldest_s=3.0)
    await engine.dispose()


def test_an_inbox_in_another_database_is_refused() -> None:
    engine: Any = type("Engine", (), {"dialect": type("Dialect", (), {"name": "mysql"})})
    with pytest.raises(ConfigurationError, match="the inbox supports sqlite and postgresql, not 'mysql'"):
        Inbox(engine, "till")


# ---------------------------------------------------------------------------------------------------- PostgreSQL


class Driver:
    """asyncpg's connection, as far as listening uses it."""

    def __init__(self) -> None:
        self.on_end: list[Callable[[object], None]] = []
        self.listeners: list[Callable[..., None]] = []

    def add_termination_listener(self, call: Callable[[object], None]) -> None:
        self.on_end.append(call)

    async def add_listener(self, channel: str, call: Callable[..., None]) -> None:
        assert channel == "hailbus_outbox"
        self.listeners.append(call)

    async def remove_listener(self, channel: str, call: Callable[..., None]) -> None:
        self.listeners.remove(call)


class Database:
    """An engine whose connections fail as the test says; the last one stays."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.times: list[float] = []
        self.drivers: list[Driver] = []
        self.invalidated = 0

    def connect(self) -> Database:
        return self

    async def __aenter__(self) -> Self:
        self.times.append(round(now(), 6))
        if self.errors:
            raise self.errors.pop(0)
        self.drivers.append(Driver())
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def get_raw_connection(self) -> Any:
        return SimpleNamespace(driver_connection=self.drivers[-1])

    async def invalidate(self) -> None:
        self.invalidated += 1


def listening(database: Any) -> tuple[Outbox, asyncio.Task[None]]:
    outbox = Outbox(database)
    return outbox, asyncio.ensure_future(outbox._listen())


@pytest.mark.usefixtures("virtual_time")
async def test_a_commit_that_postgresql_reports_wakes_the_relay() -> None:
    database = Database()
    outbox, task = listening(database)
    await asyncio.sleep(1)
    listened = outbox.is_listening
    assert outbox._woken.is_set(), "rows may have been committed before"
    outbox._woken.clear()
    database.drivers[0].listeners[0](database, 1, "hailbus_outbox", "")
    assert outbox._woken.is_set()
    task.cancel()
    await asyncio.wait({task})
    assert (listened, outbox.is_listening) == (True, False)
    assert database.drivers[0].listeners == [], "the connection goes back to the pool without it"
    assert database.invalidated == 0


@pytest.mark.usefixtures("virtual_time")
async def test_a_connection_that_is_lost_is_given_up_and_replaced() -> None:
    database = Database()
    outbox, task = listening(database)
    await asyncio.sleep(1)
    outbox._woken.clear()
    database.drivers[0].on_end[0](database.drivers[0])
    await asyncio.sleep(0.05)
    listened = outbox.is_listening
    assert database.invalidated == 1
    assert len(database.drivers[0].listeners) == 1, "there is nobody left to tell"
    await asyncio.sleep(1)
    assert (listened, outbox.is_listening) == (False, True)
    assert outbox._woken.is_set()
    assert database.times == [0, 1.1]
    task.cancel()


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize(
    "error", [OperationalError("LISTEN", {}, OSError("gone")), ConnectionRefusedError("refused"), TimeoutError("late")]
)
async def test_listening_is_tried_again_with_growing_delays(error: Exception) -> None:
    database = Database(*[error] * 10)
    outbox, task = listening(database)
    await asyncio.sleep(100)
    waited = [round(b - a, 6) for a, b in itertools.pairwise(database.times)]
    assert waited == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 15, 15]
    assert outbox.is_listening
    database.drivers[0].on_end[0](database.drivers[0])
    await asyncio.sleep(1)
    assert round(database.times[-1] - 100, 6) == 0.1, "the delay begins anew after a connection that worked"
    task.cancel()


# ---------------------------------------------------------------------------------------------------- rows


async def test_the_commit_of_a_session_wakes_the_relay_and_nothing_else_does(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/outbox.db")
    outbox = Outbox(engine, lambda: NOON)
    await outbox.create_tables()
    woken = 0

    def wake() -> None:
        nonlocal woken
        woken += 1

    outbox.wake = wake  # type: ignore[method-assign]  # counts
    async with AsyncSession(engine) as session:
        for turn in range(3):
            for number in range(2):
                event = Placed(order_id="a")
                envelope = envelope_for(event, source="/till", id=f"e{turn}-{number}", time=NOON)
                await outbox.add_many(session, [OutboxEntry(event=event, envelope=envelope)])
            assert woken == turn
            await session.commit()
            assert woken == turn + 1, "once for each commit"
    await engine.dispose()


@pytest.mark.parametrize("how", ["published_at", "cancelled_at"])
async def test_rows_are_kept_for_as_long_as_they_should_be_and_no_longer(tmp_path: Path, how: str) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/outbox.db")
    outbox = Outbox(engine, lambda: NOON)
    await outbox.create_tables()
    ages_us = {"just": 60_000_000, "longer": 60_000_001, "shorter": 59_999_999, "waiting": None}
    async with engine.begin() as tx:
        for name, age_us in ages_us.items():
            event = Placed(order_id=name)
            envelope = envelope_for(event, source="/till", id=name, time=NOON)
            await outbox.add_many(tx, [OutboxEntry(event=event, envelope=envelope)], wakes=False)
            if age_us is not None:
                ended = {how: micros(NOON) - age_us}
                await tx.execute(update(outbox_table).where(outbox_table.c.id == name).values(**ended))
    assert await outbox.prune(timedelta(minutes=1)) == 1
    async with engine.connect() as connection:
        left = set((await connection.execute(select(outbox_table.c.id))).scalars())
    assert left == {"just", "shorter", "waiting"}
    await engine.dispose()


@pytest.mark.usefixtures("virtual_time")
async def test_waiting_for_an_empty_outbox_wakes_the_relay_until_no_row_is_due() -> None:
    rounds = Rounds(poll_interval_s=0.5)
    due = [2, 1, 0]
    looked: list[bool] = []

    async def due_count() -> int:
        looked.append(rounds.outbox._woken.is_set())
        rounds.outbox._woken.clear()
        return due.pop(0)

    rounds.outbox.due_count = due_count  # type: ignore[method-assign]  # played by the test
    await rounds.outbox.until_empty()
    assert looked == [False, True, True]
    assert now() == 1
