"""SQLite's threads: virtual time does not overtake them, and they never answer to an event loop that is gone."""

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable

import pytest
from hailbus._sqlite import SqliteConnection, WriteTurns
from hailbus.testing.virtual import run_virtual


class Gate:
    """A step that waits in the thread until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.is_over = False

    def __call__(self) -> None:
        self.entered.set()
        assert self.opened.wait(30)
        self.is_over = True


async def connected() -> SqliteConnection:
    connection = SqliteConnection(lambda: sqlite3.connect(":memory:"), turns=WriteTurns(wait_s=10))
    await connection
    return connection


async def test_a_cancelled_step_ends_before_its_caller_does() -> None:
    connection, gate = await connected(), Gate()
    task = asyncio.create_task(connection.in_thread(gate))
    await asyncio.to_thread(gate.entered.wait, 30)
    task.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not task.done()
    gate.opened.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gate.is_over
    await connection.close()


async def test_a_cancelled_connect_leaves_no_connection_open() -> None:
    gate, made = Gate(), sqlite3.connect(":memory:", check_same_thread=False)

    def connect() -> sqlite3.Connection:
        gate()
        return made

    async def begin() -> None:
        await connection

    connection = SqliteConnection(connect, turns=WriteTurns(wait_s=10))
    task = asyncio.create_task(begin())
    await asyncio.to_thread(gate.entered.wait, 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.opened.set()
    await asyncio.to_thread(connection._thread.join, 30)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        made.execute("SELECT 1")


def raised_in_the_thread(
    monkeypatch: pytest.MonkeyPatch, use: Callable[[SqliteConnection, Gate], Awaitable[None]]
) -> list[object]:
    """Let a connection's thread work on after its event loop is closed; what it raised meanwhile."""
    failures: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    gate = Gate()
    threads: list[threading.Thread] = []

    async def main() -> None:
        connection = await connected()
        threads.append(connection._thread)
        await use(connection, gate)
        connection.stop()

    asyncio.run(main())
    gate.opened.set()
    threads[0].join(30)
    assert not threads[0].is_alive()
    return failures


def test_a_stopped_thread_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(connection: SqliteConnection, gate: Gate) -> None:
        connection._tx.put_nowait((None, gate))  # the thread is busy until the event loop is closed

    assert raised_in_the_thread(monkeypatch, use) == []


def test_a_step_may_end_after_its_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(connection: SqliteConnection, gate: Gate) -> None:
        task = asyncio.create_task(connection.in_thread(gate))
        await asyncio.to_thread(gate.entered.wait, 30)
        for _ in range(2):  # a timeout, for example, and then the end of the service
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task

    assert raised_in_the_thread(monkeypatch, use) == []


def test_virtual_time_does_not_overtake_a_step() -> None:
    gate = Gate()

    async def main() -> None:
        connection = await connected()
        threading.Timer(0.6, gate.opened.set).start()  # longer than other threads are waited for
        async with asyncio.timeout(1.0):
            await connection.in_thread(gate)
        await connection.close()

    run_virtual(main())
    assert gate.is_over


def test_virtual_time_does_not_overtake_a_connect() -> None:
    gate = Gate()

    def connect() -> sqlite3.Connection:
        gate()
        return sqlite3.connect(":memory:", check_same_thread=False)

    async def main() -> None:
        connection = SqliteConnection(connect, turns=WriteTurns(wait_s=10))
        threading.Timer(0.6, gate.opened.set).start()  # longer than other threads are waited for
        async with asyncio.timeout(1.0):
            await connection
        await connection.close()

    run_virtual(main())
    assert gate.is_over
