"""The outbox: events stored in the same database transaction as the state they tell of, published afterwards.

The table can be read by Debezium's outbox event router (`id`, `aggregatetype`, `aggregateid`, `type`, `payload`).
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from pydantic_core import PydanticSerializationError, from_json, to_json

from hailbus._extras import extra

with extra("sql"):
    from sqlalchemy import (
        BigInteger,
        Column,
        Connection,
        Index,
        Integer,
        String,
        Table,
        Text,
        bindparam,
        delete,
        event,
        func,
        insert,
        select,
        text,
        update,
    )
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
    from sqlalchemy.orm import Session

from hailbus._transport import Outgoing, Producer
from hailbus.clock import Clock, micros, utc_now
from hailbus.codec import encode
from hailbus.database import READ_ONLY, ensure_tables, metadata
from hailbus.envelope import Envelope, Headers
from hailbus.errors import ConfigurationError, DeliveryError
from hailbus.event import Event, event_info
from hailbus.partitioner import Partitioner

__all__ = ["Outbox", "OutboxEntry", "OutboxLag", "outbox_table"]

log = logging.getLogger("hailbus.outbox")

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
_due = outbox_table.c.not_before.is_(None) | (outbox_table.c.not_before <= bindparam("now"))
# Written once: to build a statement costs more than to run it.
_INSERT = insert(outbox_table)
_SELECT = (
    select(
        outbox_table.c.position,
        outbox_table.c.aggregatetype,
        outbox_table.c.aggregateid,
        outbox_table.c.payload,
        outbox_table.c.headers,
        outbox_table.c.partition,
    )
    .where(_waiting, _due)
    .order_by(outbox_table.c.position)
    .limit(bindparam("most"))
)
_CLAIM = _SELECT.with_for_update(skip_locked=True)
_MARK = (
    update(outbox_table)
    .where(outbox_table.c.position == bindparam("b_position"))
    .values(
        published_at=bindparam("b_now"),
        published_partition=bindparam("b_partition"),
        published_offset=bindparam("b_offset"),
    )
)
_CANCEL = (
    update(outbox_table)
    .where(outbox_table.c.schedule_id.in_(bindparam("schedule_ids", expanding=True)), _waiting)
    .values(cancelled_at=bindparam("now"))
)
_AGES = (
    select(outbox_table.c.position, outbox_table.c.created_at)
    .where(outbox_table.c.position > bindparam("after"))
    .order_by(outbox_table.c.position)
    .limit(bindparam("most"))
)
_PRUNE = delete(outbox_table).where(
    outbox_table.c.position.between(bindparam("first"), bindparam("last")),
    (outbox_table.c.published_at < bindparam("before")) | (outbox_table.c.cancelled_at < bindparam("before")),
)
PRUNED_AT_ONCE = 1_000
"""Rows that one transaction of `prune` looks at: other writers wait no longer than for these."""


WAKE_LINGER_S = 0.005
LAST_ROUND_S = 5.0
"""How long a relay waits, when it stops, until its last records are acknowledged."""
ROUND_EVERY_S = 0.03
"""Rounds that commits ask for are at least so far apart: each costs two transactions and a request per partition."""
CHANNEL = "hailbus_outbox"
"""PostgreSQL tells relays on this channel that rows were committed."""
_NOTIFY = text(f"SELECT pg_notify('{CHANNEL}', '')")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxEntry:
    """An event for `Outbox.add_many`.

    Attributes:
        event: What happened.
        envelope: As `hailbus.codec.envelope_for` makes it.
        not_before: The relay holds the event back until then.
        schedule_id: A name by which `cancel` and `cancel_many` find the event again.
    """

    event: Event
    envelope: Envelope
    not_before: datetime | None = None
    schedule_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxLag:
    """How far publishing is behind: rows that are due, and for how many seconds the oldest of them has been."""

    due_count: int
    oldest_s: float


class SyncTransaction(Protocol):
    """An open transaction of another library, as of `hailbus.django`."""

    @property
    def dialect(self) -> Any: ...  # Any: SQLAlchemy's

    def execute(self, statement: Any, parameters: Any = None) -> Any:  # Any: SQLAlchemy's, as `Connection.execute` has
        """Run a statement of SQLAlchemy, once for each set of parameters."""
        ...


async def store(tx: AsyncSession | AsyncConnection, rows: Sequence[OutboxRow], *, outbox: Outbox | None) -> None:
    """Insert rows in the caller's transaction; wake the relays after its commit."""
    await _insert(tx, values_of(rows))
    if outbox is not None:
        _wake_after_commit(tx, outbox)


