"""`hailbus db upgrade`: the DDL gives the tables that the code reads, and production never creates any by itself."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hailbus import ConfigurationError, Event, Inbox, Outbox, ParkingLot, Service, Topic
from hailbus.database import CREATE_TABLES, create_engine, ensure_tables, table_metadata
from hailbus.idempotency import AnswerBook
from hailbus.inbox import inbox_table
from hailbus.migrations import STEPS, pending, statements, upgrade
from hailbus.outbox import outbox_table
from hailbus.sync import SyncInbox, SyncOutbox
from hailbus.sync import create_engine as create_sync_engine
from hailbus.testing import MemoryBus
from sqlalchemy import Engine, inspect, text
from sqlalchemy.exc import SQLAlchemyError


class OrderPlaced(Event, topic=Topic("orders.v1"), key="order_id", type="order.placed"):
    order_id: str


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    found = create_sync_engine(database_url)
    yield found
    found.dispose()


def shape(engine: Engine) -> dict[str, Any]:
    """All that a database says of its tables, but those that count versions."""
    found = inspect(engine)
    return {
        name: (
            [(c["name"], str(c["type"]), c["nullable"]) for c in found.get_columns(name)],
            found.get_pk_constraint(name)["constrained_columns"],
            sorted(tuple(c["column_names"]) for c in found.get_unique_constraints(name)),
            sorted(
                (
                    i["name"],
                    tuple(i["column_names"]),
                    bool(i["unique"]),
                    sorted((k, str(v)) for k, v in i.get("dialect_options", {}).items()),
                )
                for i in found.get_indexes(name)
                if not i.get("duplicates_constraint")
            ),
        )
        for name in sorted(found.get_table_names())
        if name.startswith("hailbus_") and name != "hailbus_versions"
    }


def hailbus(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("hailbus"), "db", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def drop_all(engine: Engine) -> None:
    with engine.begin() as connection:
        for name in inspect(connection).get_table_names():
            connection.execute(text(f"DROP TABLE {name}"))


def test_the_ddl_gives_the_tables_of_the_code(engine: Engine) -> None:
    with engine.begin() as connection:
        assert [step.version for step in upgrade(connection)] == [step.version for step in STEPS]
        assert upgrade(connection) == []
    migrated = shape(engine)
    drop_all(engine)
    table_metadata().create_all(engine)
    assert migrated == shape(engine)
    assert set(migrated) == set(table_metadata().tables)


def test_tables_that_a_service_created_are_upgraded_without_harm(engine: Engine) -> None:
    SyncOutbox(engine).create_tables()
    SyncInbox(engine, consumer="x").create_tables()
    before = shape(engine)
    with engine.begin() as connection:
        assert len(upgrade(connection)) == len(STEPS)
    after = shape(engine)
    assert {name: after[name] for name in before} == before


def test_the_command_prints_applies_and_tells_the_version(engine: Engine, database_url: str) -> None:
    before = hailbus("status", "--database", database_url)
    assert (before.returncode, before.stdout) == (1, "version 0: missing 1, 2; run `hailbus db upgrade`\n")
    printed = hailbus("upgrade", "--database", database_url, "--sql")
    assert printed.returncode == 0, printed.stderr
    with engine.begin() as connection:
        for statement in printed.stdout.split(";"):
            lines = [line for line in statement.splitlines() if not line.startswith("--")]
            if any(line.strip() for line in lines):
                connection.exec_driver_sql("\n".join(lines).replace("%", "%%"))
    assert hailbus("status", "--database", database_url).stdout == f"version {len(STEPS)}: up to date\n"
    by_hand = shape(engine)
    drop_all(engine)
    applied = hailbus("upgrade", "--database", database_url)
    assert applied.stdout.startswith("applied 1: outbox"), applied.stderr
    assert shape(engine) == by_hand
    again = hailbus("upgrade", "--database", database_url, "--json")
    assert again.stdout == f'{{"applied": [], "version": {len(STEPS)}}}\n'


def test_a_database_of_a_newer_hailbus_is_left_alone(engine: Engine) -> None:
    with engine.begin() as connection:
        upgrade(connection)
        connection.execute(text("INSERT INTO hailbus_versions VALUES (99, 'from the future', 0)"))
    with engine.begin() as connection, pytest.raises(ConfigurationError, match="has version 99"):
        upgrade(connection)
    assert pending(0) == list(STEPS)
    with pytest.raises(ConfigurationError, match="'mysql' is not supported"):
        statements("mysql")


# ------------------------------------------------------------------------------------------------ never silently


async def test_a_service_refuses_to_start_without_tables_where_it_may_not_create_them(database_url: str) -> None:
    engine = create_engine(database_url, create_tables=False)
    svc = Service("shop")
    svc.publishes(OrderPlaced)
    svc.relays(Outbox(engine))
    for tables in (Outbox(engine), Inbox(engine, "x"), ParkingLot(engine), AnswerBook(engine)):
        with pytest.raises(ConfigurationError, match=r"has no table hailbus_.*hailbus db upgrade"):
            await tables.create_tables()
    with pytest.raises(ConfigurationError, match="has no table hailbus_outbox"):
        await svc.start(MemoryBus())
    async with engine.begin() as connection:
        assert await connection.run_sync(lambda c: inspect(c).get_table_names()) == []
        await connection.run_sync(upgrade)
    async with svc.running(MemoryBus()):
        assert svc.is_running
    await engine.dispose()


async def test_the_environment_decides_where_the_engine_does_not(
    database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = create_engine(database_url)
    monkeypatch.setenv(CREATE_TABLES, "never")
    with pytest.raises(ConfigurationError, match="tables are not created at start here"):
        await Outbox(engine).create_tables()
    monkeypatch.setenv(CREATE_TABLES, "nope")
    with pytest.raises(ConfigurationError, match="'nope' is neither 'auto' nor 'never'"):
        await Outbox(engine).create_tables()
    monkeypatch.setenv(CREATE_TABLES, "auto")
    with caplog.at_level("INFO", logger="hailbus.database"):
        await Outbox(engine).create_tables()
        await Outbox(engine).create_tables()
    assert [r.message for r in caplog.records if "tables_created" in r.message] == [caplog.records[0].message]
    assert "hailbus_outbox" in caplog.records[0].message
    await engine.dispose()


async def test_a_table_of_an_older_version_is_named(database_url: str) -> None:
    engine = create_engine(database_url)
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE hailbus_inbox (consumer VARCHAR(10))"))
    with pytest.raises(ConfigurationError, match=r"hailbus_inbox has no column source, event_id.*hailbus db upgrade"):
        await ensure_tables(engine, inbox_table, outbox_table)
    await engine.dispose()


def test_processes_that_start_together_create_the_tables_once(engine: Engine) -> None:
    errors: list[SQLAlchemyError] = []
    barrier = threading.Barrier(8)

    def start() -> None:
        own = create_sync_engine(engine.url.render_as_string(hide_password=False))
        barrier.wait()
        try:
            SyncOutbox(own).create_tables()
        except SQLAlchemyError as error:
            errors.append(error)
        own.dispose()

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
