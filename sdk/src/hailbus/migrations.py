"""The tables of hailbus as versioned DDL, for `hailbus db upgrade` and for those who run their own migrations.

A published step never changes: a new version of a table is a new step. Steps can be run again without harm, and on a
database whose tables were created at the start of a service.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hailbus._extras import extra

with extra("sql"):
    from sqlalchemy import Connection, inspect, text

from hailbus.clock import Clock, micros, utc_now
from hailbus.errors import ConfigurationError

__all__ = ["STEPS", "Migration", "pending", "statements", "upgrade", "version_of"]

LOCK: Final = 0x6861_696C_6275_7302
"""The advisory lock of PostgreSQL under which a database is upgraded."""

VERSIONS = """
CREATE TABLE IF NOT EXISTS hailbus_versions (
    version INTEGER NOT NULL PRIMARY KEY,
    description VARCHAR(255) NOT NULL,
    applied_at BIGINT NOT NULL
);
"""
TYPES = {
    "sqlite": {"POSITION": "INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT", "BYTES": "BLOB", "INBOX": " WITHOUT ROWID"},
    "postgresql": {"POSITION": "BIGSERIAL NOT NULL PRIMARY KEY", "BYTES": "BYTEA", "INBOX": ""},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One step: its number, what it does, and its statements for both databases."""

    version: int
    description: str
    ddl: str


STEPS: Final = (
    Migration(
        version=1,
        description="outbox, inbox, parked keys and idempotency keys",
        ddl="""
CREATE TABLE IF NOT EXISTS hailbus_outbox (
    position {POSITION},
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
    UNIQUE (id)
);
CREATE INDEX IF NOT EXISTS hailbus_outbox_waiting ON hailbus_outbox (position)
    WHERE published_at IS NULL AND cancelled_at IS NULL AND failed_at IS NULL;
CREATE INDEX IF NOT EXISTS hailbus_outbox_schedule ON hailbus_outbox (schedule_id);
CREATE TABLE IF NOT EXISTS hailbus_inbox (
    consumer VARCHAR(249) NOT NULL,
    source VARCHAR(255) NOT NULL,
    event_id VARCHAR(255) NOT NULL,
    topic VARCHAR(249) NOT NULL,
    partition INTEGER NOT NULL,
    offset_ BIGINT NOT NULL,
    seen_count INTEGER NOT NULL,
    applied_at BIGINT NOT NULL,
    PRIMARY KEY (consumer, source, event_id)
){INBOX};
CREATE INDEX IF NOT EXISTS hailbus_inbox_applied ON hailbus_inbox (consumer, applied_at);
CREATE TABLE IF NOT EXISTS hailbus_parked (
    position {POSITION},
    consumer VARCHAR(249) NOT NULL,
    topic VARCHAR(249) NOT NULL,
    partition INTEGER NOT NULL,
    offset_ BIGINT NOT NULL,
    record_timestamp BIGINT NOT NULL,
    key {BYTES} NOT NULL,
    value {BYTES},
    headers TEXT NOT NULL,
    reason TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    parked_at BIGINT NOT NULL,
    released_at BIGINT
);
CREATE INDEX IF NOT EXISTS hailbus_parked_key ON hailbus_parked (consumer, topic, partition, key, position);
CREATE UNIQUE INDEX IF NOT EXISTS hailbus_parked_once ON hailbus_parked (consumer, topic, partition, offset_);
CREATE TABLE IF NOT EXISTS hailbus_answers (
    key VARCHAR(128) NOT NULL PRIMARY KEY,
    fingerprint VARCHAR(64) NOT NULL,
    status SMALLINT NOT NULL,
    body {BYTES} NOT NULL,
    recorded_at BIGINT NOT NULL
);
CREATE INDEX IF NOT EXISTS hailbus_answers_age ON hailbus_answers (recorded_at);
""",
    ),
    Migration(
        version=2,
        description="numbers of events that were applied in sequence",
        ddl="""
CREATE TABLE IF NOT EXISTS hailbus_sequences (
    consumer VARCHAR(249) NOT NULL,
    topic VARCHAR(249) NOT NULL,
    key {BYTES} NOT NULL,
    last_number BIGINT,
    accepts_gap BOOLEAN NOT NULL,
    changed_at BIGINT NOT NULL,
    PRIMARY KEY (consumer, topic, key)
){INBOX};
CREATE INDEX IF NOT EXISTS hailbus_sequences_changed ON hailbus_sequences (consumer, changed_at);
""",
    ),
)


def statements(dialect: str, step: Migration | None = None) -> list[str]:
    """Return the statements of a step, or of the table of versions.

    Raises:
        ConfigurationError: The database is neither `sqlite` nor `postgresql`.
    """
    if dialect not in TYPES:
        message = f"database {dialect!r} is not supported; use sqlite or postgresql"
        raise ConfigurationError(message)
    text_ = VERSIONS if step is None else step.ddl.format(**TYPES[dialect])
    return [part.strip() for part in text_.split(";") if part.strip()]


def version_of(connection: Connection) -> int:
    """Return the version of a database: that of the last step which was applied, 0 for none."""
    if not inspect(connection).has_table("hailbus_versions"):
        return 0
    return int(connection.scalar(text("SELECT max(version) FROM hailbus_versions")) or 0)


def pending(version: int) -> list[Migration]:
    """Return the steps that lead from a version to the newest.

    Raises:
        ConfigurationError: A newer hailbus has upgraded the database.
    """
    newest = STEPS[-1].version
    if version > newest:
        message = f"the database has version {version}, and this hailbus knows {newest}; upgrade hailbus"
        raise ConfigurationError(message)
    return [step for step in STEPS if step.version > version]


def upgrade(connection: Connection, *, clock: Clock = utc_now) -> list[Migration]:
    """Apply what is missing, inside the caller's transaction; the steps that were applied."""
    dialect = connection.dialect.name
    if dialect == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_xact_lock({LOCK})"))
    for statement in statements(dialect):
        connection.exec_driver_sql(statement)
    steps = pending(version_of(connection))
    for step in steps:
        for statement in statements(dialect, step):
            connection.exec_driver_sql(statement)
        connection.execute(
            text("INSERT INTO hailbus_versions (version, description, applied_at) VALUES (:version, :said, :at)"),
            {"version": step.version, "said": step.description, "at": micros(clock())},
        )
    return steps