def store_sync(tx: Session | Connection | SyncTransaction, rows: Sequence[OutboxRow]) -> None:
    """Insert rows in the caller's synchronous transaction. On PostgreSQL its commit wakes the relays; others poll."""
    connection = tx.connection() if isinstance(tx, Session) else tx
    connection.execute(_INSERT, values_of(rows))
    if connection.dialect.name == "postgresql":
        connection.execute(_NOTIFY)


def cancel_sync(tx: Session | Connection, schedule_ids: Sequence[str], *, now: datetime) -> int:
    """Withdraw the unpublished rows of schedules in the caller's synchronous transaction; how many there were."""
    if not schedule_ids:
        return 0
    connection = tx.connection() if isinstance(tx, Session) else tx
    found = connection.execute(_CANCEL, {"schedule_ids": list(schedule_ids), "now": micros(now)})
    return int(found.rowcount)


def values_of(rows: Sequence[OutboxRow]) -> list[dict[str, Any]]:
    """The columns of rows, as the insert takes them."""
    return [
        {
            "id": row.id,
            "aggregatetype": row.topic,
            "aggregateid": row.key.decode() if row.key is not None else None,
            "type": row.type,
            "payload": row.value.decode(),
            "headers": _headers_text(row.headers),
            "partition": row.partition,
            "created_at": micros(row.created_at),
            "not_before": micros(row.not_before) if row.not_before is not None else None,
            "schedule_id": row.schedule_id,
        }
        for row in rows
    ]


async def _insert(tx: AsyncSession | AsyncConnection, values: Sequence[Mapping[str, Any]]) -> None:
    connection = await tx.connection() if isinstance(tx, AsyncSession) else tx
    await connection.execute(_INSERT, values)
    if connection.dialect.name == "postgresql":
        await connection.execute(_NOTIFY)  # told at commit, and once for however many there were


def _wake_after_commit(tx: AsyncSession | AsyncConnection, outbox: Outbox) -> None:
    if isinstance(tx, AsyncSession):
        session = tx.sync_session
        if not session.info.get("hailbus_wakes"):
            session.info["hailbus_wakes"] = True

            @event.listens_for(session, "after_commit")
            def _committed(_session: Any) -> None:  # Any: a sync Session
                outbox.wake()

        return
    # A bare connection announces its commit only before it happens: look shortly after, and once more a little later.
    outbox.wake_soon()
    asyncio.get_running_loop().call_later(ROUND_EVERY_S, outbox.wake)


def _headers_text(headers: Headers) -> str:
    """Headers as JSON pairs; a value that is no UTF-8 becomes an object with base64."""
    try:
        return to_json(headers).decode()
    except PydanticSerializationError:
        return to_json([(name, _text_of(value)) for name, value in headers]).decode()


