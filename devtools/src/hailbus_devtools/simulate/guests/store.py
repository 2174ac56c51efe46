"""A database of the simulated world: SQLite in memory behind an asynchronous driver, for SQLAlchemy's engines.

It survives the processes that use it. What was committed stays; what was not is rolled back when its process dies.
Transactions run one after the other. Each call takes virtual time, and may fail, as with a server across a network.
"""

from __future__ import annotations

import asyncio
import sqlite3
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Self

from hailbus.database import set_up_sqlite
from hailbus_broker.testing.simulation.process import CURRENT_PROCESS
from sqlalchemy.ext.asyncio import create_async_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence
    from types import TracebackType

    from hailbus_broker.testing.simulation.process import SimulatedProcess
    from hailbus_broker.testing.simulation.world import World
    from sqlalchemy.ext.asyncio import AsyncEngine

MAX_DELAY_S: Final = 0.012
"""The longest that a request or its answer takes."""
AWAY: Final = "no active connection: the database is away"
"""SQLAlchemy recognises a lost connection by these words."""


class Store:
    """One database.

    Args:
        world: Where it is.
        name: For its random numbers.
        note: Counts what a campaign wants to have seen.

    Attributes:
        is_away: Nobody reaches it; open transactions are rolled back.
        refused_share: The share of commits that it refuses.
        silent_share: The share of commits whose answer is lost; half of them have happened.
        is_over: The world ends: deaths of processes count no longer.
    """

    def __init__(self, world: World, name: str, note: Callable[[str], None]) -> None:
        self.is_away = False
        self.refused_share = 0.0
        self.silent_share = 0.0
        self.is_over = False
        self.note: Final = note
        self.rng: Final = world.rng(f"store/{name}")
        self._raw: Final = sqlite3.connect(":memory:", isolation_level=None)
        weakref.finalize(self, self._raw.close)  # simulated processes end without closing anything
        self._holder: StoreConnection | None = None
        self._waiting: Final[deque[tuple[StoreConnection, asyncio.Future[None]]]] = deque()

    def engine(self) -> AsyncEngine:
        """Make an engine for the process that calls."""
        engine = create_async_engine("sqlite+aiosqlite:///store", async_creator=lambda: StoreConnection(self))
        set_up_sqlite(engine.sync_engine, busy_timeout_ms=0, synchronous="FULL")
        return engine

    def rows(self, sql: str) -> list[tuple[Any, ...]] | None:
        """Return what a query finds in what is committed; None while a transaction is open."""
        return None if self._raw.in_transaction else self._raw.execute(sql).fetchall()

    def create(self, sql: str) -> None:
        """Create a table before anything happens."""
        self._raw.execute(sql)

    # ------------------------------------------------------------------ for connections

    async def delay(self) -> None:
        """Let a request, or its answer, travel."""
        await asyncio.sleep(self.rng.uniform(0.0, MAX_DELAY_S))

    async def hold(self, connection: StoreConnection) -> None:
        """Wait until no other connection has a transaction."""
        if self._holder is None:
            self._holder = connection
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((connection, turn))
        try:
            await turn
        except asyncio.CancelledError:
            self.release(connection)
            raise

    def release(self, connection: StoreConnection) -> None:
        """End what a connection has open, and let the next one begin."""
        if self._holder is not connection:
            return
        if self._raw.in_transaction:
            self._raw.execute("ROLLBACK")
        self._holder = None
        while self._waiting:
            following, turn = self._waiting.popleft()
            if following.process.is_alive and not turn.done():
                self._holder = following
                turn.set_result(None)
                return

    def execute(self, sql: str, parameters: Any, *, is_many: bool) -> sqlite3.Cursor:
        """Run a statement."""
        return self._raw.executemany(sql, parameters) if is_many else self._raw.execute(sql, parameters)

    def commit(self) -> None:
        """Keep what the open transaction has done."""
        if self._raw.in_transaction:
            self._raw.execute("COMMIT")


