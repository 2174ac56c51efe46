"""Tasks that write to one SQLite file take turns, and no turn outlives its transaction."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from hailbus._sqlite import SqliteConnection, WriteTurns
from hailbus.database import READ_ONLY, create_engine
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

PATIENCE_MS = 60_000
"""Longer than a test: who does not get a turn is seen as one who waits."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    with sqlite3.connect(tmp_path / "turns.db") as made:
        made.execute("CREATE TABLE entries (name TEXT)")
    made.close()
    return f"sqlite:///{tmp_path / 'turns.db'}"


async def write(engine: AsyncEngine, name: str) -> None:
    async with engine.begin() as connection:
        await connection.execute(text("INSERT INTO entries VALUES (:name)"), {"name": name})


async def entries(engine: AsyncEngine) -> list[str]:
    async with engine.connect() as connection:
        await connection.execution_options(**READ_ONLY)
        return list((await connection.execute(text("SELECT name FROM entries ORDER BY rowid"))).scalars())


async def let_run() -> None:
    """Give every task and thread time to come as far as it can: statements are answered within it."""
    for _ in range(20):
        await asyncio.sleep(0.005)


async def test_writers_write_in_the_order_in_which_they_asked(url: str) -> None:
    engine = create_engine(url, busy_timeout_ms=PATIENCE_MS)
    names = [f"writer {number}" for number in range(12)]
    async with engine.begin() as holding:
        await holding.execute(text("INSERT INTO entries VALUES ('first')"))
        tasks = []
        for name in names:
            tasks.append(asyncio.create_task(write(engine, name)))
            await let_run()
        assert not any(task.done() for task in tasks)
        assert await entries(engine) == []  # readers do not wait
    await asyncio.wait_for(asyncio.gather(*tasks), 30)
    assert await entries(engine) == ["first", *names]
    await engine.dispose()


async def failing(engine: AsyncEngine) -> None:
    with pytest.raises(OperationalError):
        async with engine.begin() as connection:
            await connection.execute(text("INSERT INTO nothing VALUES (1)"))


async def abandoned(engine: AsyncEngine) -> None:
    """A transaction that its connection does not survive."""
    connection = await engine.connect()
    await connection.execute(text("INSERT INTO entries VALUES ('lost')"))
    await connection.invalidate()
    await connection.close()


async def cancelled_within(engine: AsyncEngine) -> None:
    begun = asyncio.Event()

    async def hold() -> None:
        async with engine.begin():
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(hold())
    await begun.wait()
    task.cancel()
    await asyncio.wait([task])


async def cancelled_while_it_waits(engine: AsyncEngine) -> None:
    async with engine.begin():
        task = asyncio.create_task(write(engine, "never"))
        await let_run()
        task.cancel()
        await asyncio.wait([task])


async def cancelled_at_each_step(engine: AsyncEngine) -> None:
    for steps in range(30):
        task = asyncio.create_task(failing(engine))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.parametrize(
    "end", [failing, abandoned, cancelled_within, cancelled_while_it_waits, cancelled_at_each_step]
)
async def test_a_turn_ends_with_its_transaction(url: str, end: Callable[[AsyncEngine], Awaitable[None]]) -> None:
    engine = create_engine(url, busy_timeout_ms=PATIENCE_MS)
    await end(engine)
    async with AsyncExitStack() as stack:
        for _ in range(3):  # the connections that had their turns are in use: another one writes
            used = await stack.enter_async_context(engine.connect())
            await used.execution_options(**READ_ONLY)
        await asyncio.wait_for(write(engine, "after"), 30)
    assert await entries(engine) == ["after"]
    await engine.dispose()


async def test_a_turn_ends_when_another_process_has_the_lock(url: str) -> None:
    engine = create_engine(url, busy_timeout_ms=50)
    other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for _ in range(2):
        with pytest.raises(OperationalError, match="locked"):
            await write(engine, "too early")
    other.execute("COMMIT")
    await write(engine, "after")
    assert await entries(engine) == ["after"]
    other.close()
    await engine.dispose()


async def test_a_turn_that_does_not_come_in_time_is_an_error(url: str) -> None:
    engine = create_engine(url, busy_timeout_ms=50)
    async with engine.begin():
        with pytest.raises(OperationalError, match="locked"):
            await write(engine, "too early")
    await write(engine, "after")
    assert await entries(engine) == ["after"]
    await engine.dispose()


async def test_a_turn_ends_with_a_connection_that_nobody_closed() -> None:
    turns = WriteTurns(wait_s=PATIENCE_MS / 1000)
    left, next_one = (SqliteConnection(lambda: sqlite3.connect(":memory:"), turns=turns) for _ in range(2))
    await left
    await left.take_turn()
    left.stop()  # as the garbage collector does
    await asyncio.wait_for(next_one.take_turn(), 30)


def test_turns_of_an_event_loop_that_is_gone_stop_nobody(url: str) -> None:
    engine = create_engine(url, busy_timeout_ms=PATIENCE_MS)

    async def left_behind() -> None:
        connection = await engine.connect()
        await connection.execute(text("INSERT INTO entries VALUES ('lost')"))
        await connection.invalidate()

    async def after() -> list[str]:
        await asyncio.wait_for(write(engine, "after"), 30)
        found = await entries(engine)
        await engine.dispose()
        return found

    asyncio.run(left_behind())
    assert asyncio.run(after()) == ["after"]