def _text_of(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _headers_of(text: str) -> Headers:
    return [
        (name, value.encode() if isinstance(value, str) else base64.b64decode(value["base64"]))
        for name, value in from_json(text)
    ]


class Outbox:
    """The outbox table of one database, and the relay that publishes its rows.

    The relay publishes rows of one key in the order of their insertion, retries for ever with back-off while broker or
    database are away, and marks rows after the acknowledgement: a crash in between publishes some of them again, with
    the same event ids. Rows stay until `prune`.

    Args:
        engine: Made by `hailbus.database.create_engine`.
        clock: Decides when `not_before` is reached; call `wake()` after moving it.
        batch_records: Rows per round.
        poll_interval: How soon the relay finds rows without a wake-up: those whose `not_before` is reached, and on
            SQLite those of other processes. This process' commits wake the relay at once; on PostgreSQL every commit.
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
        self._wake_timer: asyncio.TimerHandle | None = None
        self._round_began_s = 0.0
        self.turn = asyncio.Lock()
        """Held by the relay while it writes to SQLite. A service that writes much takes it too: two writers of one
        process would otherwise wait for each other in SQLite's busy handler, asleep for up to 100 ms."""
        self.published_count = 0
        """Rows that this relay has published since it began."""
        self.last_lag = OutboxLag(due_count=0, oldest_s=0.0)
        """The last result of `lag`; `GET /metrics` refreshes it."""
        self.is_listening = False
        """Whether PostgreSQL tells this relay of commits; without, it polls."""
        self.silent_since_s: float | None = None
        """When its database first left a probe without an answer, on the event loop's clock; None while it answers."""
        self._failing_since_s: float | None = None
        self._failure = ""

    async def create_tables(self) -> None:
        """Create table and indexes where they are missing; see `hailbus.database.ensure_tables`."""
        await ensure_tables(self.engine, outbox_table)

    def wake(self) -> None:
        """Look for rows now."""
        self._woken.set()

    def wake_soon(self) -> None:
        """Look for rows in a few milliseconds; under load a little later, so that one look serves several commits."""
        if self._wake_timer is None:
            loop = asyncio.get_running_loop()
            wait_s = max(WAKE_LINGER_S, self._round_began_s + ROUND_EVERY_S - loop.time())
            self._wake_timer = loop.call_later(wait_s, self._wake_now)

    def _wake_now(self) -> None:
        self._wake_timer = None
        self._woken.set()

    async def add_many(
        self, tx: AsyncSession | AsyncConnection, entries: Sequence[OutboxEntry], *, wakes: bool = True
    ) -> None:
        """Store events of several classes in the caller's transaction, by one statement and in this order.

        `Publisher.publish` and `publish_many` do the same for events that share their envelope's facts.

        Args:
            tx: The caller's transaction. The events are published after its commit, and only then.
            entries: May be empty.
            wakes: False when the caller calls `wake` after its commit, which spares the relay an empty round.
        """
        if not entries:
            return
        created_at = micros(self._clock())
        values = []
        for entry in entries:
            key, value, headers = encode(entry.event, entry.envelope)
            values.append(
                {
                    "id": entry.envelope.id,
                    "aggregatetype": event_info(entry.event).topic.name,
                    "aggregateid": key.decode() if key is not None else None,
                    "type": entry.envelope.type,
                    "payload": value.decode(),
                    "headers": _headers_text(headers),
                    "created_at": created_at,
                    "not_before": micros(entry.not_before) if entry.not_before is not None else None,
                    "schedule_id": entry.schedule_id,
                }
            )
        await _insert(tx, values)
        if wakes:
            _wake_after_commit(tx, self)

    async def cancel(self, tx: AsyncSession | AsyncConnection, schedule_id: str) -> int:
        """Withdraw the unpublished rows of a schedule, in the caller's transaction; how many there were."""
        return await self.cancel_many(tx, [schedule_id])

    async def cancel_many(self, tx: AsyncSession | AsyncConnection, schedule_ids: Sequence[str]) -> int:
        """Withdraw the unpublished rows of several schedules by one statement; how many there were."""
        if not schedule_ids:
            return 0
        result = await tx.execute(_CANCEL, {"schedule_ids": list(schedule_ids), "now": micros(self._clock())})
        return int(result.rowcount)  # type: ignore[attr-defined]  # typed as Result, is a CursorResult for an update

    async def waiting_count(self) -> int:
        """Rows that are neither published nor cancelled nor failed, those with a future `not_before` included."""
        async with self.engine.connect() as connection:
            await connection.execution_options(**READ_ONLY)
            found = await connection.scalar(select(func.count()).select_from(outbox_table).where(_waiting))
        return int(found or 0)

    async def until_empty(self) -> None:
        """Wait until no row is due. Raises `asyncio.CancelledError` only: a broker that is away is waited for."""
        while await self.due_count():
            self.wake()
            await asyncio.sleep(self._poll_interval_s)

    async def due_count(self) -> int:
        """Rows that should be published now."""
        async with self.engine.connect() as connection:
            await connection.execution_options(**READ_ONLY)
            found = await connection.scalar(
                select(func.count()).select_from(outbox_table).where(_waiting, _due), self._now()
            )
        return int(found or 0)

    async def lag(self) -> OutboxLag:
        """How far publishing is behind; for a metric or an alarm."""
        c = outbox_table.c
        query = select(func.count(), func.min(func.coalesce(c.not_before, c.created_at))).where(_waiting, _due)
        async with self.engine.connect() as connection:
            await connection.execution_options(**READ_ONLY)
            count, oldest = (await connection.execute(query, self._now())).one()
        waited = (micros(self._clock()) - int(oldest)) / 1_000_000 if oldest is not None else 0.0
        self.last_lag = OutboxLag(due_count=int(count), oldest_s=max(waited, 0.0))
        return self.last_lag

    async def prune(self, keep: timedelta) -> int:
        """Delete rows that were published or cancelled longer ago than this; how many.

        It looks at a thousand rows in each transaction, from the oldest on, until it comes to newer ones.
        """
        before = micros(self._clock() - keep)
        pruned_count, after = 0, -1
        while True:
            async with self.turn, self.engine.begin() as connection:
                ages = (await connection.execute(_AGES, {"after": after, "most": PRUNED_AT_ONCE})).all()
                if not ages:
                    return pruned_count
                span = {"first": ages[0].position, "last": ages[-1].position}
                pruned_count += (await connection.execute(_PRUNE, {**span, "before": before})).rowcount
            if all(row.created_at >= before for row in ages):
                return pruned_count
            after = span["last"]

    def _now(self) -> dict[str, int]:
        return {"now": micros(self._clock())}

    # -------------------------------------------------------------------------------------------- relay

    async def relay(self, producer: Producer, partitioner: Partitioner) -> None:
        """Publish rows until cancelled; a round that has begun then has `LAST_ROUND_S` to end."""
        if self.engine.dialect.name != "postgresql":
            await self._relay(producer, partitioner)
            return
        listening = asyncio.get_running_loop().create_task(self._listen(), name="hailbus-outbox-listen")
        try:
            await self._relay(producer, partitioner)
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self) -> None:
        """Wake at the commits of every process that writes to this PostgreSQL database.

        Keeps one connection of the pool. While it is away, the relay finds rows by polling.
        """
        delay_s = 0.1
        while True:
            lost = asyncio.Event()
            try:
                async with self.engine.connect() as connection:
                    driver = (await connection.get_raw_connection()).driver_connection
                    assert driver is not None
                    driver.add_termination_listener(lambda _driver, lost=lost: lost.set())
                    # Not by SQLAlchemy, which would open a transaction: a LISTEN holds from its commit on.
                    await driver.add_listener(CHANNEL, self._on_notify)
                    self.is_listening = True
                    self.wake()  # what was committed before
                    delay_s = 0.1
                    try:
                        await lost.wait()
                    finally:
                        self.is_listening = False
                        if not lost.is_set():
                            await driver.remove_listener(CHANNEL, self._on_notify)
                    await connection.invalidate()
            except (SQLAlchemyError, OSError, TimeoutError) as error:
                log.warning("outbox_listen_failed: %s, polling, trying again in %.1f s", error, delay_s)
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, 15.0)

    def _on_notify(self, *_: object) -> None:
        self.wake()

    async def _relay(self, producer: Producer, partitioner: Partitioner) -> None:
        delay_s = 0.1
        while True:
            self._woken.clear()
            self._round_began_s = asyncio.get_running_loop().time()
            try:
                published = await self._whole_round(producer, partitioner)
            except (SQLAlchemyError, DeliveryError, ConfigurationError, OSError, TimeoutError) as error:
                self._note_failure(error)
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, 15.0)
                continue
            self._note_success()
            delay_s = 0.1
            if published < self._batch_records:
                try:
                    async with asyncio.timeout(self._poll_interval_s):
                        await self._woken.wait()
                except TimeoutError:
                    pass

    async def _whole_round(self, producer: Producer, partitioner: Partitioner) -> int:
        """Do one round. When this task is cancelled, what is being sent is still marked, or it would be sent again."""
        doing = asyncio.get_running_loop().create_task(self.relay_once(producer, partitioner))
        try:
            return await asyncio.shield(doing)
        except asyncio.CancelledError:
            await asyncio.wait({doing}, timeout=LAST_ROUND_S)
            doing.cancel()
            await asyncio.gather(doing, return_exceptions=True)
            raise

    def _note_failure(self, error: Exception) -> None:
        self._failure = str(getattr(error, "orig", None) or error)  # SQLAlchemy adds statement and parameters
        if self._failing_since_s is None:
            self._failing_since_s = asyncio.get_running_loop().time()
            log.warning("relay_failed: %s, trying again until it works", self._failure)
        else:
            log.debug("relay_failed_again: %s", self._failure)

    def _note_success(self) -> None:
        if self._failing_since_s is not None:
            lasted_s = asyncio.get_running_loop().time() - self._failing_since_s
            self._failing_since_s = None
            log.info("relay_recovered: after %.0f s", lasted_s)

    def reasons(self, *, after_s: float) -> list[str]:
        """Why the relay is unhealthy: it has failed for longer than `after_s`."""
        if self._failing_since_s is None:
            return []
        lasted_s = asyncio.get_running_loop().time() - self._failing_since_s
        return [f"the outbox relay has failed for {lasted_s:.0f} s: {self._failure}"] if lasted_s >= after_s else []

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
            rows = (await connection.execute(_SELECT, self._round())).all()
        if not rows:
            return 0
        return await self._publish(None, rows, producer, partitioner)

    def _round(self) -> dict[str, int]:
        """The parameters of a look at what is due."""
        return {**self._now(), "most": self._batch_records}

    async def _claim(self, connection: AsyncConnection) -> Sequence[Any]:
        """Rows locked for this relay, of each key only those before the first that another relay holds.

        Relays that scan at the same time lock rows of one key in turns: this one may hold the second and the fourth.
        """
        rows = (await connection.execute(_CLAIM, self._round())).all()
        keys = sorted({row.aggregateid for row in rows if row.aggregateid is not None})
        if not keys:
            return rows
        c = outbox_table.c
        others = (
            await connection.execute(
                select(c.aggregatetype, c.aggregateid, func.min(c.position))
                .where(
                    _waiting,
                    _due,
                    c.aggregateid.in_(keys),
                    c.position < rows[-1].position,
                    c.position.not_in([row.position for row in rows]),
                )
                .group_by(c.aggregatetype, c.aggregateid),
                self._round(),
            )
        ).all()
        ends = {(topic, key): position for topic, key, position in others}
        return [row for row in rows if row.position < ends.get((row.aggregatetype, row.aggregateid), row.position + 1)]

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
        """Write the rows of one partition in order: what was acknowledged, what was refused for good, what to retry."""
        topic, partition = place
        records: list[Outgoing] = [
            (
                row.aggregateid.encode() if row.aggregateid is not None else None,
                row.payload.encode() if row.payload is not None else None,
                _headers_of(row.headers),
            )
            for row in rows
        ]
        marks: list[dict[str, int]] = []
        refused: list[tuple[int, str]] = []
        failure: DeliveryError | None = None
        for row, outcome in zip(rows, await producer.send_each(topic, partition, records), strict=True):
            if not isinstance(outcome, DeliveryError):
                marks.append({"b_position": row.position, "b_partition": partition, "b_offset": outcome})
            elif outcome.retriable:
                failure = failure or outcome
            else:
                log.error("outbox_row_refused: position %d: %s", row.position, outcome)
                refused.append((row.position, str(outcome)))
        return marks, refused, failure

    async def _mark(
        self, connection: AsyncConnection, done: Sequence[Mapping[str, int]], refused: Sequence[tuple[int, str]]
    ) -> None:
        now = micros(self._clock())
        if done:
            await connection.execute(_MARK, [{**mark, "b_now": now} for mark in done])
        for position, reason in refused:
            await connection.execute(
                update(outbox_table).where(outbox_table.c.position == position).values(failed_at=now, error=reason)
            )
