"""Database engines with settings that stand concurrent use, and the tables that hailbus keeps in a database."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hailbus._extras import extra

with extra("sql"):
    from sqlalchemy import Connection, Engine, MetaData, Table, event, inspect, text
    from sqlalchemy.engine import URL, make_url
    from sqlalchemy.exc import ArgumentError
    from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from hailbus._sqlite import BEGIN_TO_WRITE, SqliteConnection, WriteTurns
from hailbus.errors import ConfigurationError

__all__ = ["CREATE_TABLES", "READ_ONLY", "create_engine", "ensure_tables", "metadata", "table_metadata"]

log = logging.getLogger("hailbus.database")

metadata = MetaData()
"""All tables of hailbus whose modules have been imported; `table_metadata` imports them all."""

CREATE_TABLES = "HAILBUS_CREATE_TABLES"
"""Environment variable: `auto`, the default, creates missing tables at start; `never` refuses to start without them."""

READ_ONLY = {"hailbus_read_only": True}
"""Execution options for a connection that only reads: on SQLite its transaction does not take the write lock."""


def create_engine(
    url: str,
    *,
    busy_timeout_ms: int = 10_000,
    synchronous: str = "NORMAL",
    create_tables: bool | None = None,
    **options: Any,
) -> AsyncEngine:
    """Make an async engine.

    SQLite gets WAL (readers never wait for the writer), a busy timeout, and transactions that take the write lock at
    their beginning: a transaction that reads first and writes later would otherwise fail at once with "database is
    locked", whatever the timeout. The writers of an engine take turns. Missing parent directories are made.

    Args:
        url: `sqlite:///path`, `sqlite+aiosqlite:///path`, `postgresql://…` or `postgresql+asyncpg://…`. On PostgreSQL
            `?search_path=SCHEMA` has tables found and created in that schema.
        busy_timeout_ms: How long a SQLite writer waits for those of this engine, and then for those of others.
        synchronous: SQLite's pragma. NORMAL survives a killed process; FULL survives a power cut as well.
        create_tables: Whether outbox, inbox and the others create their tables where they are missing. False refuses to
            start without them; None leaves it to the environment variable `HAILBUS_CREATE_TABLES`.
        options: Handed to SQLAlchemy's `create_async_engine`.

    Raises:
        ConfigurationError: The URL is no URL, of another database, its directory cannot be made, or its driver is not
            installed.
    """
    parsed = database_url(url)
    if create_tables is not None:
        options["execution_options"] = {**options.get("execution_options", {}), CREATE_OPTION: create_tables}
    if parsed.get_backend_name() == "postgresql":
        if (schema := parsed.query.get("search_path")) is not None:
            options["connect_args"] = {**options.get("connect_args", {}), "server_settings": {"search_path": schema}}
            parsed = parsed.difference_update_query(["search_path"])
        try:
            return create_async_engine(parsed.set(drivername="postgresql+asyncpg"), **options)
        except ModuleNotFoundError as error:
            if error.name != "asyncpg":
                raise
            message = "a postgresql:// URL needs the driver asyncpg; install it: pip install 'hailbus[postgres]'"
            raise ConfigurationError(message) from error
    parsed = parsed.set(drivername="sqlite+aiosqlite")
    connect_args: tuple[Any, Any] = parsed.get_dialect()().create_connect_args(
        parsed
    )  # Any: as sqlite3.connect has them
    arguments, more = connect_args

    turns = WriteTurns(wait_s=busy_timeout_ms / 1000)

    def connect() -> SqliteConnection:
        return SqliteConnection(lambda: sqlite3.connect(*arguments, **more), turns=turns)

    # SQLAlchemy awaits what it gets, and a connection is its own awaitable.
    engine = create_async_engine(parsed, async_creator=connect, **options)
    set_up_sqlite(engine.sync_engine, busy_timeout_ms=busy_timeout_ms, synchronous=synchronous)
    return engine


def database_url(url: str) -> URL:
    """Parse the URL of a database that hailbus supports; make the directory of a SQLite file.

    Raises:
        ConfigurationError: It is no URL, of another database, or the directory cannot be made.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        message = f"{url!r} is no database URL; give one like 'sqlite:///data/service.db'"
        raise ConfigurationError(message) from error
    backend = parsed.get_backend_name()
    if backend not in {"sqlite", "postgresql"}:
        message = f"database {backend!r} is not supported; use sqlite or postgresql"
        raise ConfigurationError(message)
    database = parsed.database
    if backend == "sqlite" and database and database != ":memory:":
        folder = Path(database).parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"the directory {folder} for the database cannot be made: {error.strerror}"
            raise ConfigurationError(message) from error
    return parsed


