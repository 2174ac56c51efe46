"""The inbox: which events a consumer has applied, kept in the same database transaction as what they changed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from pydantic_core import to_json

from hailbus._extras import extra

with extra("sql"):
    from sqlalchemy import (
        BigInteger,
        Column,
        Index,
        Integer,
        String,
        Table,
        TextClause,
        bindparam,
        delete,
        func,
        select,
        text,
        tuple_,
    )
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

from hailbus.clock import Clock, micros, utc_now
from hailbus.context import Context, Delivery
from hailbus.database import READ_ONLY, ensure_tables, metadata
from hailbus.errors import ConfigurationError, EventIdError
from hailbus.sequence import Sequences

__all__ = ["Inbox", "inbox_table"]

inbox_table = Table(
    "hailbus_inbox",
    metadata,
    Column("consumer", String(249), primary_key=True),
    Column("source", String(255), primary_key=True),
    Column("event_id", String(255), primary_key=True),
    Column("topic", String(249), nullable=False),
    Column("partition", Integer, nullable=False),
    Column("offset_", BigInteger, nullable=False),
    Column("seen_count", Integer, nullable=False),
    Column("applied_at", BigInteger, nullable=False),  # microseconds since the epoch
    sqlite_with_rowid=False,
)
Index("hailbus_inbox_applied", inbox_table.c.consumer, inbox_table.c.applied_at)

_KEY = (inbox_table.c.source, inbox_table.c.event_id)
_OLD = (inbox_table.c.consumer == bindparam("consumer")) & (inbox_table.c.applied_at < bindparam("before"))
PRUNE = delete(inbox_table).where(
    inbox_table.c.consumer == bindparam("consumer"),
    tuple_(*_KEY).in_(select(*_KEY).where(_OLD).limit(bindparam("most"))),
)
PRUNED_AT_ONCE = 1_000
"""Rows that one transaction of `prune` deletes: other writers wait no longer than for these."""

# As wide as the columns, and nothing that CloudEvents forbids in an attribute or that has no form in UTF-8.
_STORABLE = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,255}\Z")

# One parameter for the whole batch, so that one prepared statement serves any size.
_CLAIM = {
    "sqlite": text(
        """
        INSERT INTO hailbus_inbox (consumer, source, event_id, topic, "partition", offset_, seen_count, applied_at)
        SELECT :consumer, json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
               json_extract(value, '$[3]'), json_extract(value, '$[4]'), json_extract(value, '$[5]'), :now
        FROM json_each(:rows) WHERE true
        ON CONFLICT (consumer, source, event_id) DO UPDATE SET seen_count = seen_count + excluded.seen_count
        RETURNING source, event_id, seen_count
        """
    ),
    "postgresql": text(
        """
        INSERT INTO hailbus_inbox AS i (consumer, source, event_id, topic, "partition", offset_, seen_count, applied_at)
        SELECT CAST(:consumer AS varchar), r->>0, r->>1, r->>2, CAST(r->>3 AS integer), CAST(r->>4 AS bigint),
               CAST(r->>5 AS integer), CAST(:now AS bigint)
        FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS r
        ORDER BY 2, 3
        ON CONFLICT (consumer, source, event_id) DO UPDATE SET seen_count = i.seen_count + excluded.seen_count
        RETURNING source, event_id, seen_count
        """
    ),
}


class Claims:
    """The rows of one call of `claim`, each event once, with how often it came.

    Raises:
        EventIdError: See `Inbox.claim`.
    """

    def __init__(self, deliveries: Iterable[Delivery[Any] | Context]) -> None:
        self.rows: dict[tuple[str, str], list[Any]] = {}
        for delivery in deliveries:
            ctx = delivery if isinstance(delivery, Context) else delivery.ctx
            source, event_id = ctx.envelope.source, ctx.envelope.id
            row = self.rows.get((source, event_id))
            if row is not None:
                row[5] += 1
                continue
            if (refusal := Inbox.refusal_of(ctx)) is not None:
                raise refusal
            self.rows[source, event_id] = [source, event_id, ctx.topic, ctx.partition, ctx.offset, 1]

    def parameters(self, consumer: str, now: datetime) -> dict[str, Any]:
        """The parameters of the statement that claims."""
        return {"consumer": consumer, "now": micros(now), "rows": to_json(list(self.rows.values())).decode()}

    def fresh(self, answer: Iterable[Any]) -> set[str]:  # Any: SQLAlchemy's rows
        """The ids that were never applied before, by what the statement returned."""
        # A row that existed before has counted higher than what this call added.
        return {event_id for source, event_id, seen in answer if seen == self.rows[source, event_id][5]}


def claim_statement(dialect: str) -> TextClause:
    """The statement that claims, for a database.

    Raises:
        ConfigurationError: The database is neither sqlite nor postgresql.
    """
    if dialect not in _CLAIM:
        message = f"the inbox supports sqlite and postgresql, not {dialect!r}"
        raise ConfigurationError(message)
    return _CLAIM[dialect]


class Inbox:
    """What one consumer has applied, one row per event: the row and the effect are committed together or not at all.

    ::

        async with sessions.begin() as tx:
            fresh = await inbox.claim(tx, batch.items)
            for item in batch.items:
                if item.ctx.envelope.id in fresh:
                    ...                                   # apply once

    Args:
        engine: Made by `hailbus.database.create_engine`.
        consumer: Name of the consumer, by convention its group.
    """

    def __init__(self, engine: AsyncEngine, consumer: str, *, clock: Clock = utc_now) -> None:
        self.engine = engine
        self.consumer = consumer
        self._clock = clock
        self._claim = claim_statement(engine.dialect.name)
        self._sequences: Sequences | None = None

    @property
    def sequences(self) -> Sequences:
        """Which numbered events were applied; the table is created and pruned with the inbox once this is used."""
        if self._sequences is None:
            self._sequences = Sequences(self.engine, self.consumer, clock=self._clock)
        return self._sequences

    async def create_tables(self) -> None:
        """Create table and index where they are missing; see `hailbus.database.ensure_tables`."""
        await ensure_tables(self.engine, inbox_table)
        if self._sequences is not None:
            await self._sequences.create_tables()

    @staticmethod
    def refusal_of(delivery: Delivery[Any] | Context) -> EventIdError | None:
        """Why an event cannot be claimed, None when it can.

        `claim` raises it before anything is written; a handler of batches asks before, and parks that one event.
        """
        ctx = delivery if isinstance(delivery, Context) else delivery.ctx
        envelope = ctx.envelope
        if _STORABLE.match(envelope.id) and _STORABLE.match(envelope.source):
            return None
        return EventIdError(
            id=envelope.id, source=envelope.source, topic=ctx.topic, partition=ctx.partition, offset=ctx.offset
        )

    async def claim(
        self, tx: AsyncSession | AsyncConnection, deliveries: Iterable[Delivery[Any] | Context]
    ) -> set[str]:
        """Record events in the caller's transaction; the ids of those that were never applied before.

        An id that comes twice in one call is in the answer once: apply it once. Events that were applied before get
        their `seen_count` raised.

        Raises:
            EventIdError: An id or source is too long for the table or holds control characters; nothing was claimed.
        """
        claims = Claims(deliveries)
        if not claims.rows:
            return set()
        result = await tx.execute(self._claim, claims.parameters(self.consumer, self._clock()))
        return claims.fresh(result.all())

    async def release(self, tx: AsyncSession | AsyncConnection, contexts: Iterable[Context]) -> None:
        """Forget that events were applied, in the caller's transaction, so that their dead letters can be replayed."""
        for ctx in contexts:
            await tx.execute(
                delete(inbox_table).where(
                    inbox_table.c.consumer == self.consumer,
                    inbox_table.c.source == ctx.envelope.source,
                    inbox_table.c.event_id == ctx.envelope.id,
                )
            )

    async def check(self) -> None:
        """Begin a transaction that could claim, and look into the table.

        Raises:
            Exception: The database cannot be used, whatever its driver calls that.
        """
        async with self.engine.begin() as connection:
            await connection.execute(select(inbox_table.c.event_id).limit(1))

    async def counts(self) -> tuple[int, int]:
        """Events applied, and events seen (repetitions included), by this consumer."""
        async with self.engine.connect() as connection:
            await connection.execution_options(**READ_ONLY)
            applied, seen = (
                await connection.execute(
                    select(func.count(), func.coalesce(func.sum(inbox_table.c.seen_count), 0)).where(
                        inbox_table.c.consumer == self.consumer
                    )
                )
            ).one()
        return int(applied), int(seen)

    async def prune(self, keep: timedelta) -> int:
        """Forget events that were applied longer ago than this; how many. A repetition after that is applied again."""
        old = {"consumer": self.consumer, "before": micros(self._clock() - keep), "most": PRUNED_AT_ONCE}
        pruned_count = 0
        while True:
            async with self.engine.begin() as connection:
                count = (await connection.execute(PRUNE, old)).rowcount
            pruned_count += count
            if count < PRUNED_AT_ONCE:
                break
        return pruned_count + (await self._sequences.prune(keep) if self._sequences is not None else 0)
