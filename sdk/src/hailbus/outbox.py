"""The outbox: events stored in the same database transaction as the state they tell of, published afterwards.

The table can be read by Debezium's outbox event router (`id`, `aggregatetype`, `aggregateid`, `type`, `payload`).
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    bindparam,
    delete,
    event,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

from hailbus._transport import Outgoing, Producer
from hailbus.clock import Clock, utc_now
from hailbus.database import READ_ONLY
from hailbus.envelope import Headers
from hailbus.errors import ConfigurationError, DeliveryError
from hailbus.partitioner import Partitioner

__all__ = ["Outbox", "outbox_table"]

log = logging.getLogger("hailbus.outbox")

metadata = MetaData()
# Times are microseconds since the epoch: both databases compare them alike, and SQLite keeps no time zones.
outbox_table = Table(
    "hailbus_outbox",
    metadata,
    Column("position", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("id", String(255), nullable=False, unique=True),
    Column("aggregatetype", String(249), nullable=False),
    Column("aggregateid", Text),
    Column("type", String(255), nullable=False),
    Column("payload", Text),
    Column("headers", Text, nullable=False),
    Column("partition", Integer),
    Column("created_at", BigInteger, nullable=False),
    Column("not_before", BigInteger),
    Column("schedule_id", String(255)),
    Column("published_at", BigInteger),
    Column("cancelled_at", BigInteger),
    Column("published_partition", Integer),
    Column("published_offset", BigInteger),
    Column("failed_at", BigInteger),
    Column("error", Text),
    sqlite_autoincrement=True,
)
_waiting = (
    outbox_table.c.published_at.is_(None) & outbox_table.c.cancelled_at.is_(None) & outbox_table.c.failed_at.is_(None)
)
Index("hailbus_outbox_waiting", outbox_table.c.position, sqlite_where=_waiting, postgresql_where=_waiting)
Index("hailbus_outbox_schedule", outbox_table.c.schedule_id)


def _micros(moment: datetime) -> int:
    return (moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxRow:
    """An event to store; see the table's columns."""

    topic: str
    key: bytes | None
    type: str
    id: str
    value: bytes
    headers: Headers
    partition: int | None
    not_before: datetime | None
    schedule_id: str | None
    created_at: datetime


async def store(tx: AsyncSession | AsyncConnection, rows: Sequence[OutboxRow], *, outbox: Outbox | None) -> None:
    """Insert rows in the caller's transaction; wake this process's relay after its commit."""
    values = [
        {
            "id": row.id,
            "aggregatetype": row.topic,
            "aggregateid": row.key.decode() if row.key is not None else None,
            "type": row.type,
            "payload": row.value.decode(),
            "headers": _headers_text(row.headers),
            "partition": row.partition,
            "created_at": _micros(row.created_at),
            "not_before": _micros(row.not_before) if row.not_before is not None else None,
            "schedule_id": row.schedule_id,
        }
        for row in rows
    ]
    connection = await tx.connection() if isinstance(tx, AsyncSession) else tx
    await connection.execute(insert(outbox_table), values)
    if outbox is not None:
        _wake_after_commit(tx, outbox)


def _wake_after_commit(tx: AsyncSession | AsyncConnection, outbox: Outbox) -> None:
    if isinstance(tx, AsyncSession):
        session = tx.sync_session
        if not session.info.get("hailbus_wakes"):
            session.info["hailbus_wakes"] = True

            @event.listens_for(session, "after_commit")
            def _committed(_session: Any) -> None:  # Any: a sync Session
                outbox.wake()

        return
    # A bare connection tells of its commit only before it happens: look again shortly after.
    outbox.wake_soon()


def _headers_text(headers: Headers) -> str:
    """Headers as JSON pairs; a value that is no UTF-8 becomes an object with base64."""
    pairs: list[list[Any]] = []
    for name, value in headers:
        try:
            pairs.append([name, value.decode()])
        except UnicodeDecodeError:
            pairs.append([name, {"base64": base64.b64encode(value).decode()}])
    return json.dumps(pairs, separators=(",", ":"))


def _headers_of(text: str) -> Headers:
    return [
        (name, value.encode() if isinstance(value, str) else base64.b64decode(value["base64"]))
        for name, value in json.loads(text)
    ]