class StoreConnection:
    """A connection, as SQLAlchemy's adapter for aiosqlite uses it."""

    def __init__(self, store: Store) -> None:
        self.process: Final[SimulatedProcess] = CURRENT_PROCESS.get()
        self.isolation_level: str | None = None
        self._store: Final = store
        self._connection: StoreConnection | None = self  # None once it is closed
        self._has_written = False
        self._has_published = False
        self._is_begun = False
        self._conn: Final = self
        self._tx: Final = self
        self.process.when_killed.append(self._killed)

    def __await__(self) -> Generator[Any, None, Self]:
        return self._open().__await__()

    async def _open(self) -> Self:
        await self._store.delay()
        self._check()
        return self

    def put_nowait(self, step: tuple[asyncio.Future[None], Callable[[], object]]) -> None:
        """Do what aiosqlite does in its thread: the adapter sets the isolation level so."""
        future, function = step
        function()
        future.set_result(None)

    async def create_function(self, *_arguments: Any, **_options: Any) -> None:
        """Nobody uses regular expressions here."""

    def _killed(self) -> None:
        """Roll back: the process is dead."""
        if self._is_begun and self._has_written and not self._store.is_over:
            self._store.note("service killed in a transaction of its store")
            if self._has_published:
                self._store.note("service killed between handler and commit")
        self._store.release(self)
        self._connection = None

    def _check(self) -> None:
        if self._connection is None or self._store.is_away:
            self._lose()
            raise sqlite3.OperationalError(AWAY)

    def _lose(self) -> None:
        self._connection = None
        self._end()

    def _end(self) -> None:
        self._is_begun = self._has_written = self._has_published = False
        self._store.release(self)

    async def run(self, sql: str, parameters: Any, *, is_many: bool) -> Result:
        """Run a statement; the first word says whether it begins a transaction."""
        store = self._store
        if sql.startswith("PRAGMA") and not self._is_begun:
            return Result()
        await store.delay()
        self._check()
        if sql.startswith("BEGIN"):
            await store.hold(self)
            self._is_begun = True
            self._check()
            store.execute(sql, (), is_many=False)
            return Result()
        if not self._is_begun:
            await store.hold(self)
        try:
            cursor = store.execute(sql, parameters, is_many=is_many)
            found = Result(cursor)
        finally:
            if not self._is_begun:
                store.release(self)
        if not sql.lstrip().startswith("SELECT"):
            self._has_written = True
            self._has_published = "INSERT INTO hailbus_outbox" in sql
        await store.delay()
        self._check()
        return found

    def cursor(self) -> StoreCursor:
        """Make a cursor."""
        return StoreCursor(self)

    async def commit(self) -> None:
        """Commit, if the store lets it."""
        store, rng = self._store, self._store.rng
        if not self._is_begun:
            return
        await store.delay()
        self._check()
        if self._has_written and rng.random() < store.refused_share:
            store.note("store commit refused")
            self._end()
            raise sqlite3.OperationalError("disk I/O error")
        is_silent = self._has_written and rng.random() < store.silent_share
        if is_silent and rng.random() < 0.5:
            store.note("store commit of unknown outcome")
            self._lose()
            raise sqlite3.OperationalError(AWAY)
        store.commit()
        self._end()
        await store.delay()
        if is_silent:
            store.note("store commit of unknown outcome")
            self._lose()
            raise sqlite3.OperationalError(AWAY)

    async def rollback(self) -> None:
        """Undo what is open."""
        self._end()

    async def close(self) -> None:
        """Close the connection, with what is open."""
        self._lose()

    def stop(self) -> None:
        """Close it without an event loop."""
        self._lose()


class Result:
    """What a statement has found, all of it."""

    def __init__(self, cursor: sqlite3.Cursor | None = None) -> None:
        self.rows: Final[list[tuple[Any, ...]]] = [] if cursor is None else cursor.fetchall()
        self.description: Final[Any] = None if cursor is None else cursor.description
        self.rowcount: Final = -1 if cursor is None else cursor.rowcount
        self.lastrowid: Final = None if cursor is None else cursor.lastrowid


class StoreCursor:
    """What SQLAlchemy's adapter uses of a cursor."""

    arraysize = 1

    def __init__(self, connection: StoreConnection) -> None:
        self._connection: Final = connection
        self._result = Result()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return

    @property
    def description(self) -> Any:
        """The columns, as the DB-API has them."""
        return self._result.description

    @property
    def rowcount(self) -> int:
        """How many rows were changed."""
        return self._result.rowcount

    @property
    def lastrowid(self) -> int | None:
        """The id of the row that was inserted last."""
        return self._result.lastrowid

    async def execute(self, sql: str, parameters: Iterable[Any] = ()) -> Self:
        """Run a statement."""
        self._result = await self._connection.run(sql, tuple(parameters), is_many=False)
        return self

    async def executemany(self, sql: str, parameters: Sequence[Any]) -> Self:
        """Run a statement for each set of parameters."""
        self._result = await self._connection.run(sql, parameters, is_many=True)
        return self

    async def fetchall(self) -> list[tuple[Any, ...]]:
        """Return the rows."""
        return self._result.rows

    async def close(self) -> None:
        """There is nothing to close."""
