"""When a relay looks for rows: at commits, by polling, at once after a full round, and less often while it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hailbus import ConfigurationError, DeliveryError, Event, Inbox, Outbox, OutboxEntry, Topic
from hailbus.codec import envelope_for
from hailbus.database import create_engine
from hailbus.outbox import OutboxLag
from sqlalchemy.exc import OperationalError

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
