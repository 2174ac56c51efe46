"""The tables of outbox and inbox, as existing databases hold them, and reads that wait for no writer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hailbus import Inbox, Outbox
from hailbus.database import create_engine
from hailbus.inbox import inbox_table
from hailbus.outbox import outbox_table
from sqlalchemy import Dialect, Table, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.schema import CreateIndex, CreateTable

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
BEGIN = "CREATE TABLE hailbus_outbox ("
OUTBOX = """
    id VARCHAR(255) NOT NULL,
    aggregatetype VARCHAR(249) NOT NULL,
    aggregateid TEXT,
    type VARCHAR(255) NOT NULL,
    payload TEXT,
    headers TEXT NOT NULL,
    partition INTEGER,
    created_at BIGINT NOT NULL,
    not_before BIGINT,
    schedule_id VARCHAR(255),
    published_at BIGINT,
    cancelled_at BIGINT,
    published_partition INTEGER,
    published_offset BIGINT,
    failed_at BIGINT,
    error TEXT,
"""
INBOX = """
CREATE TABLE hailbus_inbox (
    consumer VARCHAR(249) NOT NULL,
    source VARCHAR(255) NOT NULL,
    event_id VARCHAR(255) NOT NULL,
    topic VARCHAR(249) NOT NULL,
    partition INTEGER NOT NULL,
    offset_ BIGINT NOT NULL,
    seen_count INTEGER NOT NULL,
    applied_at BIGINT NOT NULL,
    PRIMARY KEY (consumer, source, event_id)
)
"""
WAITING = "WHERE published_at IS NULL AND cancelled_at IS NULL AND failed_at IS NULL"
OUTBOX_INDEXES = [
    "CREATE INDEX hailbus_outbox_schedule ON hailbus_outbox (schedule_id)",
    f"CREATE INDEX hailbus_outbox_waiting ON hailbus_outbox (position) {WAITING}",
]
INBOX_INDEXES = ["CREATE INDEX hailbus_inbox_applied ON hailbus_inbox (consumer, applied_at)"]


@pytest.mark.parametrize(
    ("table", "dialect", "columns", "indexes"),
    [
        (
            outbox_table,
            sqlite.dialect(),
            f"{BEGIN} position INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, {OUTBOX} UNIQUE (id) )",
            OUTBOX_INDEXES,
        ),
        (
            outbox_table,
            postgresql.dialect(),  # type: ignore[no-untyped-call]  # as SQLAlchemy has it
            f"{BEGIN} position BIGSERIAL NOT NULL, {OUTBOX} PRIMARY KEY (position), UNIQUE (id) )",
            OUTBOX_INDEXES,
        ),
        (inbox_table, sqlite.dialect(), f"{INBOX} WITHOUT ROWID", INBOX_INDEXES),
        (inbox_table, postgresql.dialect(), INBOX, INBOX_INDEXES),  # type: ignore[no-untyped-call]  # as above
    ],
    ids=["outbox-sqlite", "outbox-postgresql", "inbox-sqlite", "inbox-postgresql"],
)
def test_a_table_is_the_one_that_existing_databases_hold(
    table: Table, dialect: Dialect, columns: str, indexes: list[str]
) -> None:
    assert str(CreateTable(table).compile(dialect=dialect)).split() == columns.split()
    found = [str(CreateIndex(index).compile(dialect=dialect)) for index in table.indexes]
    assert sorted(found) == indexes


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    found = create_engine(f"sqlite:///{tmp_path}/till.db", busy_timeout_ms=200)
    yield found
    await found.dispose()


async def test_reads_wait_for_no_writer(engine: AsyncEngine) -> None:
    outbox, inbox = Outbox(engine, lambda: NOON), Inbox(engine, "till", clock=lambda: NOON)
    await outbox.create_tables()
    await inbox.create_tables()
    reads: list[Callable[[], Awaitable[object]]] = [outbox.waiting_count, outbox.due_count, outbox.lag, inbox.counts]
    async with engine.begin() as writer:
        await writer.execute(text("INSERT INTO hailbus_inbox VALUES ('till', '/x', 'e', 't', 0, 0, 1, 0)"))
        for read in reads:
            await read()
    assert await inbox.counts() == (1, 1)
