"""SQLite in a thread, one crossing per statement, and one writer after the other.

aiosqlite runs each step of a statement (make a cursor, execute, fetch, close) in the connection's thread and comes back
to the event loop between them. Each crossing wakes two threads that share one interpreter lock; with small statements,
four of them cost more than SQLite. Here a statement and its first rows are one step.

A connection that finds SQLite's write lock taken sleeps for up to 100 ms before it tries again, also if the lock is
released earlier. Here the connections of an engine queue for the lock in the event loop, in FIFO order.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self, TypeVar

from hailbus._extras import extra

with extra("sql"):
    import aiosqlite

__all__ = ["BEGIN_TO_WRITE", "SqliteConnection", "SqliteCursor", "WriteTurns"]

BEGIN_TO_WRITE = "BEGIN IMMEDIATE"
"""Begins a transaction that holds the write lock from its beginning on."""

FIRST_ROWS = 1_000
"""Rows that come with the statement itself; a larger result is fetched on, as far as its reader goes."""

THREADS: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""The threads of all connections. They touch the event loop only to answer `_execute`."""

T = TypeVar("T")

Row = tuple[Any, ...]  # Any: whatever the columns hold
Step = Callable[[], Any]  # Any: what a step answers
Given = tuple["asyncio.Future[Any] | None", Step]

_STOP = object()  # what the last step of a thread answers


def _nothing() -> None:
    pass


def _working() -> AbstractContextManager[None]:
    """Tell a virtual loop that the thread works: it skips no time meanwhile."""
    working: Callable[[], AbstractContextManager[None]] = getattr(asyncio.get_running_loop(), "working", nullcontext)
    return working()


def _work(given: SimpleQueue[Given]) -> None:
    """Run what is given to a connection's thread, in order, until a step answers `_STOP`."""
    while True:
        future, step = given.get()
        try:
            answer = step()
        except BaseException as error:  # noqa: BLE001  # whatever it is belongs to who waits for it
            _answer(future, asyncio.Future.set_exception, error)
        else:
            _answer(future, asyncio.Future.set_result, answer)
            if answer is _STOP:
                return


def _answer(future: asyncio.Future[Any] | None, setter: Callable[[asyncio.Future[Any], Any], None], value: Any) -> None:
    if future is None:
        return
    # A step outlives the task that gave it, if that task was cancelled, and may outlive the event loop.
    with suppress(RuntimeError):  # the event loop is closed
        future.get_loop().call_soon_threadsafe(_settle, future, setter, value)


def _settle(future: asyncio.Future[Any], setter: Callable[[asyncio.Future[Any], Any], None], value: Any) -> None:
    if not future.done():
        setter(future, value)


class WriteTurns:
    """The queue of an engine's connections that want to write, in FIFO order.

    Between engines, threads and processes only SQLite's own lock decides.

    Args:
        wait_s: How long a connection waits for its turn, in seconds. After that it tries SQLite's lock without a turn.
    """

    def __init__(self, *, wait_s: float) -> None:
        self._wait_s = wait_s
        self._locks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = weakref.WeakKeyDictionary()

    async def take(self) -> Callable[[], None]:
        """Wait for a turn; return what ends it, from any thread."""
        loop = asyncio.get_running_loop()
        lock = self._locks.setdefault(loop, asyncio.Lock())
        try:
            async with asyncio.timeout(self._wait_s):
                await lock.acquire()
        except TimeoutError:
            return _nothing

        def end() -> None:
            with suppress(RuntimeError):  # the event loop is closed: nobody waits
                loop.call_soon_threadsafe(lock.release)

        return end