def set_up_sqlite(engine: Engine, *, busy_timeout_ms: int, synchronous: str) -> None:
    """Make the connections of a SQLite engine stand concurrent use; see `create_engine`."""

    @event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _record: Any) -> None:  # Any: the driver's connection, as SQLAlchemy adapts it
        connection.isolation_level = None  # the driver must not begin transactions behind our back
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute(f"PRAGMA busy_timeout={int(busy_timeout_ms)}")
        cursor.execute(f"PRAGMA synchronous={'FULL' if synchronous.upper() == 'FULL' else 'NORMAL'}")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Any) -> None:  # Any: a sync Connection
        read_only = connection.get_execution_options().get("hailbus_read_only", False)
        connection.exec_driver_sql("BEGIN" if read_only else BEGIN_TO_WRITE)


# ------------------------------------------------------------------------------------------------ tables

CREATE_OPTION = "hailbus_create_tables"
_LOCK = 0x6861_696C_6275_7301  # "hailbus" and 1: the advisory lock under which tables are created
TABLE_MODULES = ("hailbus.outbox", "hailbus.inbox", "hailbus.parking", "hailbus.idempotency", "hailbus.sequence")


def table_metadata() -> MetaData:
    """Return the metadata of all tables of hailbus.

    For Alembic: `target_metadata = [Base.metadata, table_metadata()]`.
    """
    from importlib import import_module

    for name in TABLE_MODULES:
        import_module(name)
    return metadata


async def ensure_tables(engine: AsyncEngine, *tables: Table) -> None:
    """Create missing tables, or raise if that is not allowed; see `create_engine(create_tables=...)`.

    Raises:
        ConfigurationError: A table or a column is missing, and may not or cannot be created here.
    """
    async with engine.connect() as connection:
        await connection.execution_options(**READ_ONLY)
        missing = await connection.run_sync(missing_tables, tables)
    if missing:
        refuse_or_announce(engine.sync_engine, missing)
        async with engine.begin() as connection:
            await connection.run_sync(create_missing, tables)


def ensure_tables_sync(engine: Engine, *tables: Table) -> None:
    """Do what `ensure_tables` does, by a synchronous engine."""
    with engine.connect() as connection:
        missing = missing_tables(connection.execution_options(**READ_ONLY), tables)
    if missing:
        refuse_or_announce(engine, missing)
        with engine.begin() as connection:
            create_missing(connection, tables)


def missing_tables(connection: Connection, tables: Sequence[Table]) -> list[str]:
    """Return the names of the tables that a database does not have.

    Raises:
        ConfigurationError: A table is there without one of its columns: it is of an older version.
    """
    found = inspect(connection)
    missing = []
    for table in tables:
        if not found.has_table(table.name):
            missing.append(table.name)
            continue
        columns = {column["name"] for column in found.get_columns(table.name)}
        if lacking := [column.name for column in table.columns if column.name not in columns]:
            message = (
                f"table {table.name} has no column {', '.join(lacking)}: it is of an older version of hailbus; run "
                "`hailbus db upgrade --database URL`"
            )
            raise ConfigurationError(message)
    return missing


def refuse_or_announce(engine: Engine, missing: Sequence[str]) -> None:
    """Say in the log that tables will be created, or refuse where that is not allowed.

    Raises:
        ConfigurationError: It is not allowed, or the setting is misspelt.
    """
    allowed = engine.get_execution_options().get(CREATE_OPTION)
    if allowed is None:
        said = os.environ.get(CREATE_TABLES, "auto")
        if said not in {"auto", "never"}:
            message = f"{CREATE_TABLES}={said!r} is neither 'auto' nor 'never'"
            raise ConfigurationError(message)
        allowed = said == "auto"
    where = engine.url.render_as_string(hide_password=True)
    if not allowed:
        message = (
            f"{where} has no table {', '.join(missing)}, and tables are not created at start here; run "
            "`hailbus db upgrade --database URL`"
        )
        raise ConfigurationError(message)
    log.info("tables_created: %s in %s; %s=never leaves it to migrations", ", ".join(missing), where, CREATE_TABLES)


def create_missing(connection: Connection, tables: Sequence[Table]) -> None:
    """Create those of the tables that are missing. Processes that start at the same time do so one after the other."""
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
    metadata.create_all(connection, tables=list(tables), checkfirst=True)
