"""Database engines with settings that stand concurrent use: SQLite by default, PostgreSQL by URL."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from hailbus._extras import extra

with extra("sql"):
    from sqlalchemy import event
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError
    from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from hailbus._sqlite import SqliteConnection
from hailbus.errors import ConfigurationError

__all__ = ["READ_ONLY", "create_engine"]

READ_ONLY = {"hailbus_read_only": True}
"""Execution options for a connection that only reads: on SQLite its transaction does not take the write lock."""


def create_engine(
    url: str, *, busy_timeout_ms: int = 10_000, synchronous: str = "NORMAL", **options: Any
) -> AsyncEngine:
    """An async engine.

    SQLite gets WAL (readers never wait for the writer), a busy timeout, and transactions that take the write lock at
    their beginning: a transaction that reads first and writes later would otherwise fail at once with "database is
    locked", whatever the timeout. Missing parent directories are made.

    Args:
        url: `sqlite:///path`, `sqlite+aiosqlite:///path`, `postgresql://…` or `postgresql+asyncpg://…`.
        busy_timeout_ms: How long a SQLite writer waits for another.
        synchronous: SQLite's pragma. NORMAL survives a killed process; FULL survives a power cut as well.
        options: Handed to SQLAlchemy's `create_async_engine`.

    Raises:
        ConfigurationError: The URL is no URL, of another database, or its directory cannot be made.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        message = f"{url!r} is no database URL; give one like 'sqlite:///data/service.db'"
        raise ConfigurationError(message) from error
    backend = parsed.get_backend_name()
    if backend == "postgresql":
        try:
            return create_async_engine(parsed.set(drivername="postgresql+asyncpg"), **options)
        except ModuleNotFoundError as error:
            if error.name != "asyncpg":
                raise
            message = "a postgresql:// URL needs the driver asyncpg; install it: pip install 'hailbus[postgres]'"
            raise ConfigurationError(message) from error
    if backend != "sqlite":
        message = f"database {backend!r} is not supported; use sqlite or postgresql"
        raise ConfigurationError(message)
    database = parsed.database
    if database and database != ":memory:":
        folder = Path(database).parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"the directory {folder} for the database cannot be made: {error.strerror}"
            raise ConfigurationError(message) from error
    parsed = parsed.set(drivername="sqlite+aiosqlite")
    connect_args: tuple[Any, Any] = parsed.get_dialect()().create_connect_args(
        parsed
    )  # Any: as sqlite3.connect has them
    arguments, more = connect_args

    def connect() -> SqliteConnection:
        return SqliteConnection(lambda: sqlite3.connect(*arguments, **more))

    # SQLAlchemy awaits what it gets, and a connection is its own awaitable.
    engine = create_async_engine(parsed, async_creator=connect, **options)

    @event.listens_for(engine.sync_engine, "connect")
    def _on_connect(connection: Any, _record: Any) -> None:  # Any: SQLAlchemy's adapted driver connection
        connection.isolation_level = None  # the driver must not begin transactions behind our back
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute(f"PRAGMA busy_timeout={int(busy_timeout_ms)}")
        cursor.execute(f"PRAGMA synchronous={'FULL' if synchronous.upper() == 'FULL' else 'NORMAL'}")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def _on_begin(connection: Any) -> None:  # Any: a sync Connection
        read_only = connection.get_execution_options().get("hailbus_read_only", False)
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")

    return engine