class SqliteConnection(aiosqlite.Connection):
    """As aiosqlite's, for SQLAlchemy's adapter: with cursors that cross once, and with turns to write."""

    def __init__(self, connector: Callable[[], sqlite3.Connection], *, turns: WriteTurns) -> None:
        self._turns = turns
        self._end_of_turn: Callable[[], None] = _nothing
        self._opened: sqlite3.Connection | None = None
        self._connect_raw = connector
        super().__init__(self._connect_in_thread, iter_chunk_size=64)
        # A daemon, as SQLAlchemy has it: a process may end without closing its pool.
        self._thread = threading.Thread(target=_work, args=(self._tx,), name="sqlite", daemon=True)
        THREADS.add(self._thread)

    async def _connect(self) -> aiosqlite.Connection:
        with _working():
            return await super()._connect()

    async def _execute(self, fn: Any, *args: Any, **kwargs: Any) -> Any:  # Any: aiosqlite's own, untyped
        with _working():
            try:
                return await super()._execute(fn, *args, **kwargs)  # type: ignore[no-untyped-call]  # aiosqlite's own
            except asyncio.CancelledError:
                # Nothing interrupts the thread. Steps run in order: an empty one ends when the cancelled one has.
                with suppress(ValueError):  # the connection was closed
                    await super()._execute(_nothing)  # type: ignore[no-untyped-call]  # as above
                raise

    def stop(self) -> None:
        """Stop the thread behind its last step, without an answer: the event loop may be closed by then."""
        self._running = False
        self._tx.put_nowait((None, self._close_and_stop))
        self.end_turn()

    def _connect_in_thread(self) -> sqlite3.Connection:
        self._opened = self._connect_raw()  # kept: the caller may be cancelled before it gets the connection
        return self._opened

    def _close_and_stop(self) -> object:
        if self._opened is not None:
            self._opened.close()
        self._connection = None
        return _STOP

    async def in_thread(self, step: Callable[..., T], *arguments: Any) -> T:  # Any: whatever the step takes
        """Run a step in the connection's thread, behind what was given to it before."""
        found: T = await self._execute(step, *arguments)  # aiosqlite's own, untyped
        return found

    async def take_turn(self) -> None:
        """Wait until this connection may begin to write."""
        self.end_turn()
        self._end_of_turn = await self._turns.take()

    def end_turn(self) -> None:
        """Let the next connection write. It may be this one's turn or not."""
        end, self._end_of_turn = self._end_of_turn, _nothing
        end()

    async def commit(self) -> None:
        """End the transaction, and the turn."""
        try:
            await super().commit()
        finally:
            self.end_turn()

    async def rollback(self) -> None:
        """Undo the transaction, and end the turn."""
        try:
            await super().rollback()
        finally:
            self.end_turn()

    async def close(self) -> None:
        """Close the connection; its turn ends."""
        try:
            await super().close()
        finally:
            self.end_turn()

    def cursor(self) -> SqliteCursor:  # type: ignore[override]  # the adapter enters it, and needs no more of it
        """A cursor, made without asking the thread."""
        return SqliteCursor(self)


class SqliteCursor:
    """What SQLAlchemy's adapter uses of a cursor. One statement at a time."""

    def __init__(self, connection: SqliteConnection) -> None:
        self._connection = connection
        self._open: sqlite3.Cursor | None = None
        self._rows: list[Row] = []
        self._is_exhausted = True
        self.description: Any = None  # Any: as the DB-API has it
        self.rowcount = -1
        self.lastrowid: int | None = None
        self.arraysize = 1

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def execute(self, sql: str, parameters: Iterable[Any] = ()) -> Self:
        """Run a statement and fetch its first rows."""
        if sql == BEGIN_TO_WRITE:
            await self._connection.take_turn()
        await self._connection.in_thread(self._run, sql, parameters)
        return self

    async def executemany(self, sql: str, parameters: Iterable[Sequence[Any]]) -> Self:
        """Run a statement for each set of parameters."""
        await self._connection.in_thread(self._run_many, sql, parameters)
        return self

    async def fetchone(self) -> Row | None:
        """The next row."""
        rows = await self.fetchmany(1)
        return rows[0] if rows else None

    async def fetchmany(self, size: int | None = None) -> Sequence[Row]:
        """The next rows, at most `size`."""
        wanted = size if size is not None else self.arraysize
        if len(self._rows) < wanted and not self._is_exhausted:
            self._rows += await self._connection.in_thread(self._fetch, max(wanted, FIRST_ROWS))
        found, self._rows = self._rows[:wanted], self._rows[wanted:]
        return found

    async def fetchall(self) -> Sequence[Row]:
        """All rows that are left."""
        if not self._is_exhausted:
            self._rows += await self._connection.in_thread(self._fetch, None)
        found, self._rows = self._rows, []
        return found

    async def close(self) -> None:
        """Let a result go that was not read to its end."""
        self._rows = []
        if self._open is not None:
            await self._connection.in_thread(self._end)

    # ------------------------------------------------------------------------------------------------ in the thread

    def _run(self, sql: str, parameters: Iterable[Any]) -> None:
        cursor = self._begin()
        cursor.execute(sql, tuple(parameters))
        self.description = cursor.description
        self.lastrowid = cursor.lastrowid
        if cursor.description is not None:
            self._rows = self._fetch(FIRST_ROWS)
        # After the rows: a statement with RETURNING counts while it gives them.
        self.rowcount = cursor.rowcount
        if self._is_exhausted:
            self._end()

    def _run_many(self, sql: str, parameters: Iterable[Sequence[Any]]) -> None:
        cursor = self._begin()
        cursor.executemany(sql, parameters)
        self.description = None
        self.lastrowid = cursor.lastrowid
        self.rowcount = cursor.rowcount
        self._end()

    def _begin(self) -> sqlite3.Cursor:
        self._end()
        self._rows = []
        self._is_exhausted = True
        self._open = self._connection._conn.cursor()  # noqa: SLF001 as above
        return self._open

    def _fetch(self, most: int | None) -> list[Row]:
        assert self._open is not None
        rows: list[Row] = self._open.fetchall() if most is None else self._open.fetchmany(most)
        self._is_exhausted = most is None or len(rows) < most
        return rows

    def _end(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None