class Outbox:
    """The outbox table of one database, and the relay that publishes its rows.

    The relay publishes rows of one key in the order of their insertion, retries for ever with back-off while broker or
    database are away, and marks rows after the acknowledgement: a crash in between publishes some of them again, with
    the same event ids. Rows stay until `prune`.

    Args:
        engine: Made by `hailbus.database.create_engine`.
        clock: Decides when `not_before` has come; after moving it by hand call `wake()`.
        batch_records: Rows per round.
        poll_interval: How soon rows of other processes are seen; own commits wake the relay at once.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        clock: Clock = utc_now,
        *,
        batch_records: int = 1_000,
        poll_interval: timedelta = timedelta(milliseconds=200),
    ) -> None:
        self.engine = engine
        self._clock = clock
        self._batch_records = batch_records
        self._poll_interval_s = poll_interval.total_seconds()
        self._woken = asyncio.Event()
        self.turn = asyncio.Lock()
        """Held by the relay while it writes to SQLite. A service that writes much takes it too: two writers of one
        process would otherwise wait for each other in SQLite's busy handler, asleep for up to 100 ms."""
        self.published_count = 0
        """Rows that this relay has published since it began."""

    async def create_tables(self) -> None:
        """Create table and indexes where they are missing."""
        async with self.engine.begin() as connection:
            await connection.run_sync(_create)

    def wake(self) -> None:
        """Look for rows now."""
        self._woken.set()

    def wake_soon(self) -> None:
        """Look for rows in a few milliseconds, and once more a little later."""
        loop = asyncio.get_running_loop()
        loop.call_later(0.005, self._woken.set)
        loop.call_later(0.03, self._woken.set)

    async def cancel(self, tx: AsyncSession | AsyncConnection, schedule_id: str) -> int:
        """Withdraw the unpublished rows of a schedule, in the caller's transaction; how many there were."""
        result = await tx.execute(
            update(outbox_table)
            .where(outbox_table.c.schedule_id == schedule_id, _waiting)
            .values(cancelled_at=_micros(self._clock()))
        )
        return int(result.rowcount)  # type: ignore[attr-defined]  # typed as Result, is a CursorResult for an update

    async def waiting_count(self) -> int:
        """Rows that are neither published nor cancelled nor failed, those with a future `not_before` included."""
        async with self.engine.connect() as connection:
            await connection.execution_options(**READ_ONLY)
            found = await connection.scalar(select(func.count()).select_from(outbox_table).where(_waiting))
        return int(found or 0)

    async def due_count(self) -> int:
        """Rows that should be published now."""
        async with self.engine.connect() as connection:
            await connection.execution_options(**READ_ONLY)
            found = await connection.scalar(select(func.count()).select_from(outbox_table).where(_waiting, self._due()))
        return int(found or 0)

    async def prune(self, keep: timedelta) -> int:
        """Delete rows that were published or cancelled longer ago than this; how many."""
        before = _micros(self._clock() - keep)
        async with self.engine.begin() as connection:
            result = await connection.execute(
                delete(outbox_table).where(
                    (outbox_table.c.published_at < before) | (outbox_table.c.cancelled_at < before)
                )
            )
        return int(result.rowcount)

    def _due(self) -> Any:  # Any: a SQLAlchemy expression
        return outbox_table.c.not_before.is_(None) | (outbox_table.c.not_before <= _micros(self._clock()))

    # -------------------------------------------------------------------------------------------- relay

    async def relay(self, producer: Producer, partitioner: Partitioner) -> None:
        """Publish rows until cancelled."""
        delay_s = 0.1
        while True:
            self._woken.clear()
            try:
                published = await self.relay_once(producer, partitioner)
            except (SQLAlchemyError, DeliveryError, ConfigurationError, OSError, TimeoutError) as error:
                log.warning("relay_failed: %s, trying again in %.1f s", error, delay_s)
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, 15.0)
                continue
            delay_s = 0.1
            if published < self._batch_records:
                try:
                    async with asyncio.timeout(self._poll_interval_s):
                        await self._woken.wait()
                except TimeoutError:
                    pass

    async def relay_once(self, producer: Producer, partitioner: Partitioner) -> int:
        """Publish one round of due rows; how many rows it looked at.

        Raises:
            DeliveryError: Some were not acknowledged; those that were are marked.
        """
        if self.engine.dialect.name == "postgresql":
            async with self.engine.begin() as connection:
                rows = await self._claim(connection)
                return await self._publish(connection, rows, producer, partitioner)
        async with self.engine.connect() as connection:
            await connection.execution_options(**READ_ONLY)
            rows = (await connection.execute(self._select())).all()
        if not rows:
            return 0
        return await self._publish(None, rows, producer, partitioner)

    def _select(self) -> Any:  # Any: a SQLAlchemy statement
        c = outbox_table.c
        return (
            select(c.position, c.aggregatetype, c.aggregateid, c.payload, c.headers, c.partition)
            .where(_waiting, self._due())
            .order_by(c.position)
            .limit(self._batch_records)
        )

    async def _claim(self, connection: AsyncConnection) -> Sequence[Any]:
        """Rows locked for this relay; not those of a key of which another relay holds an earlier row."""
        rows = (await connection.execute(self._select().with_for_update(skip_locked=True))).all()
        if not rows:
            return rows
        c = outbox_table.c
        first: dict[tuple[str, str | None], int] = {}
        for row in rows:
            first.setdefault((row.aggregatetype, row.aggregateid), row.position)
        keys = sorted({key for _, key in first if key is not None})
        earliest = (
            await connection.execute(
                select(c.aggregatetype, c.aggregateid, func.min(c.position))
                .where(_waiting, self._due(), c.aggregateid.in_(keys))
                .group_by(c.aggregatetype, c.aggregateid)
            )
        ).all()
        blocked = {(topic, key) for topic, key, position in earliest if position < first.get((topic, key), position)}
        return [row for row in rows if (row.aggregatetype, row.aggregateid) not in blocked]

    async def _publish(
        self, connection: AsyncConnection | None, rows: Sequence[Any], producer: Producer, partitioner: Partitioner
    ) -> int:
        by_place: dict[tuple[str, int], list[Any]] = {}
        for row in rows:
            key = row.aggregateid.encode() if row.aggregateid is not None else None
            count = producer.known_partition_count(row.aggregatetype)
            if count is None:
                count = await producer.partition_count(row.aggregatetype)
            partition = row.partition if row.partition is not None else partitioner(row.aggregatetype, key, count)
            by_place.setdefault((row.aggregatetype, partition), []).append(row)
        outcomes = await asyncio.gather(*(self._send(producer, place, group) for place, group in by_place.items()))
        done: list[dict[str, int]] = [mark for marks, _, _ in outcomes for mark in marks]
        refused: list[tuple[int, str]] = [bad for _, bads, _ in outcomes for bad in bads]
        if done or refused:
            if connection is None:
                async with self.turn, self.engine.begin() as own:
                    await self._mark(own, done, refused)
            else:
                await self._mark(connection, done, refused)
        self.published_count += len(done)
        failures = [failure for _, _, failure in outcomes if failure is not None]
        if failures and connection is not None:
            await connection.commit()  # what was acknowledged stays marked
        if failures:
            raise failures[0]
        return len(rows)

    async def _send(
        self, producer: Producer, place: tuple[str, int], rows: Sequence[Any]
    ) -> tuple[list[dict[str, int]], list[tuple[int, str]], DeliveryError | None]:
        """Write the rows of one partition in order. Stops at what may be tried again; sets aside what never will go."""
        topic, partition = place
        marks: list[dict[str, int]] = []
        refused: list[tuple[int, str]] = []
        start = 0
        size = len(rows)
        while start < len(rows):
            group = rows[start : start + size]
            records: list[Outgoing] = [
                (
                    row.aggregateid.encode() if row.aggregateid is not None else None,
                    row.payload.encode() if row.payload is not None else None,
                    _headers_of(row.headers),
                )
                for row in group
            ]
            try:
                offsets = await producer.send(topic, partition, records)
            except DeliveryError as error:
                if error.retriable:
                    return marks, refused, error
                if len(group) > 1:
                    size = 1  # find the bad one
                    continue
                log.error("outbox_row_refused: position %d: %s", group[0].position, error)
                refused.append((group[0].position, str(error)))
            else:
                marks.extend(
                    {"b_position": row.position, "b_partition": partition, "b_offset": offset}
                    for row, offset in zip(group, offsets, strict=True)
                )
            start += len(group)
        return marks, refused, None

    async def _mark(
        self, connection: AsyncConnection, done: Sequence[Mapping[str, int]], refused: Sequence[tuple[int, str]]
    ) -> None:
        now = _micros(self._clock())
        if done:
            await connection.execute(
                update(outbox_table)
                .where(outbox_table.c.position == bindparam("b_position"))
                .values(
                    published_at=now,
                    published_partition=bindparam("b_partition"),
                    published_offset=bindparam("b_offset"),
                ),
                list(done),
            )
        for position, reason in refused:
            await connection.execute(
                update(outbox_table).where(outbox_table.c.position == position).values(failed_at=now, error=reason)
            )


def _create(connection: Connection) -> None:
    metadata.create_all(connection, checkfirst=True)
